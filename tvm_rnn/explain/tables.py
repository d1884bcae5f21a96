"""What the command line prints of cells and modules: rich tables for people, plain dicts for --json.

In: Cells of the zoo, the manifest and weights of a module's file. Out: renderables for `rich.console.Console.print` and
values for `json.dumps`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tvm_rnn.decisions import Figures
from tvm_rnn.language.cell import Argument, Cell

AXES = {"I": "features of the input", "H": "hidden units", "P": "features of the projected output", "G": "gates"}
AXES |= {"N": "heads", "M": "value heads that share one head of keys", "R": "rank of a gate"}
AXES |= {"K": "features of a key, or taps of a kernel", "Y": "height of an image", "X": "width of an image"}


def plain_table(*columns: str, title: str | None = None) -> Table:
    """An empty table without borders between rows; numbers of a column named with a unit go to the right."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def cell_facts(cell: Cell) -> dict[str, object]:
    """What `tvm-rnn cells --json` says of a cell: names, dims, axes, documentation."""

    def dims(arguments: Iterable[Argument]) -> dict[str, list[str]]:
        return {a.name: a.dims.text.replace(",", " ").split() for a in arguments}

    return {
        "name": cell.name,
        "inputs": dims(cell.inputs),
        "states": dims(cell.states),
        "weights": dims(cell.params),
        "output": cell.output,
        "axes": list(cell.size_names),
        "doc": cell.doc,
        "where": cell.where,
    }


def cells_table(cells: Iterable[Cell]) -> RenderableType:
    """One line per cell: name, inputs, states, first line of its documentation."""
    table = plain_table("cell", "inputs", "states", "what it is")
    for cell in cells:
        inputs, states = (" ".join(a.name for a in arguments) for arguments in (cell.inputs, cell.states))
        table.add_row(Text(cell.name, "bold"), inputs, states, Text(cell.doc.split("\n")[0]))
    return table


def cell_page(cell: Cell) -> RenderableType:
    """One cell in full: documentation, arguments with their dims, the axes that need sizes, where it is defined."""
    table = plain_table("", "name", "dims")
    for kind, arguments in (("input", cell.inputs), ("state", cell.states), ("weight", cell.params)):
        for argument in arguments:
            note = "  (what the layer emits)" if kind == "state" and argument.name == cell.output else ""
            table.add_row(kind, Text(argument.name, "bold"), Text(f"[{', '.join(argument.dims.text.split())}]{note}"))
    bound = cell.inputs[0].dims.labels[:1]
    axes = plain_table("axis", "is", "given by")
    for name in cell.size_names:
        option = "--input-size" if name in bound else "--hidden-size" if name == "H" else f"--size {name}=..."
        left_out = "" if name in cell.required else "  (may be left out)"
        axes.add_row(Text(name, "bold"), AXES.get(name, ""), option + left_out)
    head = Text(cell.name, "bold")
    return Group(head, "", Text(cell.doc), "", table, "", axes, "", Text(f"defined in {cell.where}", "dim"))


def manifest_page(path: str, manifest: Figures, weights: Mapping[str, np.ndarray], file_bytes: int) -> RenderableType:
    """A module's manifest for people: what it computes, for which machine, how it was made, what is in the file."""
    facts = plain_table("", "")
    facts.show_header = False
    for name, value in _facts(path, manifest, weights, file_bytes):
        facts.add_row(Text(name, "bold"), Text(value))
    shared = {key: value for key, value in manifest.items() if key != "networks"}
    own = manifest.get("networks")
    parts = (
        [_arrays(manifest)] if own is None else [_arrays({**shared, **m}, f"network {i}") for i, m in enumerate(own)]
    )
    return Group(facts, *_model(manifest), *(piece for part in parts for piece in part))


def _arrays(manifest: Figures, title: str = "arrays") -> list[RenderableType]:
    arrays = plain_table("array", "shape", "", title=title)
    for item in manifest["inputs"]:
        arrays.add_row("input", _shape("T", "B", *item["shape"]), item["name"])
    own, directions = manifest["output"]["shape"], manifest["num_directions"]
    wide = [directions * n if i == 0 else n for i, n in enumerate(own or [1] * (directions > 1))]
    arrays.add_row("output", _shape("T", "B", *wide), manifest["output"]["name"])
    for state in manifest["states"]:
        for shape in _state_shapes(manifest, state):
            arrays.add_row("state", shape, f"{state['name']}, at first {state['initial']:g}")
    for item in manifest["weights"]:
        arrays.add_row("weight", _shape(*item["shape"]), item["name"])
    templates = plain_table("unit", "template", "knobs", "record", title="schedules")
    for row in manifest["templates"]:
        knobs = ", ".join(f"{k}={v}" for k, v in row.get("knobs", {}).items())
        templates.add_row(*(Text(str(t)) for t in (row.get("unit"), row.get("template"), knobs, row.get("record"))))
    return ["", arrays, "", templates, *_kernels(manifest)]


def _model(manifest: Figures) -> list[RenderableType]:
    """The whole model around the networks: its inputs and outputs, and what it does between them."""
    if "model" not in manifest:
        return []
    model = manifest["model"]
    table = plain_table("model", "shape", "", title="the whole model, as run() has it")
    for kind in ("inputs", "outputs"):
        for item in model[kind]:
            axes = item["shape"]
            shape = Text("any") if axes is None else _shape(*("any" if axis is None else axis for axis in axes))
            table.add_row(kind[:-1], shape, f"{item['name']}, {item['dtype']}")
    return ["", table, Text(f"steps: {_counted(map(_step, model['steps']))}")]


def _step(step: Figures) -> str:
    """A step's name; of a compiled function the operators that it came of, and in a module for GPUs where it runs."""
    facts = step["attributes"]
    operators = facts.get("operators", ())
    name = f"{step['op']} ({_counted(operators)})" if operators else str(step["op"])
    where = {"gpu": "on the GPU", "cpu": f"on the CPU: {facts.get('why')}"}
    return f"{name} {where[facts['on']]}" if facts.get("on") in where else name


def _counted(names: Iterable[str]) -> str:
    return ", ".join(f"{number} {name}" if number > 1 else name for name, number in Counter(names).items())


def _kernels(manifest: Figures) -> list[RenderableType]:
    found: list[RenderableType] = []
    for variant in manifest.get("variants", ()):
        rows = plain_table("kernel", "registers", "spilled", "shared", title=f"kernels for {variant['arch']}")
        for row in variant["kernels"]:
            shared, spilled = size_text(row["shared_bytes"]), size_text(row["spill_bytes"])
            rows.add_row(Text(row["kernel"]), str(row["registers"]), spilled, shared)
        found += ["", rows]
    return found


def has_weights(manifest: Figures, arrays: Mapping[str, object]) -> bool:
    """Whether the arrays in a module's file include its weights; there may also be constants of the equations."""
    own = manifest.get("networks")
    if own is not None:
        return all(f"{i}.{item['name']}" in arrays for i, part in enumerate(own) for item in part["weights"])
    return all(item["name"] in arrays for item in manifest["weights"])


def _facts(path: str, m: Figures, weights: Mapping[str, np.ndarray], file_bytes: int) -> list[tuple[str, str]]:
    target, networks = m["target"], m.get("networks", (m,))
    archs = m.get("archs", [variant["arch"] for variant in m.get("variants", ())])
    held = sum(array.nbytes for array in weights.values())
    there = has_weights(m, weights)
    brought = any(step["attributes"].get("weights") for step in m.get("model", {}).get("steps", ()))
    kind = f"{m['weight_dtype']}; " if m.get("weight_dtype") else ""
    kind += f"error {m['weight_error']:.1e} relative to float64; " if m.get("weight_error") is not None else ""
    missing = "inputs of the model" if brought else "not in the file: give them with --weights"
    return [
        ("module", f"{path}, {size_text(file_bytes)}"),
        *(("cell", _cell_text(own)) for own in networks),
        *([("made from", origin_text(m["origin"], m.get("batch_first", False)))] if "origin" in m else []),
        *([("calls", "batch first: x and y [B, T, ...]; of C, time first")] if m.get("batch_first") else []),
        *([("precision", m["precision"])] if "precision" in m else []),
        ("batch", "any" + (f", made for {', '.join(map(str, m['batch']))}" if m["batch"] else "")),
        ("weights", kind + (f"in the file, {size_text(held)}" if there else missing)),
        ("entry points", ", ".join(m["entry_points"])),
        ("target", f"{target['name']}: {target['machine']} {target['mcpu']}".rstrip()),
        ("needs", " or ".join(archs) or ", ".join(target["features"]) or "no particular CPU"),
        *([("in training", regularisers_text(m["regularisers"]))] if "regularisers" in m else []),
        *([("budget", f"{m['memory']['max_bytes']} bytes for training")] if "max_bytes" in m.get("memory", {}) else []),
        ("passes", ", ".join(m["passes"]) or "none"),
        *(fact for own in networks if not archs for fact in _cpu_facts(own)),
        ("work", f"{sum(own['flops_per_row'] for own in networks) / 1e6:.4g} MFLOP per step and row"),
        ("made by", ", ".join(f"{name} {version}" for name, version in m["versions"].items())),
        ("created", m["created"]),
    ]


def _cell_text(m: Figures) -> str:
    layers = f"{m['num_layers']} layer{'s' * (m['num_layers'] > 1)}"
    directions = "both directions" if m["num_directions"] == 2 else "reverse" if m.get("reverse") else "forward"
    return f"{m['cell']}, {layers}, {directions}, {m['dtype']}"


def origin_text(origin: Figures, batch_first: bool = False) -> str:
    """Which layer of which framework a module was, and the file that it was read from. batch_first: of the module."""
    parts = [origin["layer"]]
    if origin["batch_first"] and not batch_first:
        parts.append("batch_first there, [T, B, ...] here")
    if origin["file"] is not None:
        parts.append(f"{origin['file']}, sha256 {origin['sha256']}")
    return ", ".join(parts)


def regularisers_text(own: Figures) -> str:
    """The regularisers of a network, each with its probabilities."""
    words = []
    for name, value in own.items():
        pairs = ", ".join(f"{n} {p:g}" for n, p in value.items()) if isinstance(value, Mapping) else f"{value:g}"
        words.append(f"{name.replace('_', ' ')} {pairs}")
    return "; ".join(words)


def _cpu_facts(m: Figures) -> list[tuple[str, str]]:
    work = m["workspace"]
    names = [key for key in ("fixed", "per_row", "per_tile_row", "per_sequence_row") if work.get(key)]
    return [
        ("workspace", ", ".join(f"{work[k]} {k.replace('_', ' ')}" for k in names) + f" ({m['dtype']} elements)"),
        ("tile", f"{m['rows_per_tile']} rows (steps x batch) at once"),
    ]


def _shape(*axes: int | str) -> Text:
    return Text(f"[{', '.join(str(axis) for axis in axes)}]")


def _state_shapes(m: Figures, state: Figures) -> list[Text]:
    shapes, directions = [list(shape) for shape in state["shapes"]], m["num_directions"]
    if shapes.count(shapes[0]) == len(shapes):
        return [_shape(len(shapes) * directions, "B", *shapes[0])]
    return [_shape(directions, "B", *shape) for shape in shapes]


def number_text(value: float) -> str:
    """Three digits that count, and no exponent: "51,100"."""
    return f"{float(f'{value:.3g}'):,.12g}"


def percent(part: float) -> str:
    """A share; one that would round to nothing says so."""
    return "< 1%" if 0 < part < 0.01 else f"{part:.0%}"


def time_text(us: float) -> str:
    """Microseconds for people: "31.3 ms"."""
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if us >= factor:
            return f"{number_text(us / factor)} {unit}"
    return f"{number_text(us)} us"


def size_text(count: int) -> str:
    """A number of bytes for people: "57.0 KB"."""
    value, unit = float(count), "B"
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"

"""An explanation for people: one page of text, by rich.

In: the facts of an `Explanation`. Out: renderables for the command line, and the same as plain text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tvm_rnn.decisions import DecisionFacts, Figures

from .facts import (
    BesideFacts,
    ExplanationFacts,
    KernelFacts,
    NetworkFacts,
    PassFacts,
    SectionFacts,
    TemplateFacts,
    WorkFacts,
)
from .summary import QUESTIONS, summary
from .tables import percent, plain_table, regularisers_text, size_text, time_text

WIDTH = 120
MOST_KNOBS = 12  # of a template, in words
HOSTS = ("load", "save", "pack", "keep", "restart", "freeze")  # kernels around the work, left out of the page


def text(facts: ExplanationFacts) -> str:
    """The page as plain text."""
    return _plain(page(facts)).rstrip()


def _plain(renderable: RenderableType) -> str:
    console = Console(width=WIDTH, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def page(facts: ExplanationFacts) -> RenderableType:
    """Everything about every network."""
    parts: list[RenderableType] = []
    for network in facts["networks"]:
        parts += [*_network(network), ""]
    return Group(*parts)


def _network(facts: NetworkFacts) -> Iterator[RenderableType]:
    layers = f"{facts['layers']} layer{'s' * (facts['layers'] > 1)}"
    where = ", ".join(facts["target"]["archs"]) or facts["target"]["mcpu"]
    made = f", made for B = {', '.join(map(str, facts['made_for']))}" if facts["made_for"] else ""
    weights = f", weights in {facts['weights']}" if facts["weights"] != facts["precision"] else ""
    yield Text(f"{facts['cell']}: {layers}, {facts['precision']}{weights}, for {where}{made}", "bold")
    if "regularisers" in facts:
        yield Text(f"in training {regularisers_text(facts['regularisers'])}")
    if not facts["told"]:
        yield Text("this module's file does not say what was decided: compile it again")
    if facts["work"]:
        yield from _in_short(facts)
    for name, told in facts["passes"].items():
        yield from _pass(name, told, facts["graphs"])
    if rows := facts["phases"]:
        phases = len({(row["graph"], row["phase"]) for row in rows if row["region"] == "step" and row["graph"] == 0})
        yield from _title(f"what runs in one go ({phases} phase{'s' * (phases > 1)} in a step)")
        yield from (_bullet("+", phase_text(row, facts["graphs"])) for row in rows)
    yield from _regimes(facts)
    yield from _templates(facts["templates"])
    yield from _kernels(facts["kernels"])
    yield from _work(facts["work"])
    yield from _memory(facts)


def _in_short(facts: NetworkFacts) -> Iterator[RenderableType]:
    found, table = summary(facts), plain_table("", "")
    table.show_header = False
    for field, question in QUESTIONS.items():
        table.add_row(question, getattr(found, field))
    yield ""
    yield Padding(table, (0, 0, 0, 2))


def _title(words: str) -> Iterator[RenderableType]:
    yield ""
    yield Text(words, "bold")


def _note(words: str) -> RenderableType:
    return Padding(Text(words, "dim"), (0, 0, 0, 2))


def _bullet(mark: str, words: str, style: str = "") -> RenderableType:
    line = Text(f"{mark} ", style)
    line.append(words, "")
    return Padding(line, (0, 0, 0, 2))


def subject_text(row: DecisionFacts, graphs: Sequence[Sequence[int]]) -> str:
    """What a decision is about, in brackets: layers (of graphs[number]), training, batch size, template."""
    own, words = row.get("subject", {}), list[str]()
    if len(graphs) > 1 and own.get("graph", len(graphs)) < len(graphs):  # those of training have numbers beyond
        layers = graphs[own["graph"]]
        words.append(f"layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))}")
    words += ["in a wave"] if row.get("stage") == "wave" and row["what"] != "layers in a wave" else []
    words += ["training"] if "training" in own and "kind" not in own else []
    words += [str(own["kind"])] if "kind" in own else []
    words += [f"B = {own['batch']}"] if "batch" in own else []
    words += [str(own["template"])] if "template" in own else []
    return f" ({'; '.join(words)})" if words else ""


def told_text(row: DecisionFacts, graphs: Sequence[Sequence[int]]) -> str:
    """A decision: what, about what, and why."""
    return f"{row['what']}{subject_text(row, graphs)}: {row.get('why', '')}".rstrip(": ")


def _pass(name: str, rows: PassFacts, graphs: Sequence[Sequence[int]]) -> Iterator[RenderableType]:
    yield from _title(name)
    for decisions, mark, style in ((rows["did"], "+", "green"), (rows["did_not"], "-", "yellow")):
        for row in decisions:
            yield _bullet(mark, told_text(row, graphs), style)
    if not any(rows.values()):
        nothing = "all pointwise work is in a group with a product or a reduction: see what runs in one go"
        yield _bullet("+", nothing if name == "fuse_pointwise" else "nothing to say")


def phase_text(row: Figures, graphs: Sequence[Sequence[int]]) -> str:
    """One group of what runs in one go, and of which layers where they differ."""
    own = graphs[row["graph"]] if row["graph"] < len(graphs) else []
    where = f" [layer{'s' * (len(own) > 1)} {', '.join(map(str, own))}]" if len(graphs) > 1 else ""
    return f"{row['runs']}{where}; {row['with']}"


def cpu_text(work: Sequence[WorkFacts]) -> str:
    """A CPU's only regime, and what limits it: nothing is kept on the chip but by caches."""
    words, read = "one call for all of T: the loop over steps is in the compiled code", work[0]["step_bytes"]
    if not read:
        return f"{words}; a step reads no matrices"
    cache, own = work[0].get("l2_bytes", 0), f"every step reads {size_text(int(read))} of weights"
    if not cache:
        return f"{words}; {own}"
    more = "all" if read <= cache else f"all but {size_text(int(read) - cache)}"
    return f"{words}; {own}, {more} of which a core's level-2 cache holds ({size_text(cache)})"


def launches_text(phases: Sequence[Figures]) -> str:
    """Who runs the steps on a GPU where no regime does."""
    if any(row["region"] == "step" for row in phases):
        return "step by step: one launch per group of operations and step"
    return "no step waits for the one before: a launch of each group is for all of T, or for a chunk of it"


def _regimes(facts: NetworkFacts) -> Iterator[RenderableType]:
    rows, graphs = facts["regimes"], facts["graphs"]
    yield from _title("who runs the steps")
    if not facts["target"]["archs"]:
        yield _bullet("+", cpu_text(facts["work"]), "green")
        return
    if not any(row["done"] for row in rows):
        yield _bullet("+", launches_text(facts["phases"]), "green")
    for row in sorted(rows, key=lambda row: not row["done"]):
        mark, style = ("+", "green") if row["done"] else ("-", "yellow")
        yield _bullet(mark, told_text(row, graphs), style)
        chip = row.get("facts", {})
        if "weights_in_registers_bytes" in chip:
            near, far = (size_text(chip[f"weights_in_{place}_bytes"]) for place in ("registers", "shared"))
            slices = f"{chip['rows']} rows" + (f" of each of {chip['heads']} heads" if "heads" in chip else "")
            words = f"{chip['blocks']} blocks of {chip['threads']} threads for {slices}; weights: {near} in"
            words += f" registers, {far} in shared memory; a block has {size_text(chip['shared_bytes'])} of that, "
            yield Padding(Text(words + f"a thread about {chip['registers_estimated']} registers"), (0, 0, 0, 6))


def _templates(rows: Sequence[TemplateFacts]) -> Iterator[RenderableType]:
    yield from _title("schedules")
    table = plain_table("unit", "template", "from", "knobs")
    counts = Counter[tuple[str, ...]]()
    for row in rows:
        own = row.get("knobs", {})
        knobs = ", ".join(f"{k}={v}" for k, v in own.items())
        knobs = knobs if len(own) <= MOST_KNOBS else f"{len(own)} of them: `tvm-rnn inspect` or --json"
        counts[str(row["unit"]), str(row["template"]), str(row.get("record", "")), knobs] += 1
    for (unit, *rest), count in counts.items():
        table.add_row(Text(f"{count} x {unit}" if count > 1 else unit), *map(Text, rest))
    yield Padding(table, (0, 0, 0, 2))


def _kernels(rows: Sequence[KernelFacts]) -> Iterator[RenderableType]:
    if not rows:
        return
    yield from _title("kernels")
    table = plain_table("kernel", "registers", "spilled", "shared", "threads", "blocks per SM", "occupancy", "limit")
    for row in rows:
        if any(word in row["kernel"].split("_")[-1] or row["kernel"].startswith(word) for word in HOSTS):
            continue
        shared = size_text(row["shared_bytes"] + row.get("dynamic_shared_bytes", 0))
        full = f"{row['occupancy']:.0%}" if "occupancy" in row else ""
        more = (str(row.get("threads", "")), str(row.get("blocks_per_sm", "")), full, row.get("limited_by", ""))
        table.add_row(Text(row["kernel"]), str(row["registers"]), size_text(row["spill_bytes"]), shared, *more)
    yield Padding(table, (0, 0, 0, 2))


def _work(rows: Sequence[WorkFacts]) -> Iterator[RenderableType]:
    yield from _title(f"work of T = {rows[0]['steps']} steps")
    times = ("floor", "bound by", "predicted", "measured", "share")
    table = plain_table("B", "MFLOP", "moved", "read per step", *times)
    for row in rows:
        floors = row.get("floor_us", {})
        worst = max(floors, key=lambda name: floors[name], default="")
        share = percent(row["share"]) + ("" if "measured_us" in row else " predicted") if "share" in row else ""
        table.add_row(
            str(row["batch"]),
            f"{row['flops'] / 1e6:.4g}",
            size_text(int(row["bytes"])),
            size_text(int(row["step_bytes"])) if row["step_bytes"] else "",
            time_text(floors[worst]) if worst else "",
            worst,
            time_text(row["predicted_us"]) if "predicted_us" in row else "",
            time_text(row["measured_us"]) if "measured_us" in row else "",
            share,
        )
    yield Padding(table, (0, 0, 0, 2))
    notes = [f"floor: {row['ceilings_from']}" for row in rows if row["ceilings_from"]]
    notes += [f"measured: {row['measured_by']}" for row in rows if "measured_by" in row]
    yield from map(_note, [*dict.fromkeys(notes), *filter(None, map(in_turn_text, rows))])
    if all(row["ceilings"] and not row.get("measured_us") and not row.get("predicted_us") for row in rows):
        yield _note("share: no time is known yet; --measure times it on this CPU")


def in_turn_text(row: WorkFacts) -> str:
    """Why steps that follow each other are far from a floor of bytes and arithmetic: how long their blocks wait for
    each other's values; "" where they do not."""
    if not row.get("exchanges"):
        return ""
    us, count = row["in_turn_us"], row["exchanges"]
    often = f"{count} time{'s' * (count > 1)}"
    words = f"B = {row['batch']}: steps take turns, and their blocks wait for each other {often}"
    words += f" in each: {us / row['steps']:.2f} us of a step at least, {time_text(us)} of all"
    timed = row["measured_us"] if "measured_us" in row else row["predicted_us"]
    return f"{words}, {percent(us / timed)} of the time {'measured' if 'measured_us' in row else 'predicted'}"


def _memory(facts: NetworkFacts) -> Iterator[RenderableType]:
    yield from _title("memory")
    memory = facts["memory"]
    words = f"weights {size_text(memory['weight_bytes'])} ({memory['parameters']} numbers)"
    yield _bullet("+", f"{words}; packed for products: {size_text(memory['packed_bytes'])}, in {facts['weights']}")
    if "workspace_bytes" in memory:
        grows = {"fixed": "", "per_row": " B", "per_tile_row": " n B", "per_sequence_row": " T B"}
        sizes = memory["workspace_bytes"]
        text = " + ".join(f"{sizes[name]}{factor}" for name, factor in grows.items() if sizes.get(name))
        yield _bullet("+", f"workspace: {text} bytes, with n B at most {memory['rows_per_tile']}, and n at least 1")
    if "training" in facts:
        own = facts["training"]
        words = f"tape between forward_train and backward: {size_text(own['bytes'])}"
        yield _bullet("+", f"{words} for T = {own['steps']}, B = {own['batch']}")
        yield _bullet("+", f"of that {own['kept_elements']} numbers per step and row are kept by differentiate, above")
        if "plans" in own:
            yield from _plans(own["plans"])


def plans_text(facts: Figures) -> str:
    """Plans of memory (`memory_plan.py`) as plain text."""
    return _plain(Group(*_plans(facts))).strip("\n")


def _plans(facts: Figures) -> Iterator[RenderableType]:
    yield from _title(f"plans of training's memory for T = {facts['steps']}, B = {facts['batch']}")
    table = plain_table("", "keep", "steps on tape", "parts", "again", "bytes", "with results", "time")
    rows = [*facts["table"], *([facts["chosen"]] if facts["chosen"] not in facts["table"] else [])]
    for row in sorted(rows, key=lambda row: -row["bytes"]):
        chosen = row == facts["chosen"]
        again = f"{row['steps_again'] / max(1, facts['steps']):.0%}"
        sizes = (size_text(row["bytes"]), size_text(row["peak_bytes"]))
        steps = (str(row["segment_steps"]), str(row["segments"]), again)
        table.add_row(">" if chosen else "", row["keep"], *steps, *sizes, f"x {row['relative_time']:.3g}")
    yield Padding(table, (0, 0, 0, 2))
    budget = "no limit" if facts["max_bytes"] is None else f"max_bytes = {facts['max_bytes']}"
    yield _note(f"> {budget}: chosen; bytes: besides what the calls return; again: steps that run forward twice")
    if any(row.get("by_layer_and_direction") and row["segments"] > 1 for row in rows):
        how = "both directions: each layer and direction goes through parts for itself; what it hands on has all steps"
        yield _note(how)


def beside_text(facts: BesideFacts) -> str:
    """Two explanations side by side as plain text."""
    return _plain(beside_page(facts)).rstrip()


def beside_page(facts: BesideFacts) -> RenderableType:
    """A table for each section: a row's name, both values, and of figures the second over the first."""
    return Group(*(_section(section, facts["names"]) for network in facts["networks"] for section in network))


def _section(section: SectionFacts, names: Sequence[str]) -> RenderableType:
    figures = any("ratio" in row for row in section["rows"])
    table = plain_table("", *names, *["ratio"] * figures, title=section["title"])
    for row in section["rows"]:
        ratio = [f"{row['ratio']:.3g}"] if "ratio" in row else []
        table.add_row(Text(row["name"]), *map(Text, row["values"]), *ratio)
    if not section["rows"]:
        table.add_row("nothing")
    return Group(table, "")

"""explain: what a compilation did and why not otherwise, how its steps run, and how far that is from a floor.

In: an RNN, a Model or a module, and a target, from users. Out: an `Explanation`: facts for --json, text by
`text.py`. Reasons are those that passes, templates and the choice of a regime told while they decided
(`decisions.py`); of a module they are in its manifest, so that nothing is decided twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from tvm_rnn.decisions import Decision, recording
from tvm_rnn.dtypes import ITEM_BYTES
from tvm_rnn.errors import ConfigError, message, whole_number
from tvm_rnn.language.cell import Cell
from tvm_rnn.network.model import Model, widened
from tvm_rnn.network.program import NETWORK
from tvm_rnn.network.rnn import RNN
from tvm_rnn.options import asked, pass_names
from tvm_rnn.runtime.runtime import Facts, Module, load, read_container
from tvm_rnn.runtime.runtime_cuda import CudaModule

from .facts import ExplanationFacts, MemoryFacts, NetworkFacts, PassFacts, TrainingFacts
from .work import occupancies, work

if TYPE_CHECKING:
    from tvm_rnn.explain.html.charts import AblationRow
    from tvm_rnn.explain.module import Looked
    from tvm_rnn.options import Options, Products, Tape
    from tvm_rnn.records import Records
    from tvm_rnn.target import Target

STEPS, BATCH = 100, 1  # of the workload whose time is estimated, where the caller names none
CLOSING = ("regime", "wave")  # stages after the passes


@dataclass(frozen=True)
class Explanation:
    """What `explain` found. `str()` is a page of text; `facts` is ready for json.dumps:

    networks: one entry for each, with
        cell, layers, directions, dtype, precision, weights (how they are stored), target, made_for (batch sizes)
        passes: {pass: {"did": [...], "did_not": [...]}}, each with what, why and figures; in order
        phases: what runs in one go, per graph; regimes: who runs the steps, and who does not and why
        templates: schedules with knobs and where they are from; kernels: registers, shared memory, occupancy (GPUs)
        work: per batch size FLOPs, bytes, the floor, the share of it, predicted and measured time
        memory: bytes of weights, packed weights and workspace; training: the tape; regularisers, where there are any
        not_drawn: of a module, why its page has no pictures of equations and graphs, where it has none
    looked: the networks themselves, None where one is not at hand.
    """

    facts: ExplanationFacts
    looked: tuple[Looked | None, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        from .text import text

        return text(self.facts)

    __repr__ = __str__

    def write_html(
        self,
        path: str | os.PathLike[str],
        *,
        command: str = "",
        ablation: Sequence[AblationRow] = (),
        history: Sequence[float | None] = (),
    ) -> None:
        """One self-contained page: what `str()` says, and of a network its equations, graphs, layers over time,
        roofline and generated code. Needs the extra "report".

        command: what the page says that it was made by. ablation: rows with `without` (words) and `us` (microseconds
        per step). history: of tuning, the speed over the defaults by trial, None where a trial failed. Raises
        ConfigError where what it needs is not installed, InputError where the file cannot be written.
        """
        from tvm_rnn.explain.html.page import page
        from tvm_rnn.npy_files import write_whole

        whole = page(self.facts, self.looked, command, ablation, history).encode(errors="replace")
        write_whole({path: lambda file: file.write(whole)})


def explain(
    net_or_module: RNN | Model | Module | str | os.PathLike[str],
    target: str | Target = "llvm",
    *,
    batch: int | Sequence[int] = (),
    steps: int = STEPS,
    precision: str | None = None,
    weights: str | None = None,
    training: bool = False,
    keep: str | None = None,
    max_bytes: int | None = None,
    without: Iterable[str] = (),
    records: Records | str | os.PathLike[str] | None = None,
    measure: bool = False,
    cell: Cell | None = None,
) -> Explanation:
    """What was combined, moved, fused and tiled, why not more, who runs the steps, and how far that is from a floor.

    Args:
        net_or_module: an RNN or a Model, which is taken through all passes and, for GPUs, the choice of regimes,
            without generating code. Or a Module or the path of one, whose manifest says it.
        target: as for `compile`; not for a module, like all up to `records` but `steps` and `max_bytes`.
        batch: batch sizes to optimise for.
        steps: T of the workload that is counted.
        precision: as for `compile`.
        weights: as for `compile`.
        training: with the decisions about forward_train and backward.
        keep: as for `compile`; None: memory is planned for every choice.
        max_bytes: of training: the budget to plan memory for, in bytes.
        without: names of passes to switch off.
        records: as for `compile`.
        measure: compile the network, which tells a GPU's registers, and time what is for this CPU; on a GPU of this
            machine the phases of a step too, by clocks in its persistent kernels.
        cell: of a module, whose file has no equations: the cell that it was made from, for pictures, where the zoo does
            not have it.

    Returns:
        An Explanation: `str()` of it is a page of text.

    Raises:
        ConfigError, CellError, BuildError: as `compile` does.
        LoadError: the file of a module is bad.
    """
    steps = whole_number("explain: steps", steps, 1)
    products: Products = {"precision": precision, "weights": weights, "without": pass_names(without)}
    if isinstance(net_or_module, RNN | Model):
        from tvm_rnn.compiler.compile import compile
        from tvm_rnn.schedule import record_files

        tape: Tape = {"training": training, "keep": keep}
        machine, targets = record_files.machines(target, (), records, lambda line: None)
        source = _of_a_network(net_or_module, asked(machine, targets, batch=batch, **products, **tape))
        if measure:
            compiled = partial(compile, net_or_module, target, batch, records=records, **products, **tape)
            source = source.compiled(compiled()).clocked(compiled, steps)
    else:
        source = _of_a_module(net_or_module, bool(batch or training or any(products.values())), measure)
    plan_all = keep is None and isinstance(net_or_module, RNN)
    return source.explained(_Workload(steps, max_bytes, measure, plan_all), cell)


@dataclass(frozen=True)
class _Workload:
    """What is counted, timed and planned: T; bytes to plan for; whether to time; whether plans are of all choices."""

    steps: int
    max_bytes: int | None
    measure: bool
    plan_all: bool


@dataclass(frozen=True)
class _Source:
    """What is explained: a manifest, or what it would be, and what is at hand of where it is from."""

    manifest: Facts
    looked: Sequence[Looked] = ()
    module: Module | None = None

    def compiled(self, module: Module) -> _Source:
        """With the manifest of the module, and what planning alone knows."""
        planned = {name: self.manifest[name] for name in ("working",) if name in self.manifest}
        return replace(self, manifest={**module.manifest, **planned}, module=module)

    def clocked(self, compiled: Callable[[], Module], steps: int) -> _Source:
        """With what clocks in persistent kernels say, where the module is for a GPU of this machine. compiled: compiles
        the network again."""
        if not isinstance(self.module, CudaModule) or not self.module._fits_here() or "decisions" not in self.manifest:
            return self
        from .phase_clocks import with_clocks

        return replace(
            self, manifest={**self.manifest, "decisions": with_clocks(self.manifest["decisions"], compiled, steps)}
        )

    def explained(self, workload: _Workload, cell: Cell | None) -> Explanation:
        shared = {name: value for name, value in self.manifest.items() if name != "networks"}
        looked: list[Looked | None] = [*self.looked]
        networks = list[NetworkFacts]()
        for number, own in enumerate(self.manifest.get("networks", (self.manifest,))):
            facts, reason = {**shared, **own}, ""
            if number >= len(self.looked):
                remade, reason = _remade(facts, cell)
                looked.append(remade)
            seen = looked[number]
            net, machine = (None, None) if seen is None else (seen.net, seen.machine)
            timed = self.module if workload.measure and "networks" not in self.manifest else None
            network = _network(facts, machine, net, workload.steps, timed)
            if reason:
                network["not_drawn"] = reason
            if "training" in network:
                network["training"] |= _plans(facts, looked[0] if workload.plan_all else None, self.module, workload)
            networks.append(network)
        return Explanation({"networks": networks, "versions": dict(self.manifest["versions"])}, tuple(looked))


def _nothing(model: object) -> ConfigError:
    do = "tvm-rnn inspect FILE says what a module takes and gives"
    return ConfigError(message("explain: no recurrent network is in this model", got=f"{model!r:.80}", do=do))


def _of_a_network(net: RNN | Model, options: Options) -> _Source:
    if isinstance(net, Model) and not net.networks:
        raise _nothing(net)
    manifest, looked = _decided(widened(net, options.precision or None, options.target.kind == "cuda"), options)
    if isinstance(net, Model):
        manifest = {**manifest, "origin": net.origin.facts(), "model": net.program.facts()}
    return _Source(manifest, looked)


def _of_a_module(source: Module | str | os.PathLike[str], options: bool, measure: bool) -> _Source:
    """A module, or a file, which is loaded if it is to be measured. options: whether some were given."""
    if options:
        do = "leave them out, or explain the network it was made from"
        raise ConfigError(message("a module says itself how it was compiled", got="options of compile", do=do))
    from tvm_rnn.cells import ZOO

    if isinstance(source, str) and source in ZOO and not os.path.exists(source):
        do = f"give a network of it: RNN(cells.{source}, input_size, hidden_size)"
        raise ConfigError(message("explain: a cell's name is no network", got=repr(source), do=do))
    if isinstance(source, str | os.PathLike):
        manifest: Facts = read_container(source)[0]
        module = load(source) if measure and manifest["target"]["kind"] == "llvm" else None
    elif isinstance(getattr(source, "manifest", None), Mapping):
        manifest, module = source.manifest, source
    else:
        expected = "an RNN, a Model, a Module or the path of one"
        raise ConfigError(message("explain: this cannot be explained", got=f"{source!r:.80}", expected=expected))
    if manifest.get("networks") == []:
        raise _nothing(source)
    return _Source(manifest, module=module)


def _remade(manifest: Facts, cell: Cell | None) -> tuple[Looked | None, str]:
    """The network that a module was made from, or None and why it has no pictures."""
    from .module import NotDrawn, remade

    try:
        return remade(manifest, cell), ""
    except NotDrawn as why:
        return None, str(why)


def _decided(net: RNN | Model, options: Options) -> tuple[Facts, list[Looked]]:
    """What the manifest would be, all but what generated code adds to it, and the networks."""
    from tvm_rnn.compiler.compile import networks_of
    from tvm_rnn.cpu.lower_network import Lowering
    from tvm_rnn.cpu.training.add_entry_points import add_training
    from tvm_rnn.module_file.schema import plain
    from tvm_rnn.passes.pipeline import passed

    from .module import Looked

    machine = options.target
    found, looked = [], []
    for one in networks_of(net, options):
        own = passed(one, options.of(one.dtype))
        with recording():
            stages = own.stages
            if machine.kind == "cuda":
                from tvm_rnn.cuda import write_module
                from tvm_rnn.cuda.plan import network as plan
                from tvm_rnn.cuda.training import add_entry_points

                programs = [plan.plan(own, machine)]
                trained = [add_entry_points.plan(own, machine)] if options.training else []
                on_gpu = write_module.describe(own, programs, {})
                if trained:
                    add_entry_points.describe(on_gpu, trained, {})
                facts = plain(on_gpu) | ({"working": add_entry_points.working(trained[0], machine)} if trained else {})
            else:
                lowered = Lowering(one, own.layers, own.options).run()
                on_cpu = lowered.describe()
                if options.training:
                    add_training(own, lowered, on_cpu)
                facts = plain(on_cpu)
        found.append(facts)
        looked.append(Looked(one, machine, stages, own.options))
    return (found[0] if len(found) == 1 else {**found[0], "networks": found}), looked


def _network(
    manifest: Facts, machine: Target | None, net: RNN | None, steps: int, module: Module | None
) -> NetworkFacts:
    decisions = [Decision.from_dict({"subject": {}, "facts": {}, **d}) for d in manifest.get("decisions", ())]
    decisions = [d for d in decisions if d.stage != "trace" or "training" not in d.subject]
    variants = manifest.get("variants", ())
    target = dict(manifest["target"], archs=[v["arch"] for v in variants])
    network: NetworkFacts = {
        "cell": manifest["cell"],
        "layers": manifest["num_layers"],
        "directions": manifest["num_directions"],
        "dtype": manifest["dtype"],
        "precision": manifest.get("precision", manifest["dtype"]),
        "weights": manifest.get("weight_dtype") or manifest.get("precision", manifest["dtype"]),
        "target": target,
        "made_for": list(manifest["batch"]),
        "graphs": [list(d.facts["layers"]) for d in decisions if d.stage == "trace"],
        "passes": _passes(decisions, manifest["passes"]),
        "phases": [  # the groups of inference, per graph, in order
            {"graph": d.subject.get("graph", 0), "runs": d.what, "with": d.why, **d.facts}
            for d in decisions
            if _is_phase(d) and "training" not in d.subject
        ],
        "regimes": [d.as_dict() for d in decisions if d.stage in CLOSING],
        "templates": list(manifest["templates"]),
        "kernels": occupancies(variants, machine),
        "work": work(manifest, decisions, machine, net, steps, module),
        "memory": _memory(manifest),
        "told": bool(decisions),
    }
    if {"training", "tape"} & manifest.keys():
        network["training"] = _training(manifest, decisions, steps)
    if "regularisers" in manifest:
        network["regularisers"] = manifest["regularisers"]
    if manifest.get("origin"):
        network["origin"] = manifest["origin"]
    if manifest.get("model"):
        network["around"] = sum(step["op"] != NETWORK for step in manifest["model"]["steps"])
    return network


def _passes(decisions: Sequence[Decision], names: Sequence[str]) -> dict[str, PassFacts]:
    """By pass what it did and what it did not do; of graphs of training only what inference does not say."""
    found: dict[str, PassFacts] = {}
    known = [d.stage for d in decisions if d.stage not in ("trace", *CLOSING)]
    for name in dict.fromkeys((*known, *names)):
        rows = [d for d in decisions if d.stage == name]
        plain = {(d.what, d.why) for d in rows if "training" not in d.subject}
        rows = [d for d in rows if "training" not in d.subject or (d.what, d.why) not in plain]
        did = [d.as_dict() for d in rows if d.done and not _is_phase(d)]
        found[name] = {"did": did, "did_not": [d.as_dict() for d in rows if not d.done]}
    return found


def _is_phase(decision: Decision) -> bool:
    return decision.stage == "fuse_pointwise" and decision.done


def _memory(manifest: Facts) -> MemoryFacts:
    """Bytes that stay for all calls, and for CPUs elements of the workspace by what they grow with."""
    elements, size = sum(prod(item["shape"]) for item in manifest["weights"]), ITEM_BYTES[manifest["dtype"]]
    found: MemoryFacts = {"weight_bytes": elements * size, "parameters": elements}
    if "variants" in manifest:
        found["packed_bytes"] = manifest["variants"][0]["packed_bytes"]
    else:
        found["packed_bytes"] = manifest["packed_elements"] * size
        found["workspace_bytes"] = {name: count * size for name, count in manifest["workspace"].items()}
        found["rows_per_tile"] = manifest["rows_per_tile"]
    return found


def _training(manifest: Facts, decisions: Sequence[Decision], steps: int) -> TrainingFacts:
    """What the tape holds: bytes by what they grow with, and for T = steps. kept_elements: values per step and row of
    all graphs; pass `differentiate` says which, and why not others. Matrices that are kept before some steps
    alone count for less."""
    if "tape" in manifest:  # of a GPU: for each array bytes per row of a step, and steps beyond T
        arrays = [part[:2] for part in manifest["tape"] if len(part) == 2]
        size, tape = 1, {"fixed": 0, "per_row": sum(row * more for row, more in arrays)}
        tape["per_sequence_row"] = sum(row for row, _ in arrays)
        marks = [part for part in manifest["tape"] if len(part) == 4]
        if marks:
            tape |= {"per_mark": sum(part[0] for part in marks), "mark": max(part[3] for part in marks)}
    else:
        size, tape = ITEM_BYTES[manifest["dtype"]], dict(manifest["training"]["tape"])
    mark = tape.pop("mark", 1)
    rows = max(manifest["batch"], default=BATCH)
    of_row = tape["per_row"] + tape["per_sequence_row"] * steps + tape.get("per_mark", 0) * -(-steps // mark)
    whole = tape["fixed"] + of_row * rows
    kept = [d.facts["elements"] for d in decisions if d.stage == "differentiate" and d.done]
    spared = [d.facts["spared"] for d in decisions if "spared" in d.facts]
    return {
        "tape_bytes": {name: count * size for name, count in tape.items()},
        "steps": steps,
        "batch": rows,
        "bytes": whole * size,
        "kept_elements": sum(kept) - sum(spared),
    }


def _plans(manifest: Facts, seen: Looked | None, module: Module | None, workload: _Workload) -> TrainingFacts:
    """The plans of memory (`memory_plan.py`): of a network for every choice of what a tape keeps, of a module for its
    own; none of a module for GPUs that is not on one."""
    from tvm_rnn.passes.keep_choice import names
    from tvm_rnn.runtime.runtime_cuda_training import CudaTrainingModule
    from tvm_rnn.runtime.runtime_memory import check_budget

    from .memory_plan import facts_of, plans_of, sizes_of

    budget, rows, steps = check_budget(workload.max_bytes), max(manifest["batch"], default=BATCH), workload.steps
    own = str(manifest.get("memory", {}).get("keep", "values"))
    if "tape" not in manifest or "working" in manifest:
        sizes = {own: sizes_of(manifest, steps, rows)}
    elif isinstance(module, CudaTrainingModule) and module._devices:
        sizes = {own: module.memory_sizes(steps, rows)}
    else:
        return {}
    if seen is not None and seen.options is not None:
        kinds = [kind for kind in names(seen.net.dtype, seen.machine.kind) if kind != own]
        sizes |= {kind: sizes_of(facts_of(seen.net, seen.options, kind), steps, rows) for kind in kinds}
    return {"plans": plans_of(sizes, budget).facts()}

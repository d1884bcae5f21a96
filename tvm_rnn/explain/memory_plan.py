"""plan_memory: what training of a network takes before anything is compiled, for every choice of what its tape keeps.

In: an RNN, a target, T and B, and a budget. Out: `MemoryPlans`: the plans worth having, of all choices of `keep` and
all lengths of a segment (`runtime_memory.py`), and the fastest that fits. Also for `explain`, of a network or of the
manifest of a module, which has one choice.

What counts: everything that forward_train and backward allocate together, from the first call until the second has
returned, besides what they return: the tape (inputs of all layers, states before each step, kept values), states
between segments, the working memory of the hungrier of both, sums over steps. Weights, packed for products, are the
module's and stay. What counts as time: on CPUs FLOPs of both calls; on GPUs that of a step, in which products outside
of the loop count less, and what each start of a program takes (`runtime_cuda_training.times`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tvm_rnn.dtypes import precision_name
from tvm_rnn.errors import whole_number
from tvm_rnn.module_file.schema import plain
from tvm_rnn.options import Options, pass_names
from tvm_rnn.passes import keep_choice
from tvm_rnn.runtime.runtime_cuda_training import sizes_of as sizes_on_gpu
from tvm_rnn.runtime.runtime_memory import MemoryPlan, Sizes, check_budget, fastest, plan_of, smallest, table
from tvm_rnn.runtime.runtime_training import sizes_of as sizes_on_cpu

if TYPE_CHECKING:
    import os

    from tvm_rnn.network.rnn import RNN
    from tvm_rnn.records import Records
    from tvm_rnn.target import Target


@dataclass(frozen=True)
class Choice:
    """A plan of a module that keeps `keep`. plan.time is relative to the fastest plan of all choices."""

    keep: str
    plan: MemoryPlan

    def facts(self) -> dict[str, object]:
        """Ready for json.dumps."""
        return {"keep": self.keep, **self.plan.facts()}


@dataclass(frozen=True)
class MemoryPlans:
    """steps, batch: T and B. table: from the fastest to the smallest, each smaller than those before. chosen: the
    fastest within max_bytes. `str()` is a table for people, `facts()` ready for json.dumps."""

    steps: int
    batch: int
    max_bytes: int | None
    table: tuple[Choice, ...]
    chosen: Choice

    def facts(self) -> dict[str, Any]:
        """Ready for json.dumps."""
        found = {"steps": self.steps, "batch": self.batch, "max_bytes": self.max_bytes, "chosen": self.chosen.facts()}
        return {**found, "table": [row.facts() for row in self.table]}

    def __str__(self) -> str:
        from .text import plans_text

        return plans_text(self.facts())


def plan_memory(
    net: RNN,
    target: str | Target = "llvm",
    *,
    steps: int,
    batch: int,
    max_bytes: int | None = None,
    keep: str | None = None,
    precision: str | None = None,
    without: Iterable[str] = (),
    records: Records | str | os.PathLike[str] | None = None,
) -> MemoryPlans:
    """How training may trade memory for time: predicted bytes and relative time of each plan.

    Use the result so: `mod = compile(net, target, batch, training=True, keep=plans.chosen.keep); mod.max_bytes =
    max_bytes`.

    Args:
        net: the RNN to train.
        target: as for `compile`.
        steps: T of a call.
        batch: B of a call.
        max_bytes: the budget, in bytes, of what `forward_train` and `backward` take together besides what they return;
            None: no limit.
        keep: only that choice of what forward_train leaves, as for `compile`; None: all.
        precision: as for `compile`.
        without: names of passes to switch off.
        records: as for `compile`.

    Returns:
        MemoryPlans: a table from the fastest to the smallest, and the fastest that fits.

    Raises:
        ConfigError: an argument is wrong.
        InputError: no plan fits; it says the smallest number of bytes that is possible.
    """
    from tvm_rnn.cpu.training.add_entry_points import check_training
    from tvm_rnn.schedule import record_files

    for name, value in (("steps", steps), ("batch", batch)):
        whole_number(f"plan_memory: {name}", value, 1)
    machine, _ = record_files.machines(target, (), records, lambda line: None)
    check_training(net)
    if keep is not None:
        keep_choice.check(keep, net.dtype, machine.kind)
    kinds = [keep] if keep else keep_choice.names(net.dtype, machine.kind)
    options = Options(machine, (batch,), pass_names(without), precision_name(net.dtype, precision))
    budget = check_budget(max_bytes)
    found = {kind: facts_of(net, options, kind) for kind in kinds}
    return plans_of({kind: sizes_of(facts, steps, batch) for kind, facts in found.items()}, budget)


def plans_of(sizes: Mapping[str, Sizes], budget: int | None) -> MemoryPlans:
    """Of what calls take, by what their tapes keep."""
    steps, batch = next((own.steps, own.batch) for own in sizes.values())
    unit = min(own.forward + own.backward for own in sizes.values())
    rows = [_timed(keep, own, plan, unit) for keep, own in sizes.items() for plan in table(own)]
    costs = [(row.plan.time, row.plan.bytes) for row in rows]
    # Plans for which something speaks beside every other.
    best = [
        row
        for row, own in zip(rows, costs, strict=True)
        if not any(other != own and other[0] <= own[0] and other[1] <= own[1] for other in costs)
    ]
    best.sort(key=lambda row: (row.plan.time, row.plan.bytes))
    fitting = [
        _timed(keep, own, fastest(own, budget), unit)
        for keep, own in sizes.items()
        if budget is None or min(smallest(own).bytes, plan_of(own, steps).bytes) <= budget
    ]
    if not fitting:
        least = min(sizes.values(), key=lambda own: smallest(own).bytes)
        fastest(least, budget)  # which says what is possible
    chosen = min(fitting, key=lambda row: (row.plan.time, row.plan.bytes))
    return MemoryPlans(steps, batch, budget, tuple(best), chosen)


def _timed(keep: str, sizes: Sizes, plan: MemoryPlan, unit: float) -> Choice:
    own = sizes.forward + sizes.backward
    return Choice(keep, replace(plan, time=plan.time * own / unit if unit else plan.time))


def sizes_of(manifest: Mapping[str, Any], steps: int, batch: int) -> Sizes:
    """What calls take of a module that has this manifest. That of one for GPUs has "working": bytes of a program's
    working memory, by its name, for (steps, batch)."""
    if "tape" not in manifest:
        return sizes_on_cpu(manifest, steps, batch)
    working = manifest["working"]
    return sizes_on_gpu(manifest, steps, batch, False, lambda way, own: working[way](own, batch))


# --- of a network ----------------------------------------------------------------------------------------------------


def facts_of(net: RNN, options: Options, keep: str) -> dict[str, Any]:
    """What the manifest would say of the memory of training, without generating code."""
    from tvm_rnn.cpu.training.add_entry_points import planned
    from tvm_rnn.decisions import recording
    from tvm_rnn.module_file.facts import common_facts
    from tvm_rnn.passes.pipeline import passed

    with recording(False):
        facts = plain(common_facts(net, options.target, options.batches, options.without))
        if options.target.kind == "cuda":
            from tvm_rnn.cuda.training import add_entry_points
            from tvm_rnn.module_file.facts import memory_facts

            trained = add_entry_points.plan(passed(net, replace(options, training=keep)), options.target)
            memory = memory_facts(net, trained.layers, trained.training)
            working = add_entry_points.working(trained, options.target)
            return facts | {"tape": trained.forward.tape.sizes(), "memory": plain(memory), "working": working}
        training, memory = planned(passed(net, options), keep)
        return facts | {"training": plain(training), "memory": plain(memory)}

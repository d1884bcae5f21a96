"""What a network's work takes: FLOPs, bytes, the least time for both, what the model predicts, what was measured.

In: a manifest, the decisions that it holds, and where there is one the network, the target and a module that runs here.
Out: a row per batch size for `explanation.py`, and how full each kernel makes a GPU's multiprocessors.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn import this_machine
from tvm_rnn.bench.measure.floors import DATA_SHEETS, floor_us, shares
from tvm_rnn.decisions import Decision, Figures
from tvm_rnn.dtypes import ITEM_BYTES

from .facts import GroupFacts, KernelFacts, WorkFacts

MOST_SPREAD = 0.2  # of tries that measure one rate

if TYPE_CHECKING:
    from tvm_rnn.network.rnn import RNN
    from tvm_rnn.runtime.runtime import Module
    from tvm_rnn.target import Target

ITEM = {**ITEM_BYTES, "tf32": 4, "int8": 1, "float8_e4m3": 1}
ROUNDS, SECONDS = 7, 0.05  # of a measurement: the median of so many, each at least so long
# Of a multiprocessor, of every compute capability from 8.0 on but for threads, 1536 of 8.6 and 8.9; shared memory that
# the system takes of each block. Source: CUDA C++ Programming Guide, technical specifications.
THREADS, FEWER_THREADS, FEW = 2048, 1536, ("sm_86", "sm_89")
SYSTEM_BYTES = 1024


def work(
    manifest: Figures,
    decisions: Sequence[Decision],
    machine: Target | None,
    net: RNN | None,
    steps: int,
    module: Module | None = None,
) -> list[WorkFacts]:
    """A row per batch size that the module is made for (none named: 1): of the whole sequence of T = steps.

    flops, bytes (inputs, outputs and weights, each moved once), step_bytes (matrices of products that every step
    reads, where they do not stay on the chip); floor_us for each reason, by `ceilings`, and where they are from;
    predicted_us by the model behind regimes; measured_us, by a record or measured now; share of the floor. Where blocks
    of a GPU exchange values in every step: exchanges of one step, and in_turn_us, what all of them take at least.
    """
    found = []
    for batch in manifest["batch"] or (1,):
        row = _counted(manifest, decisions, batch, steps)
        row["ceilings"], row["ceilings_from"] = _ceilings(manifest, machine, row)
        predicted = _predicted(manifest, decisions, batch)
        if predicted:
            row["predicted_us"] = predicted * steps
        row |= _in_turn(manifest, decisions, batch, steps)
        if machine is not None and machine.kind == "llvm":
            row["l2_bytes"] = machine.l2_bytes
        row |= _measured(manifest, machine, net, module, batch, steps)
        if row["ceilings"]:
            row["floor_us"] = floor_us(row, row["ceilings"])
            timed = row.get("measured_us") or row.get("predicted_us")
            parts = shares({**row, "us": timed}, row["ceilings"])
            if parts:
                row |= {"byte_share": parts["byte_share"], "share": parts["share"]}
            if "flop_share" in parts:
                row["flop_share"] = parts["flop_share"]
        found.append(row)
    return found


def _counted(manifest: Figures, decisions: Sequence[Decision], batch: int, steps: int) -> WorkFacts:
    size, directions = ITEM[manifest["dtype"]], manifest["num_directions"]
    stored = ITEM.get(manifest.get("weight_dtype", ""), size)
    row = sum(int(np.prod(item["shape"])) for item in manifest["inputs"])
    row += directions * int(np.prod(manifest["output"]["shape"]))
    own = sum(int(np.prod(item["shape"])) for item in manifest["weights"])
    each = _step_elements(manifest, decisions) * stored
    kept = any(d.done and d.stage in ("regime", "wave") and d.what != "step by step" for d in decisions)
    again = 0 if kept else each * (steps - 1) if "variants" not in manifest else 0
    return {
        "batch": batch,
        "steps": steps,
        "precision": manifest.get("precision", manifest["dtype"]),
        "flops": manifest["flops_per_row"] * batch * steps,
        "bytes": row * size * batch * steps + own * stored + again,
        "step_bytes": 0 if kept else each,
        "kernels": _groups(decisions, manifest, (batch, steps), kept, (size, stored)),
    }


def _times(manifest: Figures, decisions: Sequence[Decision], own: Decision) -> int:
    """How many layers and directions have the graph that a decision is about."""
    layers = {d.subject.get("graph", 0): len(d.facts["layers"]) for d in decisions if "layers" in d.facts}
    return int(layers.get(own.subject.get("graph", 0), 1) * manifest["num_directions"])


def _groups(
    decisions: Sequence[Decision], manifest: Figures, work: tuple[int, int], kept: bool, sizes: tuple[int, int]
) -> list[GroupFacts]:
    """FLOPs and bytes of each group over the whole sequence: what it reads and stores for each row and step, and its
    matrices once, or in every step where they do not stay on the chip. work: batch, steps."""
    groups, (batch, steps) = list[GroupFacts](), work
    for d in decisions:
        if d.stage == "fuse_pointwise" and d.done and "flops" in d.facts and "training" not in d.subject:
            times = _times(manifest, decisions, d)
            again = steps if d.facts["region"] == "step" and not kept else 1
            moved = d.facts["moved_elements"] * sizes[0] * batch * steps
            moved += d.facts.get("weight_elements", 0) * sizes[1] * again
            groups.append({"name": d.what, "flops": d.facts["flops"] * batch * steps * times, "bytes": moved * times})
    return groups


def _step_elements(manifest: Figures, decisions: Sequence[Decision]) -> int:
    """Elements of the matrices of products within the loop, of all layers and directions."""
    groups = [d for d in decisions if d.stage == "fuse_pointwise" and "training" not in d.subject]
    inside = [d for d in groups if d.facts.get("region") == "step" and "weight_elements" in d.facts]
    return sum(d.facts["weight_elements"] * _times(manifest, decisions, d) for d in inside)


def _ceilings(manifest: Figures, machine: Target | None, row: WorkFacts) -> tuple[Mapping[str, float], str]:
    """What the device does at best: a GPU's data sheet; this CPU's rates, measured with what a step reads."""
    name = (manifest.get("variants") or [manifest])[0]["target"]
    if "variants" in manifest:
        return (DATA_SHEETS[name], f"data sheet of {name}") if name in DATA_SHEETS else ({}, "")
    if machine is None or machine.name != "llvm":
        return {}, ""
    from tvm_rnn.bench.run.cpu_suite import ceilings_of

    found = ceilings_of(row["precision"], int(row["step_bytes"] or row["bytes"]), 1)
    return found, measured_text(found, this_machine.cpus())


def measured_text(ceilings: Mapping[str, float], cpus: int) -> str:
    """How ceilings were measured, with a warning where this machine had other work, so that they are too low."""
    load, spread = ceilings["load"], ceilings["spread"]
    text = f"measured here, one thread; load average {load:.1f} on {cpus} CPUs, tries differ by {spread:.0%}"
    return f"{text}; warning: this machine is busy, they are too low" if load >= cpus or spread > MOST_SPREAD else text


def _predicted(manifest: Figures, decisions: Sequence[Decision], batch: int) -> float | None:
    """Microseconds of one step of all layers, by the model; None where it has nothing to say."""
    for d in decisions:
        if d.stage == "wave" and d.done and d.subject.get("batch") == batch:
            return float(d.facts["predicted_us"])
    layers = [d for d in decisions if d.stage == "trace" and "layers" in d.facts]
    total = 0.0
    for layer in layers:
        number = layer.subject.get("graph", 0)
        own = [
            d.facts["predicted_us"]
            for d in decisions
            if d.done and d.stage == "regime" and d.subject.get("graph") == number
            if d.subject.get("batch") == batch and "predicted_us" in d.facts
        ]
        if not own:
            return None
        total += own[0] * len(layer.facts["layers"]) * manifest["num_directions"]
    return total or None


def _in_turn(manifest: Figures, decisions: Sequence[Decision], batch: int, steps: int) -> WorkFacts:
    """The exchanges that follow each other: those of the layers' steps, which take turns but in a wave."""
    done = [d for d in decisions if d.done and d.stage in ("regime", "wave") and d.subject.get("batch") == batch]
    waves = [(1, d.facts) for d in done if d.stage == "wave"]
    own = waves or [(_times(manifest, decisions, d), d.facts) for d in done if "exchange_us" in d.facts]
    if not all("exchange_us" in facts for _, facts in own) or not own:
        return {}
    return {
        "exchanges": sum(count * facts["exchanges"] for count, facts in own),
        "in_turn_us": sum(count * facts["exchange_us"] for count, facts in own) * steps,
    }


def _measured(
    manifest: Figures, machine: Target | None, net: RNN | None, module: Module | None, batch: int, steps: int
) -> WorkFacts:
    """measured_us of the sequence and where it is from: this moment, or a record of the same network and batch."""
    if module is not None and "variants" not in manifest and module.manifest["target"]["kind"] == "llvm":
        return {"measured_us": _time(module, batch, steps), "measured_by": "this run, one thread"}
    if net is None or machine is None:
        return {}
    from tvm_rnn.tune.workload import Workload

    wanted = Workload(net, steps, batch, manifest.get("precision", manifest["dtype"])).facts
    same = [r for r in machine.records.records if {**r.workload, "steps": steps} == wanted and r.workload.get("steps")]
    if not same:
        return {}
    nearest = min(same, key=lambda r: abs(r.workload["steps"] - steps))
    where = f"record of {nearest.date[:10]}, T = {nearest.workload['steps']}"
    return {"measured_us": nearest.median_us / nearest.workload["steps"] * steps, "measured_by": where}


def _time(module: Module, batch: int, steps: int) -> float:
    """The median of rounds of calls on one thread, as the floor is one thread's, microseconds of CPU time."""
    threads, module.threads = module.threads, 1
    dtype, rng = module.manifest["dtype"], np.random.default_rng(0)
    if not getattr(module, "weights", None):
        shapes = {item["name"]: item["shape"] for item in module.manifest["weights"]}
        module.load_weights({name: rng.normal(0, 0.05, shape).astype(dtype) for name, shape in shapes.items()})
    lead = (batch, steps) if module.batch_first else (steps, batch)
    x = {i["name"]: rng.normal(size=(*lead, *i["shape"])).astype(dtype) for i in module.manifest["inputs"]}
    held = {s["name"]: s["shapes"][0] for s in module.manifest["states"] if s.get("constant")}
    x |= {name: rng.normal(size=(batch, *shape)).astype(dtype) for name, shape in held.items()}
    rounds = []
    for _ in range(ROUNDS):
        begun, calls = time.process_time(), 0
        while time.process_time() - begun < SECONDS or not calls:
            module(x)
            calls += 1
        rounds.append((time.process_time() - begun) / calls)
    module.threads = threads
    return median(rounds) * 1e6


def occupancies(variants: Sequence[Figures], machine: Target | None) -> list[KernelFacts]:
    """Each kernel of a GPU with its occupancy: the part of a multiprocessor's threads that it can fill, and what is
    short first: "registers", "shared memory" or "threads"."""
    from tvm_rnn.target import GPUS

    kernels = list[KernelFacts]()
    for variant in variants:
        gpu = machine if machine is not None and machine.arch == variant["arch"] else GPUS.get(variant["target"])
        for row in variant["kernels"]:
            kernel = KernelFacts(arch=variant["arch"])
            kernel.update(row)
            if gpu is not None and row.get("threads"):
                kernel.update(occupancy(row, gpu))
            kernels.append(kernel)
    return kernels


def occupancy(row: Figures, gpu: Target) -> KernelFacts:
    """Blocks of a kernel that one multiprocessor holds, its occupancy, and what limits it."""
    threads, most = row["threads"], FEWER_THREADS if gpu.arch in FEW else THREADS
    shared = row["shared_bytes"] + row.get("dynamic_shared_bytes", 0)
    warps = -(-threads // 32)
    taken = -(-row["registers"] * 32 // 256) * 256 * warps  # registers are given out to warps, 256 at a time
    limits = {
        "registers": gpu.registers // max(1, taken),
        "shared memory": gpu.sm_shared_bytes // (shared + SYSTEM_BYTES),
        "threads": most // (warps * 32),
    }
    limit = min(limits, key=lambda name: limits[name])
    blocks = limits[limit]
    return {"blocks_per_sm": blocks, "occupancy": round(blocks * warps * 32 / most, 3), "limited_by": limit}

"""Products with parameters on a GPU: a gemm group as kernels, with its pointwise work fused in.

In: a group and where its values lie. Out: `Gemm`: kernels for many and few rows, aligned and unaligned operands, the
order in which they take pointers, and how the weights must be packed for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.cuda.layer.packed_layout import Fragments, Lanes, Pack
from tvm_rnn.cuda.layer.pointers import Argument, Place, arithmetic, storage
from tvm_rnn.graph.graph import Group, Node
from tvm_rnn.schedule.schedule_template import Config, Unit, best
from tvm_rnn.target import Target

from .epilogue import Epilogue, read_nodes
from .ffma import LanesTile, lanes_kernel
from .ffma_split_k import SharedLanesTile, shared_lanes_kernel
from .mma_sync import MmaTile, mma_kernel
from .operands import Operand
from .operands import operands as resolve
from .problem import Problem
from .wgmma import WgmmaTile, wgmma_kernel
from .wgmma_split_k import SplitTile, split_kernel

__all__ = ["Argument", "Gemm", "Pack", "Place", "Variant", "gemm", "unit_of"]

TENSOR = ("float16", "bfloat16", "tf32")


@dataclass(frozen=True)
class Variant:
    """One kernel. condition: C++, in the arguments' names and `rows`."""

    kernel: Kernel
    condition: str


@dataclass(frozen=True)
class Gemm:
    """Kernels that take `arguments` and then rows (int64); the first whose condition holds is the one to launch."""

    variants: tuple[Variant, ...]
    packs: tuple[Pack, ...]
    arguments: tuple[Argument, ...]
    unit: Unit
    template: str
    knobs: Config
    record: str  # where the knobs are from


def gemm(
    name: str,
    group: Group,
    *,
    precision: str,
    target: Target,
    operands: Callable[[Node], Place | None],
    reads: Callable[[Node], Place | None],
    writes: Callable[[Node], Sequence[Place]],
    batches: tuple[int, ...] = (),
    record: Mapping[str, int] | None = None,
) -> Gemm:
    """Kernels for a gemm group.

    operands: how products read the values below their left operands; reads: how the epilogue reads a value (None: it
    is computed from others); writes: where a stored value goes. batches: numbers of rows to expect in a step.
    record: knob values in place of the template's own.
    """
    root = group.root
    assert root is not None and root.op == "gemm"
    unit = unit_of(group, precision, batches)
    template, knobs, source = best(unit, target, record)
    found = tuple(resolve(root, operands))
    arguments, pointers, epilogue = _arguments(group, precision, found, reads, writes)
    if precision in TENSOR:
        layout: Fragments | Lanes = Fragments(
            unit.gates, unit.width, storage(precision), knobs["span"], knobs["widest"]
        )
    else:
        layout = Lanes(unit.gates, unit.width, precision, knobs["units"])
    problem = Problem(precision, storage(precision), found, layout, epilogue, pointers)
    packs = tuple(layout.pack(weight, precision == "tf32") for weight in root.args[::2])
    return Gemm(_variants(name, problem, knobs), packs, arguments, unit, template.name, knobs, source)


def unit_of(group: Group, precision: str, batches: tuple[int, ...]) -> Unit:
    """What templates are asked about."""
    root = group.root
    assert root is not None
    gates = root.shape[0] if len(root.shape) == 2 else 1
    depths = tuple(a.shape[0] for a in root.args[1::2])
    return Unit("gemm", group.region, precision, gates, root.shape[-1], depths, len(group.nodes), batches)


def _arguments(
    group: Group,
    precision: str,
    found: Sequence[Operand],
    reads: Callable[[Node], Place | None],
    writes: Callable[[Node], Sequence[Place]],
) -> tuple[tuple[Argument, ...], tuple[tuple[str, str], ...], Epilogue]:
    """Pointers in order: packed weights, left operands, what the epilogue reads, what it writes."""
    root = group.root
    assert root is not None
    listed: list[tuple[Argument, str]] = []
    for number, weight in enumerate(root.args[::2]):
        listed.append((Argument(f"w{number}", "weight", weight, number), storage(precision)))
    for number, operand in enumerate(found):
        listed.append((Argument(operand.name, "operand", operand.base, number), operand.place.dtype))
    read = read_nodes(group, reads)
    for node, place in read.items():
        listed.append((Argument(f"r{len(listed)}", "read", node), place.dtype))
    written = {node: tuple(writes(node)) for node in group.stored}
    for node, places in written.items():
        for number, place in enumerate(places):
            listed.append((Argument(f"y{len(listed)}", "write", node, number), place.dtype))
    names = {(a.role, a.node, a.number): a.name for a, _ in listed}
    epilogue = Epilogue(group, arithmetic(precision), read, written, names)
    return tuple(a for a, _ in listed), tuple((a.name, dtype) for a, dtype in listed), epilogue


def _variants(name: str, problem: Problem, knobs: Config) -> tuple[Variant, ...]:
    """The kernel for few rows first, then the fastest for many, then the one that takes any operands."""
    found = _shared(name, problem, knobs)
    if knobs["few"]:
        found.append(Variant(_kernel(f"{name}_few", problem, knobs, "few"), f"rows <= {knobs['few']}"))
    if knobs.get("wide_columns") and all(o.piece(problem.compute) for o in problem.operands):
        tile = WgmmaTile(*(knobs[f"wide_{k}"] for k in ("columns", "stages", "cluster", "blocks")))
        aligned = _aligned(problem)
        if knobs["mid"] > knobs["wide"]:
            narrow = replace(tile, columns=tile.columns // 2, stages=6, cluster=1)
            condition = f"rows >= {knobs['wide']} && rows < {knobs['mid']}{aligned}"
            found.append(Variant(wgmma_kernel(f"{name}_mid", problem, narrow), condition))
        found.append(Variant(wgmma_kernel(f"{name}_wide", problem, tile), f"rows >= {knobs['wide']}{aligned}"))
    return (*found, Variant(_kernel(f"{name}_many", problem, knobs, "many"), "true"))


def _aligned(problem: Problem) -> str:
    return "".join(f" && ((uintptr_t){o.name} & {o.piece(problem.compute) - 1}) == 0" for o in problem.operands)


def _shared(name: str, problem: Problem, knobs: Config) -> list[Variant]:
    """Kernels for large steps: one per 64 rows up to knobs["share"], of those that fit."""
    found: list[Variant] = []
    if isinstance(problem.layout, Lanes):
        return _shared_lanes(name, problem, problem.layout, knobs)
    if not all(o.rows_of(problem.compute) for o in problem.operands):
        return found
    for high in range(1, knobs.get("share", 0) // 64 + 1):
        columns, along, cluster, kept, overlap = (
            knobs[f"share_{k}"] for k in ("columns", "along", "cluster", "kept", "overlap")
        )
        tile = SplitTile(columns, high, along, cluster, kept=kept, overlap=0 < overlap <= high)
        tile = replace(tile, stages=knobs["share_bytes"] // (tile.stage_bytes + 16))
        if not tile.fits:  # so many rows are the other kernels'
            continue
        condition = f"rows > {64 * (high - 1) or knobs['share_from']} && rows <= {64 * high}{_aligned(problem)}"
        found.append(Variant(split_kernel(f"{name}_share{high}", problem, tile), condition))
    return found


def _shared_lanes(name: str, problem: Problem, layout: Lanes, knobs: Config) -> list[Variant]:
    if not knobs.get("share"):
        return []
    high, split, cluster, stages = (knobs[f"share_{k}"] for k in ("high", "split", "cluster", "stages"))
    tile = SharedLanesTile(64, split, stages, cluster=cluster, across=8, high=high, groups=layout.groups)
    condition = f"rows > {knobs['share_from']} && rows <= {knobs['share']}"
    return [Variant(shared_lanes_kernel(f"{name}_share", problem, tile), condition)]


def _kernel(name: str, problem: Problem, knobs: Config, size: str) -> Kernel:
    rows, split, stages = (knobs[f"{size}_{k}"] for k in ("rows", "split", "stages"))
    overlap, pace, blocks = size == "few" and knobs["overlap"] == 1, knobs[f"{size}_pace"], knobs[f"{size}_blocks"]
    if isinstance(problem.layout, Lanes):
        across, high = knobs[f"{size}_across"], knobs[f"{size}_high"]
        width = 8 if problem.compute == "float64" else 4
        shape = {"across": across, "high": high, "groups": problem.layout.groups, "size": width}
        lanes = LanesTile(rows, split, stages, overlap=overlap, blocks=blocks, pace=pace, **shape)
        return lanes_kernel(name, problem, lanes)
    shape = {k: knobs[f"{size}_{k}"] for k in ("columns", "warps", "along", "cluster")}
    return mma_kernel(name, problem, MmaTile(rows, split, stages, overlap=overlap, blocks=blocks, pace=pace, **shape))

"""Products with parameters on a GPU: a gemm group as kernels, with its pointwise work fused in.

In: a group and where its values lie. Out: `Gemm`: kernels for many and few rows, aligned and unaligned operands, the
order in which they take pointers, and how the weights must be packed for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer
from tvm_rnn.cuda.layer.packed_layout import SIZES, Fragments, Lanes, Pack, ceil_div, of_members
from tvm_rnn.cuda.layer.pipeline_barriers import LEAST_STAGES
from tvm_rnn.cuda.layer.pointers import Argument, storage
from tvm_rnn.cuda.layer.row_kernels import Reads, Writes
from tvm_rnn.graph.graph import Group, Node, make
from tvm_rnn.graph.ops import GEMMS
from tvm_rnn.schedule.schedule_template import Config, Unit, best
from tvm_rnn.target import HOPPER, Target

from .cp_async_pipeline import GemmBody, GemmTile
from .ffma import LanesGemm, LanesSplitK, LanesSplitKTile, LanesTile
from .later_stores import words_of
from .mma_sync import MmaGemm, MmaTile
from .operands import Operand
from .operands import operands as resolve
from .problem import Problem, read_nodes
from .wgmma import WgmmaGemm, WgmmaTile
from .wgmma_split_k import SplitKTile, WgmmaSplitKGemm

TENSOR = ("float16", "bfloat16", "tf32")
# Of kernels that may be given a list of rows, and what they are given of it (`rowwise/live_rows.py`).
LIST_POINTERS, LIST_SCALARS = (("live", "int32"), ("starts", "int32")), (("first", "int32"), ("steps", "int32"))


@dataclass(frozen=True)
class Variant:
    """One kernel. least, most: rows that it takes, None: any number. further: what else must hold, in C++, of the
    arguments' names and `given`. listed: it works on a list of rows."""

    kernel: Kernel
    least: int = 0
    most: int | None = None
    further: tuple[str, ...] = ()
    listed: bool = False

    @property
    def condition(self) -> str:
        """C++, in `rows` too."""
        least = [f"rows >= {self.least}"] if self.least else []
        most = [] if self.most is None else [f"rows <= {self.most}"]
        return " && ".join([*least, *most, *self.further]) or "true"


@dataclass(frozen=True)
class Gemm:
    """Kernels that take `arguments` and then rows (int64), and `given` (int32, see `Problem`) where they have it; the
    first whose condition holds is the one to launch."""

    variants: tuple[Variant, ...]
    packs: tuple[Pack, ...]
    arguments: tuple[Argument, ...]
    unit: Unit
    template: str
    knobs: Config
    record: str  # where the knobs are from
    given: bool = False

    @property
    def listed_from(self) -> int | None:
        """From so many rows on every kernel may be given a list of rows, if operands are aligned; None: none is."""
        first = next((n for n, v in enumerate(self.variants) if v.listed), None)
        if first is None:
            return None
        return max(self.variants[first].least, *(1 + (v.most or 0) for v in self.variants[:first]), 1)


def gemm(
    name: str,
    group: Group,
    *,
    precision: str,
    target: Target,
    operands: Reads,
    reads: Reads,
    writes: Writes,
    batches: tuple[int, ...] = (),
    record: Mapping[str, int] | None = None,
    few: bool = False,
    opens: bool = False,
    given: bool = False,
    chained: bool = False,
    listed: bool = False,
) -> Gemm:
    """Kernels for a gemm group.

    operands: how products read the values below their left operands; reads: how the epilogue reads a value (None: it
    is computed from others); writes: where a stored value goes. batches: numbers of rows to expect in a step.
    record: knob values in place of the template's own. few: calls of few rows matter whatever the region, as where no
    steps are left: decoding is a call of one step. opens, given, chained, listed: see `Problem`.
    """
    root = group.root
    assert root is not None and root.op in GEMMS
    unit = unit_of(group, precision, batches)
    template, knobs, source = best(unit, target, record)
    knobs = {**knobs, "few": knobs["few"] or knobs["few_rows"]} if few else knobs
    if precision in TENSOR:
        sizes = unit.gates, unit.width, storage(precision)
        layout: Fragments | Lanes = Fragments(*sizes, knobs["span"], knobs["widest"])
    else:
        layout = Lanes(unit.gates, unit.width, precision, knobs["units"])
    arguments, problem = _problem(group, precision, layout, tuple(resolve(root, operands)), (reads, writes))
    packs = tuple(_packed(layout, weight, precision == "tf32", problem.members) for weight in root.args[::2])
    each = tuple(pack.elements // max(problem.members, 1) for pack in packs)
    problem = replace(problem, packed=each, opens=opens, given=given, chained=chained, listed=listed)
    if problem.members:  # there are so many times more tiles
        fewer = {size: knobs.get(size, 0) // problem.members for size in ("slim", "mid")}
        knobs = {**knobs, **fewer, "tall": 0, "taller": 0}
    return Gemm(_variants(name, problem, knobs), packs, arguments, unit, template.name, knobs, source, given)


def multiplies_early(before: Group, group: Group, states: Sequence[Node], precision: str, target: Target) -> bool:
    """Whether a tile's first step multiplies what is there before the tile, beside the hoisted products: these are the
    launch before, which lets it begin."""
    if target.arch != HOPPER or precision not in TENSOR or group.root is None:
        return False
    hoisted = before.kind == group.kind == "gemm" and before.region == "before" and group.region == "step"
    return hoisted and {*group.root.args[1::2]} <= {*states}


def unit_of(group: Group, precision: str, batches: tuple[int, ...]) -> Unit:
    """What templates are asked about."""
    root = group.root
    assert root is not None
    gates = root.shape[-2] if len(root.shape) > len(root.args[1].shape) else 1
    depths = tuple(a.shape[-1] for a in root.args[1::2])
    return Unit("gemm", group.region, precision, gates, root.shape[-1], depths, len(group.nodes), batches)


def _problem(
    group: Group, precision: str, layout: Fragments | Lanes, found: tuple[Operand, ...], places: tuple[Reads, Writes]
) -> tuple[tuple[Argument, ...], Problem]:
    """Pointers in order: packed weights, left operands, what the epilogue reads, what it writes."""
    root = group.root
    assert root is not None
    listed = [(Argument(f"w{n}", "weight", one, n), storage(precision)) for n, one in enumerate(root.args[::2])]
    listed += [(Argument(one.name, "operand", one.base, n), one.place.dtype) for n, one in enumerate(found)]
    read = read_nodes(group, places[0])
    listed += [(Argument(f"r{i}", "read", n), place.dtype) for i, (n, place) in enumerate(read.items(), len(listed))]
    written = {node: tuple(places[1](node)) for node in group.stored}
    pairs = [(node, number, place) for node, own in written.items() for number, place in enumerate(own)]
    listed += [(Argument(f"y{i}", "write", n, k), p.dtype) for i, (n, k, p) in enumerate(pairs, len(listed))]
    arguments, names = tuple(a for a, _ in listed), {(a.role, a.node, a.number): a.name for a, _ in listed}
    pointers = tuple((a.name, dtype) for a, dtype in listed)
    members = root.shape[0] if root.op == "batched_gemm" else 0
    return arguments, Problem(precision, group, found, layout, read, written, names, pointers, members=members)


def _packed(layout: Fragments | Lanes, weight: Node, tf32: bool, members: int) -> Pack:
    if not members:
        return layout.pack(weight, tf32)
    return of_members(layout.pack(make("index", weight, axis=-len(weight.shape), at=0), tf32), weight)


Tile = TypeVar("Tile", bound=GemmTile)


def _written(name: str, problem: Problem, tile: Tile, body: Callable[[Writer, Problem, Tile], GemmBody]) -> Kernel:
    scalars = [("rows", "int64"), ("given", "int32")][: 1 + problem.given]
    lists = (LIST_POINTERS, LIST_SCALARS) if problem.listed else ((), ())
    own = (name, problem.precision, (*problem.pointers, *lists[0]), (*scalars, *lists[1]))
    kernel = tile.write(*own, lambda w: body(w, problem, tile), early=problem.given)
    waits = problem.given or problem.chained or (not tile.apart and tile.overlap)
    return replace(kernel, shares=kernel.shares or waits)  # loads of what was written stay behind its wait


def _variants(name: str, problem: Problem, knobs: Config) -> tuple[Variant, ...]:
    """The kernels for few rows first, then the fastest for many, then the one that takes any operands."""
    lists, problem = problem.listed, replace(problem, listed=False)
    found = [*_split_k(name, problem, knobs), *_skinny(name, problem, knobs)]
    for size in ("least", "fewer", "few"):
        if knobs.get(size, 0) > _reach(knobs):
            found.append(Variant(_kernel(f"{name}_{size}", problem, knobs, size), most=knobs[size]))
    copied = all(o.piece(problem.compute) for o in problem.operands)
    for size in ("tall", "taller"):
        found += _tall(name, problem, knobs, size, lists) if knobs.get(size) and _shareable(problem) else []
    if knobs.get("wide_columns") and copied:
        columns, stages, cluster = (knobs[f"wide_{k}"] for k in ("columns", "stages", "cluster"))
        tile = WgmmaTile(columns=columns, stages=stages, cluster=cluster, overlap=True, most=knobs["wide_blocks"])
        aligned = _aligned(problem)
        for size, part in (("slim", 4), ("mid", 2)):
            if knobs.get(size, 0) > knobs["wide"]:
                narrow = replace(tile, columns=tile.columns // part, stages=6, cluster=1)
                when = knobs["wide"], knobs[size] - 1, aligned
                found += _by_wgmma(f"{name}_{size}", problem, (narrow, WgmmaGemm), when, lists)
        waits = problem.group.region != "step" and problem.precision != "tf32" and not problem.members
        tile = replace(tile, later=waits and words_of(problem, tile.columns) > 0)
        found += _by_wgmma(f"{name}_wide", problem, (tile, WgmmaGemm), (knobs["wide"], None, aligned), lists)
    return (*found, Variant(_kernel(f"{name}_many", problem, knobs, "many")))


def _tall(name: str, problem: Problem, knobs: Config, size: str, lists: bool) -> list[Variant]:
    """A kernel for more rows, of which there are few tiles: blocks share K. It takes every multiprocessor, where one
    whose operands are given runs beside another. Every kernel for more rows is for lists, or none is."""
    shape = {k: knobs[f"{size}_{k}"] for k in ("rows", "columns", "along", "cluster")}
    tile = SplitKTile(block=problem.fragments.block, overlap=True, **shape)
    tile = replace(tile, stages=_stages(problem, tile, knobs["share_bytes"]))
    when = knobs[f"{size}_from"], knobs[size], (*_aligned(problem), *(["!given"] if problem.given else []))
    lists = lists and bool(knobs.get("wide_columns"))
    found = [*_by_wgmma(f"{name}_{size}", problem, (tile, WgmmaSplitKGemm), when, lists)] if tile.fits else []
    return [replace(own, most=knobs.get(f"{size}_listed", own.most)) if own.listed else own for own in found]


def _by_wgmma(
    name: str,
    problem: Problem,
    kind: tuple[Tile, Callable[[Writer, Problem, Tile], GemmBody]],
    when: tuple[int, int | None, tuple[str, ...]],
    lists: bool,
) -> Iterator[Variant]:
    """A kernel of such tiles, and before it the one for a list of rows, where there is to be one: to look rows up takes
    registers and instructions of the warps that copy. when: fields of a `Variant`."""
    least, most, further = when
    if lists:
        kernel = _written(f"{name}_listed", replace(problem, listed=True), *kind)
        yield Variant(kernel, least, most, (*further, "steps > 0"), True)
    yield Variant(_written(name, problem, *kind), least, most, further)


def _skinny(name: str, problem: Problem, knobs: Config) -> list[Variant]:
    """Kernels without tensor cores that stream weights past few rows."""
    half = {f"skinny_{part}": knobs.get(f"skinny_{part}", 0) // 2 for part in ("rows", "high")}
    sizes = [(size, own) for size, own in (("skinny_half", {**knobs, **half}), ("skinny", knobs)) if knobs.get(size)]
    return [Variant(_kernel(f"{name}_{n}", problem, own, "skinny"), most=knobs[n]) for n, own in sizes]


def _reach(knobs: Config) -> int:
    """Up to how many rows these, and behind them kernels that share K, leave nothing for others."""
    reach = knobs.get("skinny", 0)
    return knobs["share"] if reach and knobs["share"] and knobs["share_from"] <= reach else reach


def _aligned(problem: Problem) -> tuple[str, ...]:
    return tuple(f"((uintptr_t){o.name} & {o.piece(problem.compute) - 1}) == 0" for o in problem.operands)


def _shareable(problem: Problem) -> bool:
    """Rows of pixels that begin between multiples of 16 bytes are for kernels that do not share K."""
    return all(o.rows_of(problem.compute) or (o.piece(problem.compute) and not o.around) for o in problem.operands)


def _split_k(name: str, problem: Problem, knobs: Config) -> list[Variant]:
    """Kernels that share K: one per 64 rows up to knobs["share"], of those that fit; without tensor cores one. Those of
    more rows take every multiprocessor, where a kernel whose operands are given runs beside another."""
    found: list[Variant] = []
    if isinstance(problem.layout, Lanes):
        if knobs.get("share"):
            shape = {k: knobs[f"share_{k}"] for k in ("high", "split", "cluster", "stages")}
            lanes = LanesSplitKTile(64, overlap=False, across=8, groups=problem.layout.groups, **shape)
            kernel = _written(f"{name}_share", problem, lanes, LanesSplitK)
            found.append(Variant(kernel, knobs["share_from"] + 1, knobs["share"]))
        return found
    if not _shareable(problem):
        return found
    for high in range(1, knobs.get("share", 0) // 64 + 1):
        shape = {k: knobs[f"share_{k}"] for k in ("columns", "along", "cluster", "kept")}
        overlap = 0 < knobs["share_overlap"] <= high
        tile = SplitKTile(64 * high, block=problem.layout.block, overlap=overlap, **shape)
        tile = replace(tile, stages=_stages(problem, tile, knobs["share_bytes"]))
        if not tile.fits:  # so many rows are the other kernels'
            continue
        most = max(64 * high, knobs["share_most"]) if 64 * (high + 1) > knobs["share"] else 64 * high
        least = 1 + (64 * (high - 1) or knobs["share_from"])
        further = (*_aligned(problem), *(["!given"] if problem.given and high > 1 else []))
        found.append(Variant(_written(f"{name}_share{high}", problem, tile, WgmmaSplitKGemm), least, most, further))
    return found


def _stages(problem: Problem, tile: SplitKTile, room: int) -> int:
    """No more than a block has tiles of K, and where each is used twice at most, half of shared memory's: the rest is
    for a block of another product, as of the other direction's. room: bytes."""
    deep = sum(problem.fragments.tiles_deep(operand.depth) for operand in problem.operands)
    most = max(ceil_div(deep, tile.cluster), LEAST_STAGES)
    whole, half = (size // (tile.stage_bytes + 16) for size in (room, room // 2 - 1024))
    return min(most, half if half >= LEAST_STAGES and most <= 2 * half else whole)


def _kernel(name: str, problem: Problem, knobs: Config, size: str) -> Kernel:
    tensor = not isinstance(problem.layout, Lanes)
    own = ("columns", "warps", "along", "cluster") if tensor else ("across", "high", "cluster")
    given = {k: knobs.get(f"{size}_{k}") for k in ("rows", "split", "stages", "pace", "blocks", *own)}
    shape = {k: value for k, value in given.items() if value is not None}
    overlap = size != "many" and bool(problem.chained or knobs["overlap"])
    if isinstance(problem.layout, Lanes):
        shape |= {"groups": problem.layout.groups, "size": SIZES[problem.compute]}
        return _written(name, problem, LanesTile(overlap=overlap, **shape), LanesGemm)
    return _written(name, problem, MmaTile(overlap=overlap, **shape), MmaGemm)

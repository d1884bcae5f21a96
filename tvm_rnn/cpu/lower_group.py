"""Groups as loops over batch rows and units around their tiles.

In: a group, the number of rows, and where its values live (`tiles.Places`). Out: a statement. Parameters stay outside
and rows inside, so that a panel of weights is read once for all rows; panels are what threads share.

Rewrite: group  -->  parallel for panels: for rows: tile
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from tvm import tirx

from tvm_rnn.graph.graph import Group, Node, reduced_axes, runs_along
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.graph.tensor_expressions import Index, element
from tvm_rnn.schedule.schedule_template import Chosen, Config, Template, Unit, best
from tvm_rnn.target import Target
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, bind, floordiv, floormod, load, loop, sequence, store, use_threads, when

from . import convolution, dropout_masks, head_loops, int8_products, register_tile, register_tile_reductions
from .head_loops import Heads, Within
from .matrix_recurrence import MatrixRecurrence
from .numbers_of_rows import NumbersOfRows, is_numbers
from .recurrence import Recurrence, Tasks, side_by_side
from .reduction_tiles import ReductionTiles, tile_shape
from .register_tile import Ahead, Places, Tile, Wanted
from .row_loops import each_row, leftovers
from .second_thread import threads_for_part
from .shared_groups import SharedGroups
from .weight_packing import Tail
from .weight_storage import NETWORKS, Storages
from .workspace import Array
from .zero_padding import Padded, Put, padded

# A row group is shared among threads only if one row is at least this many elements of work (a launch costs about 1
# us).
PARALLEL_ELEMENTS = 16384
PARALLEL_VECTORS = 6144  # of a run of groups, in one launch: more than 1 us
# Vectors of pointwise work, where they leave no rest: one alone waits for the latency of its functions.
AT_A_TIME = 2
ENOUGH_HEADS = 8  # parts that threads share a step into, where more would need the loops of each group


@dataclass(frozen=True)
class Used:
    """Which template and knobs a unit got: goes to the manifest."""

    unit: Unit
    template: Template
    knobs: Config
    record: str  # where the knobs are from

    def facts(self) -> dict[str, Any]:
        """What a manifest says of it."""
        unit = self.unit
        shape = f"G={unit.gates} N={unit.width}" + (f" K={'+'.join(map(str, unit.depths))}" if unit.depths else "")
        text = f"{unit.region} {unit.kind} {shape}"
        return {"unit": text, "template": self.template.name, "knobs": dict(self.knobs), "record": self.record}


class Emitter:
    """Emits groups for one target, dtype and set of named batch sizes. sharing: what makes one function of groups that
    are alike; None: each has its own code, at once."""

    def __init__(
        self,
        target: Target,
        dtype: str,
        batches: tuple[int, ...],
        storages: Storages = NETWORKS,
        sharing: SharedGroups | None = None,
    ) -> None:
        self.storages, self.sharing = storages, sharing
        self.target, self.dtype, self.batches = target, dtype, batches
        self.lanes = target.lanes(dtype)
        self.used: list[Used] = []

    def group(self, group: Group, rows: Expr, places: Places) -> Stmt:
        """The group on `rows` rows. Where records say something else for each named batch size, code for each."""
        if group.kind == "random":
            return self._random(group, rows, places)
        unit = self._unit(group)
        chosen = self._chosen(unit, places.batch is not None)
        self.used += [Used(own, *choice) for own, choice in reversed(chosen)]

        def code(rows: Expr, places: Places) -> Stmt:
            return self._code(group, rows, places, chosen)

        if self.sharing is None or group.kind == "scan" or self.storages.of(group.root) is not None:
            return code(rows, places)
        return self.sharing.put(group, rows, places, code, (unit, self.target.name))

    def _chosen(self, unit: Unit, for_each: bool) -> list[tuple[Unit, Chosen]]:
        """What is chosen for each named batch size, at last for all others; of those that agree one. for_each: whether
        code may ask for the batch size."""
        alone = [replace(unit, batches=(size,)) for size in self.batches]
        found = [(own, best(own, self.target)) for own in alone]
        if not for_each or all(c[:2] == found[0][1][:2] for _, c in found):
            return [(unit, best(unit, self.target))]
        # The largest one's for all other sizes: its tiles are those that many rows need.
        *others, last = found
        return [*(own for own in others if own[1][:2] != last[1][:2]), last]

    def _code(self, group: Group, rows: Expr, places: Places, chosen: Sequence[tuple[Unit, Chosen]]) -> Stmt:
        kinds = {"gemm": self._gemm, "pointwise": self._pointwise, "reduce": self._reduce, "scan": self._scan}
        emit, result = kinds[group.kind], None
        for unit, (template, knobs, _) in reversed(chosen):
            own = emit(group, unit, rows, places, template, knobs)
            size = int64(unit.batches[0]) if unit.batches else None
            result = own if result is None else when(tirx.EQ(places.batch, size), own, result)
        assert result is not None
        return result

    def _unit(self, group: Group) -> Unit:
        root = group.root
        shape = root.shape if root is not None else group.nodes[-1].shape
        gates = shape[0] if group.kind == "gemm" and len(shape) == 2 else 1
        depths = tuple(a.shape[0] for a in root.args[1::2]) if group.kind == "gemm" and root is not None else ()
        width = shape[-1] if shape else 1
        if root is not None and root.op in ("scan_matrix", "rescan"):
            depths, width = (shape[root.attrs["key"]],), shape[-3 - root.attrs["key"]]
        storage = self.storages.of(root) if group.kind == "gemm" else None
        stored = storage.name if storage is not None else ""
        return Unit(group.kind, group.region, self.dtype, gates, width, depths, len(group.nodes), self.batches, stored)

    def _tile(self, group: Group, unit: Unit, places: Places, **where: Any) -> Tile:
        return Tile(group, places, unit, self.lanes, **where)

    def _gemm(self, group: Group, unit: Unit, rows: Expr, places: Places, template: Template, config: Config) -> Stmt:
        finish = best(replace(unit, kind="pointwise", gates=1, depths=()), self.target).template
        storage = self.storages.of(group.root)
        places = replace(places, storage=storage)
        work = Panels(group, unit, rows, places, self.lanes, template, finish, config).statement()
        if storage is None or storage.dot is None:
            return work
        many = max(self.batches, default=1)
        return sequence(int8_products.quantise(group, rows, places, self.lanes, many), work)

    def _pointwise(
        self, group: Group, unit: Unit, rows: Expr, places: Places, template: Template, config: Config
    ) -> Stmt:
        if group.nodes[-1].op == "concat" and len(group.nodes) == 1 and len(group.nodes[0].shape) > 1:
            image = padded(group.nodes[0], self.dtype)
            if not image.is_plain:
                return self._padding(group, image, rows, places)
        shape = group.nodes[-1].shape or (1,)
        outer = shape[:-1]
        vectors = self._vectors(shape)
        several = AT_A_TIME if vectors % AT_A_TIME == 0 else 1
        lanes = several * self.lanes  # LLVM makes each operation of all of them before the next one

        def body(row: Expr, index: tuple[Expr, ...]) -> Stmt:
            def vector(c: tirx.Var) -> Stmt:
                scalar = not group.nodes[-1].shape
                own = Tile(group, places, unit, lanes, row0=row, panel0=c, outer=() if scalar else index)
                return register_tile.pointwise(own, template, config)

            return loop("c", vectors // several, vector)

        if not self.is_together(group):
            return self._rows(rows, outer, vectors * self.lanes, body, places)

        def together(i: Expr) -> Stmt:
            own = NumbersOfRows(group, places, unit, self.lanes, row0=i * int64(self.lanes))
            return register_tile.pointwise(own, template, config)

        full = floordiv(rows, self.lanes)
        rest = loop("row", floormod(rows, self.lanes), lambda i: body(full * int64(self.lanes) + i, (0,) * len(outer)))
        return sequence(loop("rows", full, together), rest)

    def is_together(self, group: Group) -> bool:
        """Whether one vector has several rows of a group."""
        return is_numbers(group) and self.lanes > 1

    def _vectors(self, shape: tuple[int, ...]) -> int:
        """Of the last axis."""
        return -(-shape[-1] // self.lanes)

    def _padding(self, group: Group, image: Padded, rows: Expr, places: Places) -> Stmt:
        """An image and the zeros around it."""

        def body(row: Expr, index: tuple[Expr, ...]) -> Stmt:
            def read(node: Node, at: Index) -> Expr | None:
                array = places.read(node)
                return None if array is None else load(places.buffers[array.buffer], array.address(row, at))

            def put(array: Array) -> Put:
                return lambda x, value: store(places.buffers[array.buffer], array.address(row, (*index, x)), value)

            def value(at: Index) -> Expr:
                return element(image.image, at, read, self.dtype)

            arrays = places.write(group.nodes[0])
            return sequence([image.row(index[:-1], index[-1], value, put(a), self.lanes) for a in arrays])

        return self._rows(rows, image.shape[:-1], image.shape[-1], body, places)

    def _random(self, group: Group, rows: Expr, places: Places) -> Stmt:
        assert places.draw is not None
        pairs = [(node, array, places.buffers[array.buffer]) for node in group.stored for array in places.write(node)]
        return sequence([dropout_masks.fill(*pair, rows, places.draw, self.lanes) for pair in pairs])

    def _reduce(self, group: Group, unit: Unit, rows: Expr, places: Places, template: Template, config: Config) -> Stmt:
        root = group.root
        assert root is not None
        if (form := convolution.form(root)) is not None:
            own = convolution.Convolution(group, form, places, self.lanes, self.target.vector_registers)
            if (done := own.statement(rows, PARALLEL_ELEMENTS)) is not None:
                return done
        if not runs_along(root):
            return self._tiles(group, unit, rows, places, template, config).statement()

        def body(row: Expr, index: tuple[Expr, ...]) -> Stmt:
            own = self._tile(group, unit, places, row0=row, panel0=int64(0))
            return register_tile_reductions.reduction(own, template, config, index, True)

        return self._rows(rows, root.shape, self._terms(root), body, places)

    def _tiles(
        self, group: Group, unit: Unit, rows: Expr, places: Places, template: Template, config: Config
    ) -> ReductionTiles:
        assert group.root is not None
        batch = max(self.batches, default=None)
        shape = tile_shape(group.root, places, self.lanes, self.target.accumulators, batch)
        return ReductionTiles(group, unit, rows, places, self.lanes, template, config, shape, PARALLEL_ELEMENTS)

    @staticmethod
    def _terms(root: Node) -> int:
        """Of one sum."""
        return prod(size for _, size in reduced_axes(root))

    # --- groups that share loops over heads ----------------------------------------------------------------------

    def step(self, groups: Sequence[Group], rows: Expr, places: Sequence[Places]) -> list[Stmt]:
        """The groups of a step on `rows` rows, in order."""
        heads = [self._heads(*each) for each in zip(groups, places, strict=True)]
        together = head_loops.runs(groups, heads, ENOUGH_HEADS)
        return [self._run([(groups[i], places[i], heads[i]) for i in run], rows) for run in together]

    def _run(self, run: Sequence[tuple[Group, Places, Heads | None]], rows: Expr) -> Stmt:
        """Groups inside of one loop over heads, and over rows where no tile has several."""
        (group, own, heads), *others = run
        if not others or heads is None:
            return self.group(group, rows, own)

        asking = self._asking(run)

        def body(*within: Expr) -> list[Stmt]:
            own = [(g, replace(p, within=Within(*within), wanted=asking.get(g.nodes))) for g, p, _ in run]
            return [self.group(g, rows, p) for g, p in own]

        worth = min(self.batches, default=1) * sum(self._vectors_of(g) for g, _, _ in run) >= PARALLEL_VECTORS
        if not any(h.tall for _, _, h in run if h is not None):
            return each_row(rows, (heads.count,), worth, lambda row, index: body(index[0], int64(1), row))
        count, threads = int64(heads.count), own.threads
        if threads is None or not worth:
            return sequence(body(int64(0), count))
        # Several threads take one head at a time; one alone reads rows as they lie, of all heads.
        tasks = tirx.Select(tirx.EQ(threads, int64(1)), int64(1), count)
        share, set_share = bind("share", tirx.floordiv(count, tasks))
        return sequence(set_share, loop("heads", tasks, lambda i: body(i * share, share), parallel=True))

    def _asking(self, run: Sequence[tuple[Group, Places, Heads | None]]) -> dict[tuple[Node, ...], Wanted]:
        """What tiles of a run ask for, by their groups' nodes, if a second cache has room for it beside parameters.

        Heads of 64, B = 16: a GRU (393 KB of parameters) and an RNN take 0.96 of the time, an LSTM (786 KB) 1.01.
        """
        tall = [(group, places) for group, places, heads in run if heads is not None and heads.tall]
        read = [(arg, p.read(arg)) for g, p in tall if g.root is not None for arg in g.root.args]
        elements = sum(prod(arg.shape) for arg, array in read if array is not None and not array.row_stride)
        size = elements * np.dtype(self.dtype).itemsize
        if not tall or not tall[0][1].given or size > self.target.l2_bytes // 4:
            return {}
        return {g.nodes: Wanted(p.given, number, len(tall)) for number, (g, p) in enumerate(tall)}

    def is_little(self, group: Group) -> bool:
        """Whether a row of a group is work of one thread, and of that row alone."""
        if group.kind == "pointwise":
            shape = group.nodes[-1].shape or (1,)
            return prod(shape[:-1]) * self._vectors(shape) * self.lanes < PARALLEL_ELEMENTS
        root = group.root
        if group.kind != "reduce" or root is None or not runs_along(root) or convolution.form(root) is not None:
            return False
        return self._terms(root) * prod(root.shape) < PARALLEL_ELEMENTS

    def is_by_row(self, group: Group) -> bool:
        """Whether little work is best done with other work on the same row."""
        return self.is_little(group) and not self.is_together(group)

    def tall(self, group: Group) -> int:
        """Rows that a group does best together, where a thread may do some of all rows by itself; else 0. A product is
        such work if all threads may have its parameters in their caches."""
        if group.kind != "gemm":
            return int(self.is_little(group))
        unit, storage = self._unit(group), self.storages.of(group.root)
        size = unit.gates * unit.width * sum(unit.depths) * np.dtype(self.dtype).itemsize
        small = size <= self.target.l2_bytes // 4 and (storage is None or storage.dot is None)
        return int(best(unit, self.target).knobs["rows"]) if small else 0

    def elements_of(self, group: Group) -> int:
        """Of work in one row."""
        if group.kind == "gemm":
            unit = self._unit(group)
            return unit.gates * unit.width * sum(unit.depths)
        return self._vectors_of(group) * self.lanes

    def _vectors_of(self, group: Group) -> int:
        """Of work in one row: multiply-adds, and all that is pointwise."""
        made = [n for n in group.nodes if n.shape and not n.leaf]
        found = sum(prod(n.shape[:-1]) * self._vectors(n.shape) * TABLE[n.op].cost for n in made)
        if group.root is None:
            return found
        shape = group.root.shape
        each = prod(shape) / self.lanes if runs_along(group.root) else prod(shape[:-1]) * self._vectors(shape)
        return found + int(self._terms(group.root) * each)

    def _heads(self, group: Group, places: Places) -> Heads | None:
        """How a group shares a loop over its first axis; None where it has no such loop."""
        root = group.root
        if group.kind == "reduce" and root is not None and root.shape and convolution.form(root) is None:
            if runs_along(root):
                return Heads(root.shape[0], False, prod(root.shape))
            unit = self._unit(group)
            return self._tiles(group, unit, int64(0), places, *best(unit, self.target)[:2]).heads
        shape = group.nodes[-1].shape if group.kind == "pointwise" else ()
        is_move = group.kind == "pointwise" and group.nodes[-1].op == "concat"
        return Heads(shape[0], False, prod(shape[:-1])) if len(shape) > 1 and not is_move else None

    def recurrences(self, groups: Sequence[Group], rows: Expr, places: Sequence[Places]) -> Stmt:
        """Recurrences none of which reads another: threads share the tasks of all."""
        units = [self._unit(group) for group in groups]
        chosen = [self._chosen(unit, p.batch is not None) for unit, p in zip(units, places, strict=True)]
        if len(groups) == 1 or any(len(choices) > 1 for choices in chosen):
            return sequence([self.group(group, rows, own) for group, own in zip(groups, places, strict=True)])
        found = list[Tasks]()
        for group, own, [(unit, (template, knobs, record))] in zip(groups, places, chosen, strict=True):
            self.used.append(Used(unit, template, knobs, record))
            found.append(self._tasks(group, unit, rows, own, template, knobs))
        return side_by_side(found, places[0].threads)

    def _scan(self, group: Group, unit: Unit, rows: Expr, places: Places, template: Template, config: Config) -> Stmt:
        return side_by_side([self._tasks(group, unit, rows, places, template, config)], places.threads)

    def _tasks(self, group: Group, unit: Unit, rows: Expr, places: Places, template: Template, config: Config) -> Tasks:
        assert places.walk is not None and group.root is not None
        if group.root.op in ("scan_matrix", "rescan"):
            return MatrixRecurrence(group, unit, places, places.walk, self.target, config).tasks(rows)
        return Recurrence(group, unit, places, places.walk, self.lanes, template, config).tasks(rows)

    def _rows(
        self,
        rows: Expr,
        outer: tuple[int, ...],
        work: int,
        body: Callable[[Expr, tuple[Expr, ...]], Stmt],
        places: Places,
    ) -> Stmt:
        """Threads share the rows and the first outer axis where that is worth it."""
        return each_row(rows, outer, work * prod(outer) >= PARALLEL_ELEMENTS, body, places.within)


PART_ROWS = 64  # whose sums lie beside a part's weights in the first cache


@dataclass(frozen=True)
class Panels:
    """One gemm group on `rows` batch rows. A panel is one vector of units with all its gates: its weights stay in cache
    while all rows pass; threads share the panels.

    Rewrite: group  -->  parallel for chunk of panels: for "broad" panels: for full tile of rows: product, epilogue
                                                       then tiles of 4, 2 and 1 rows for the rest, across more panels
    """

    group: Group
    unit: Unit
    rows: Expr
    places: Places
    lanes: int
    template: Template
    finish: Template  # for the epilogue, which is pointwise work
    config: Config

    @property
    def tail(self) -> Tail | None:
        """Of the last panel, where its gates lie side by side: it is a chunk of its own."""
        return None if self.group.root is None else self.places.tails.get(self.group.root)

    @property
    def count(self) -> int:
        """Of panels but for the tail."""
        return self.unit.width // self.lanes if self.tail else -(-self.unit.width // self.lanes)

    def statement(self) -> Stmt:
        """The whole group. A configuration of one row has one shape of tile; others need tiles for leftover rows."""
        before = -(-self.count // self.config["panels"])
        chunks = before + bool(self.tail)
        alone = self._single_rows if self.config["rows"] == 1 else self._chunk

        def body(c: Expr) -> Block:
            if not self.tail:
                return alone(c)
            return when(c < int64(before), alone(c), self._last()) if before else self._last()

        shared = chunks > 1 and bool(self.config.get("shared", 1)) and not self.places.alone
        odd, threads = self.places.odd, self.places.threads
        if threads is None:
            return loop("chunk", chunks, body, parallel=shared)
        work = self.rows * int64(self.unit.gates * self.unit.width * sum(self.unit.depths))
        few, set_few = bind("few", threads_for_part(work, threads))
        if not self.config.get("turns") or odd is None:
            whole = loop("chunk", chunks, body, parallel=shared)
            return sequence(set_few, use_threads(few), whole, use_threads(threads)) if shared else whole

        def part(begin: Expr, end: Expr) -> Stmt:
            """Forwards and backwards in turns from step to step: what came last is still in a thread's cache."""

            def one(i: Expr) -> list[Block]:
                chunk, set_chunk = bind("chunk", begin + i + odd * (end - begin - int64(1) - i - i))
                return [set_chunk, body(chunk)]

            return loop("i", end - begin, one)

        def worker(w: Expr) -> list[Block]:
            begin, set_begin = bind("begin", tirx.floordiv(w * int64(chunks), few))
            end, set_end = bind("end", tirx.floordiv((w + int64(1)) * int64(chunks), few))
            return [set_begin, set_end, part(begin, end)]

        if not shared:
            return part(int64(0), int64(chunks))
        return sequence(set_few, loop("worker", few, worker, parallel=True))

    def _last(self) -> Block:
        """The tail of all rows."""
        full, panel = self.config["rows"], int64(self.count)
        whole = loop(
            "r", floordiv(self.rows, full), lambda r: self._tile(full, 1, r * int64(full), panel, tail=self.tail)
        )
        return [whole, self._leftovers(panel, 1, 1, self.tail)] if full > 1 else whole

    def _chunk(self, c: Expr) -> list[Block]:
        full, across = self.config["rows"], self.config["panels"]
        first, set_first = bind("first", c * int64(across))

        def whole(panels: int, broad: int) -> Stmt:
            def tiles_of(p: tirx.Var) -> list[Block]:
                panel = first + p * int64(broad)
                after, set_after = bind("after", self._after(p, panels - 1, panel + int64(broad), first))

                def one(r: Expr) -> list[Block]:
                    return self._tile(full, broad, r * int64(full), panel, self._ahead(after, r))

                count = floordiv(self.rows, full)
                parted = self.config.get("parts", 1) > 1 and full > 1
                tiles = self._in_parts(full, broad, count, panel, after) if parted else loop("r", count, one)
                left = self._leftovers(panel, 1, 1, ahead=self._ahead(after, count)) if self._at_once else None
                return [set_after, tiles, left]

            return loop("p", panels, tiles_of)

        def left(count: int, wide: int) -> Block:
            return None if self._at_once else self._leftovers(first, count, wide)

        broad = self.config.get("broad", 1)
        work: list[Block] = [whole(across // broad, broad), left(across, across)]
        rest = self.count % across
        if rest:
            work = [when(c < int64(self.count // across), work, [whole(rest, 1), left(rest, 1)])]
        return [set_first, *work]

    @property
    def _named(self) -> tuple[int, ...]:
        """Batch sizes whose leftovers are one tile."""
        return self.unit.batches if self.unit.region == "step" else ()

    @property
    def _at_once(self) -> bool:
        """Whether leftovers follow on the full tiles of their panel, and ask for a part of the next one as these do:
        where each tile then asks for less at a time. One row alone takes several panels, for their additions do not
        wait for one another."""
        if not self.config.get("next") or self.config.get("broad", 1) > 1 or not self._named:
            return False
        full, vectors = self.config["rows"], self.unit.gates
        tiles = max(self._named) // full
        less = not tiles or -(-vectors // (tiles + 1)) < -(-vectors // tiles)
        return less and not {size % full for size in self._named} & {0, 1}

    def _leftovers(
        self, first: Expr, count: int, wide: int, tail: Tail | None = None, ahead: Ahead | None = None
    ) -> Stmt:
        """Rows that do not fill a full tile, across more panels: `wide` divided by the height."""

        def tiles(height: int, start: Expr) -> Stmt:
            across = max(1, wide // height)

            def one(p: Expr) -> list[Block]:
                return self._tile(height, across, start, first + p * int64(across), ahead, tail)

            return loop("p", count // across, one)

        full = self.config["rows"]
        return leftovers(self.rows, full, 1 << (min(full - 1, 8).bit_length() - 1), tiles, self._named)

    def _single_rows(self, c: Expr) -> Stmt:
        across = self.config["panels"]
        whole, rest = self.count // across, self.count % across
        full = loop("r", self.rows, lambda r: self._tile(1, across, r, c * int64(across)))
        if not rest:
            return full
        last = loop("r", self.rows, lambda r: self._tile(1, rest, r, int64(whole * across)))
        return when(c < int64(whole), full, last)

    def _after(self, p: Expr, last: int, next_panel: Expr, first: Expr) -> Expr:
        """The panel that is multiplied after those of turn p of a chunk, in this step's direction."""
        odd = 0 if self.places.odd is None or not self.config.get("turns") else self.places.odd
        chunk = int64(self.config["panels"]) * (int64(1) - odd - odd)
        return tirx.Select(p < int64(last), next_panel, first + chunk)

    def _ahead(self, after: Expr, number: Expr) -> Ahead | None:
        if not self.config.get("next"):
            return None
        most, full = max(self.unit.batches, default=1), self.config["rows"]
        return Ahead(after, number, -(-most // full) if self._at_once else max(1, most // full))

    def _tile(
        self,
        height: int,
        across: int,
        row0: Expr,
        panel0: Expr,
        ahead: Ahead | None = None,
        tail: Tail | None = None,
    ) -> list[Block]:
        """Product and epilogue of `height` rows by `across` panels."""
        row, set_row = bind("row", row0)
        panel, set_panel = bind("panel", panel0)
        gates = self._sums(height, across)
        local = replace(self.places, buffers={**self.places.buffers, "gates": gates})
        where = {"row0": row, "panel0": panel, "tail": tail}
        whole = Tile(self.group, local, self.unit, self.lanes, rows=height, panels=across, ahead=ahead, **where)
        done = [self._product(whole), self._finish(whole)]
        return [set_row, set_panel, tirx.AllocBuffer(gates), *done]

    def _sums(self, height: int, across: int) -> Buffer:
        size = height * across * self.unit.gates * self.lanes + self.lanes  # a tail's last vector may read past it
        return tirx.decl_buffer((size,), self.unit.dtype, name="gates", scope="local")

    def _product(self, whole: Tile) -> Stmt:
        integer = self.places.storage is not None and self.places.storage.dot is not None
        return int8_products.product(whole) if integer else register_tile.product(whole, self.template, self.config)

    def _in_parts(self, height: int, across: int, count: Expr, panel: Expr, after: Expr) -> Stmt:
        """Tiles of rows, some at a time: a part of the product's terms of all of them, then the next part. The first
        cache holds the weights of one part, and the sums."""
        parts, some = self.config["parts"], max(1, PART_ROWS // height)
        gates = self._sums(some * height, across)
        local = replace(self.places, buffers={**self.places.buffers, "gates": gates})
        zeroes = tirx.Broadcast(tirx.const(0.0, self.unit.dtype), self.lanes)

        def tile(first: Expr, r: Expr, part: Expr) -> tuple[Block, Tile]:
            row, set_row = bind("row", (first + r) * int64(height))
            size = {"rows": height, "panels": across, "first": r * int64(height), "part": (part, parts)}
            place = {"row0": row, "panel0": panel, "ahead": self._ahead(after, first + r)}
            return set_row, Tile(self.group, local, self.unit, self.lanes, **size, **place)

        def block(b: Expr) -> list[Block]:
            first, set_first = bind("first_tile", b * int64(some))
            tiles = tirx.min(count - first, int64(some))
            each = height * across * self.unit.gates

            def zero(v: Expr) -> Stmt:
                return tirx.BufferStore(gates, zeroes, [tirx.Ramp(v * int64(self.lanes), int64(1), self.lanes)])

            def multiply(part: Expr) -> Stmt:
                def one(r: Expr) -> list[Block]:
                    set_row, whole = tile(first, r, part)
                    return [set_row, self._product(whole)]

                return loop("r", tiles, one)

            def end(r: Expr) -> list[Block]:
                set_row, whole = tile(first, r, int64(0))
                return [set_row, self._finish(whole)]

            zeroed = loop("z", tiles * int64(each), zero)
            return [set_first, tirx.AllocBuffer(gates), zeroed, loop("part", parts, multiply), loop("r", tiles, end)]

        return loop("block", floordiv(count + int64(some - 1), some), block)

    def _finish(self, whole: Tile) -> Stmt:
        """The epilogue of a tile whose sums are there."""
        height, across, row, panel = whole.rows, whole.panels, whole.row0, whole.panel0
        local, tail = whole.places, whole.tail
        # Two vectors at a time: one alone would wait for the latency of its functions. More only adds code.
        tall = 2 if height % 2 == 0 else 1
        broad = 2 if tall == 1 and across % 2 == 0 else 1
        unit = replace(self.unit, kind="pointwise", gates=1, depths=())

        def finish(e: tirx.Var) -> Stmt:
            r, p = floordiv(e, across // broad) * int64(tall), floormod(e, across // broad) * int64(broad)
            place = {"row0": row + r, "panel0": panel + p, "slot": (whole.first + r, p, across), "tail": tail}
            return register_tile.pointwise(
                Tile(self.group, local, unit, self.lanes, rows=tall, panels=broad, **place), self.finish, {}
            )

        return loop("e", height * across // (tall * broad), finish)

"""Matrices and their gradients made again: a group of kind "scan" whose root is a `rescan`.

In: the group's operands, and where its values lie. Out: a `MatrixAgain`, the kernels of `parts_again.py`,
`blocks_again.py` or `steps_again.py`, the first that can, with the statements that launch them, all parts of a tile at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer
from tvm_rnn.cuda.layer.matrix_operands import NUMBER, AgainOperands
from tvm_rnn.cuda.layer.pointers import Argument, Place
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.rowwise.state_moves import Tile
from tvm_rnn.decisions import tell
from tvm_rnn.errors import BuildError, message
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.recurrences import BOTH_AXES
from tvm_rnn.schedule.schedule_template import DEFAULT
from tvm_rnn.target import HOPPER, Target

from .blocks_again import BlocksAgain
from .pair import BOTH, EVERY, GRADIENT, STATE, Made, Pair, Read, marks_name
from .parts_again import PartsAgain
from .recurrence import Rows, same_places
from .steps_again import StepsAgain

Kernels = PartsAgain | BlocksAgain | StepsAgain
TEMPLATES = {PartsAgain: "parts_again", BlocksAgain: "blocks_again", StepsAgain: "steps_again"}


@dataclass(frozen=True, eq=False)
class MatrixAgain:
    """The kernels of one group. arguments: what `values` of `launch` are; begins: the matrix and its gradient, by their
    names as the kernels have them."""

    name: str
    operands: AgainOperands
    pair: Pair
    arguments: tuple[Argument, ...]
    begins: dict[str, Node]
    kernels: Kernels

    @property
    def stored(self) -> tuple[Node, ...]:
        return self.operands.group.stored

    @property
    def fact(self) -> dict[str, object]:
        """A row of the manifest's templates."""
        own = self.pair
        unit = f"before rescan {own.heads}x{own.keys}x{own.values}, parts of {EVERY} steps at once, any B"
        return {"unit": unit, "template": TEMPLATES[type(self.kernels)], "knobs": {}, "record": DEFAULT}

    def launch(self, host: Host, values: Sequence[Pointer], tile: Tile, lean: bool = False) -> None:
        """All steps of a tile. values: of `arguments`; lean: there are never lengths or resets."""
        pointers = {a.name: p for a, p in zip(self.arguments, values, strict=True)}
        pointers |= {marks_name(name): tile.marks[node] for name, node in self.begins.items()}
        pointers |= {"lengths": host.program.lengths, "reset": Pointer("reset", "uint8")}
        scalars: dict[str, HostExpr] = {"steps": tile.count, "batch": "B", "start": tile.start, "total": "T"}
        scalars |= {"has_lengths": "has_lengths", "has_reset": "has_reset"}
        for masked in (False,) if lean else (False, True):
            kernel = self.kernels.kernels[masked]
            with host.when("true" if lean else "has_lengths || has_reset" if masked else "!has_lengths && !has_reset"):
                own = {name: pointers[name] for name, _ in kernel.pointers}
                host.launch(kernel, own, {name: scalars[name] for name, _ in kernel.scalars})


def kernels_of(name: str, pair: Pair, target: Target) -> Kernels:
    """The first that can. Raises BuildError where none gives the product of both as one number."""
    parts = PartsAgain(name, pair, wgmma=target.arch == HOPPER)
    blocks = BlocksAgain(name, pair, target.shared_bytes)
    if not parts.why_not and parts.shared_bytes <= target.shared_bytes:
        return parts
    if any(read.vector is None and read.output.width < pair.keys for read in pair.reads):
        why = parts.why_not or f"shared memory of {target.arch} does not hold a part"
        got = f"{pair.keys} keys and {pair.values} values: {why}"
        do = "compile for this GPU alone"
        raise BuildError(message("a matrix is not made again in whole parts", got=got, do=do))
    return StepsAgain(name, pair) if blocks.why_not else blocks


def matrix_again(
    name: str, operands: AgainOperands, layout: Layout, writes: Callable[[Node], list[Place]], target: Target
) -> MatrixAgain:
    """The kernels of a group. writes: where a read-out goes."""
    arguments, begins, places = list[Argument](), dict[str, Node](), dict[str, object]()
    state, axis = operands.state, operands.along

    def rows(name: str, node: Node, along: int = axis) -> Rows:
        base, offset = operands.located((node, along))
        source = layout.source(base, False, "before")
        assert source is not None
        arguments.append(Argument(name, "read", base))
        width = prod(node.shape[len(operands.heads) :]) if along == NUMBER else state.shape[along]
        group = operands.group_size((node, along))
        scale = operands.scale((node, along))
        places[name] = base, offset, width, group, scale
        return Rows(width, source.place.row_stride, source.place.dtype, offset, group, scale)

    def recurrence(own: str, row: Node) -> Made:
        decay = operands.decay(row)
        decays = None if decay is None else rows(f"{own}_decay", decay, NUMBER)
        # Sums run along the axis of the recurrence's values: what a rescan has in the place of keys.
        written = [
            (rows(f"{own}_column_{i}", column, -3 - axis), rows(f"{own}_row_{i}", value))
            for i, (value, column) in enumerate(operands.writes(row))
        ]
        return Made(decays, tuple(written), row in operands.undecayed)

    found: dict[str, Made] = {}
    for begin, row in operands.made.items():
        own = GRADIENT if begin in layout.graph.states else STATE
        found[own], begins[own] = recurrence(own, row), begin
    reads: list[tuple[Read, Node, int]] = []
    for node in operands.reads:
        matrix, vector = node.args
        begin = matrix.args[1]  # of `carried`
        both = vector.op == "carried"
        of = BOTH if both else next(own for own, other in begins.items() if other is begin)
        width = 1 if node.attrs["key"] == BOTH_AXES else node.shape[-1]
        for number, place in enumerate(writes(node)):
            read = None if both else rows(f"vector_{len(reads)}", vector)
            reads.append((Read(of, Rows(width, place.row_stride, place.dtype), read), node, number))
    pair = Pair(
        prod(operands.heads),
        state.shape[-3 - axis],
        state.shape[axis],
        layout.storage,
        found.get(STATE),
        found.get(GRADIENT),
        tuple(read for read, _, _ in reads),
        keys_last=axis == -2,
        same=same_places(places),
    )
    kernels = kernels_of(name, pair, target)
    which = "its gradient" if STATE not in found else "the matrix" if GRADIENT not in found else "the two"
    how = "whole parts" if isinstance(kernels, PartsAgain) else "blocks of steps"
    why = BlocksAgain(name, pair, target.shared_bytes).why_not if isinstance(kernels, StepsAgain) else ""
    tell(not why, f"{state.name}: {which} made again in {how}", why and f"step by step: {why}")
    arguments += [Argument(f"output_{i}", "write", node, number) for i, (_, node, number) in enumerate(reads)]
    return MatrixAgain(name, operands, pair, tuple(arguments), begins, kernels)

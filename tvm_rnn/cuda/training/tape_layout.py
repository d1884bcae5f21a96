"""The layout of the tape on the GPU, which `forward_train` writes and `backward` reads.

In: the layers of the forward graphs of training, with what they keep. Out: `Tape`: pointers to its arrays, as both host
programs compute them, and its size for the manifest. Each array is [T, B, row], in order of time:

    inputs     what each layer above the first reads: the outputs of the one below, in the dtype of x
    kept       for each layer and direction what its graph emits
    states     for each layer and direction the states that the backward graph reads, T+1 times: entry t is the state
               before step t, after step t + 1 in the direction that goes backwards it is the reverse
    matrices   likewise, of those that backward makes again: before each 64th step alone, float32 or bfloat16; and of
               vectors from which it goes forward again (`cuda/layer/made_again.py`): before each 16th step, or more

The first layer's inputs are the caller's own arrays, which both programs read where they are. Where a layer's output is
a state that is kept, the layer above finds its inputs there: they are not kept twice. Likewise the last layer's: where
its output is such a state, y has room for one step more, before its first (in the direction that goes backwards behind
its last), and is that array. Calls with lengths or resets write all of them, in a longer tape: there an input or output
that ended is 0, and a state that was reset is the initial one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from tvm_rnn.cuda.codegen.host_program import ALIGNMENT, ITEM_BYTES, HostExpr, Pointer, Program
from tvm_rnn.cuda.layer.matrix_operands import marked
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.time_segments import TimeSegment
from tvm_rnn.cuda.linear.pair import EVERY
from tvm_rnn.cuda.plan.layer import Layer
from tvm_rnn.graph.graph import Graph, Node, in_order
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.network.rnn import RNN


def states_read(graph: Graph) -> list[int]:
    """Numbers of the states whose values before every step the backward graph reads."""
    assert graph.backward is not None
    read, again = set(graph.backward.nodes()), marked(graph)
    first = 1 + len(graph.inputs)
    leaves = graph.backward.inputs[first : first + len(graph.states)]
    return [number for number, leaf in enumerate(leaves) if leaf in read and number not in again]


def kept_nodes(graph: Graph) -> tuple[Node, ...]:
    """What a forward layer keeps: emitted values, then the new values of states."""
    return (*graph.emitted, *(graph.results[number] for number in states_read(graph)))


def narrowed(graph: Graph, dtype: str) -> dict[Node, str]:
    """Of what a forward layer keeps, what may lie in that dtype, where one is named: vectors that no product of the
    backward graph reads."""
    back = graph.backward
    assert back is not None
    first = 1 + len(graph.inputs)
    pairs = [*zip(graph.emitted, back.inputs[first + len(graph.states) :], strict=True)]
    pairs += [(graph.results[n], back.inputs[first + n]) for n in states_read(graph)]
    operands = set[Node]()
    todo = [a for n in back.nodes() if not n.leaf and TABLE[n.op].kind in ("contract", "sum_rows") for a in n.args]
    while todo:
        node = todo.pop()
        if node.leaf:
            operands.add(node)
        elif TABLE[node.op].kind == "move":
            todo += node.args
    wide = {node for node, leaf in pairs if leaf in operands or prod(node.shape) == 1}
    return {node: dtype for node, _ in pairs if dtype and node not in wide}


@dataclass(frozen=True)
class TapeArray:
    """One array: its rows per step and batch row, and of one more step; bytes of a row. flagged: it is there in calls
    with lengths or resets alone. whole: where time is gone through in segments, it has room for all of it. every: steps
    that share a row."""

    more: int  # 1: T + 1 entries
    row_bytes: int
    dtype: str
    flagged: bool = False
    whole: bool = False
    every: int = 1

    def size(self, steps: str) -> str:
        """Bytes, a C++ expression. steps: of the time that it has room for."""
        if self.every > 1:
            return f"({steps} + {self.every - 1}) / {self.every} * B * {self.row_bytes}"
        return f"{f'({steps} + {self.more})' if self.more else steps} * B * {self.row_bytes}"


@dataclass
class Tape:
    """codes: the forward layers, by graph; of_layer: the graph of each layer."""

    net: RNN
    codes: list[Layer]
    of_layer: tuple[int, ...]
    arrays: list[TapeArray] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)  # by layer
    extra: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.visits: dict[tuple[int, int], list[int]] = {}  # by layer and direction: of each kept value
        self.matrices: dict[tuple[int, int], dict[int, int]] = {}  # likewise, of each matrix by its number
        self.shared: dict[int, tuple[int, Place]] = {}  # inputs that are a state of the layer below: where, and how
        self.output: tuple[int, Place] | None = None  # of the last layer's states that which y is: where, and how
        own = [layer for layer in range(1, len(self.of_layer)) if self._state_below(layer) is None]
        whole = self.net.num_directions > 1  # then outputs between layers come first
        places = {layer: self._add(self.input_place(self._input(layer)), 0, whole=whole) for layer in own}
        for layer, index in enumerate(self.of_layer):
            code = self.codes[index]
            emitted = len(code.graph.emitted)
            for direction in range(self.net.num_directions):
                last = layer == len(self.of_layer) - 1 and not code.graph.pixels  # a caller's images lie otherwise
                given = self._output_state(code, self.input_place(code.graph.output)) if last else None
                kept = [(i, code.layout.kept_place(node)) for i, node in enumerate(code.layout.kept) if i != given]
                found = {i: self._add(place, int(i >= emitted)) for i, place in kept}
                self.matrices[layer, direction] = {n: self._add_matrix(code, n) for n in code.marked}
                # Those of flagged calls come last, so that others are where they are with and without them.
                if given is not None:
                    place = code.layout.kept_place(code.layout.kept[given])
                    found[given] = self._add(place, 1, flagged=True)
                    self.output = found[given], place
                self.visits[layer, direction] = [found[i] for i in range(len(found))]
        for layer in range(1, len(self.of_layer)):
            state = None if layer in places else self._state_below(layer)
            if state is not None:
                place = self.input_place(self._input(layer))
                places[layer] = self._add(place, 0, flagged=True)
                self.shared[places[layer]] = self.visits[layer - 1, 0][state], place
        users = self.codes[self.of_layer[0]].graph.inputs
        self.users = [self._add(self.input_place(node), 0, flagged=True) for node in users]
        places[0], self.extra = self.users[0], self.users[1:]
        self.inputs = [places[layer] for layer in range(len(self.of_layer))]

    def _input(self, layer: int) -> Node:
        return self.codes[self.of_layer[layer]].graph.inputs[0]

    def _state_below(self, layer: int) -> int | None:
        """Among what the layer below keeps: the state that is its output, where it lies as this layer's inputs do."""
        return self._output_state(self.codes[self.of_layer[layer - 1]], self.input_place(self._input(layer)))

    def _output_state(self, code: Layer, place: Place) -> int | None:
        """Among what a layer keeps: the state that is its output, where it lies as readers of the output expect."""
        if self.net.num_directions > 1 or place.row_stride * ITEM_BYTES[place.dtype] % 16:
            return None
        for number, node in enumerate(code.layout.kept):
            same = code.layout.kept_place(node)
            alike = (same.dtype, same.row_stride) == (place.dtype, place.row_stride)
            if number >= len(code.graph.emitted) and node is in_order(code.graph.output) and alike:
                return number
        return None

    def _add(self, place: Place, more: int, flagged: bool = False, whole: bool = False) -> int:
        self.arrays.append(TapeArray(more, place.row_stride * ITEM_BYTES[place.dtype], place.dtype, flagged, whole))
        return len(self.arrays) - 1

    def _add_matrix(self, code: Layer, number: int) -> int:
        shape, dtype, every = code.graph.states[number].shape, code.marks_dtype, EVERY
        if code.again is not None:
            dtype, every = code.layout.arithmetic, code.again.every
        self.arrays.append(TapeArray(0, prod(shape) * ITEM_BYTES[dtype], dtype, every=every))
        return len(self.arrays) - 1

    def input_place(self, node: Node) -> Place:
        """Rows of an input on the tape: dense."""
        return Place(self.net.dtype, prod(node.shape), 16)

    def pointers(self, program: Program, base: Pointer, given: int, of: TimeSegment) -> list[Pointer]:
        """Each array from the call's first step on, in a program whose tape begins at `base`, and which has the
        caller's inputs from its own input number `given` on. of: what the call is for."""
        let = program.sequence.let if of.given else program.let
        found, at = [], "int64_t(0)"
        for array in self.arrays:
            shift = f" + {of.first} * B * {array.row_bytes}" if array.whole else ""
            found.append(Pointer(f"({base.text} + {at}{shift})", array.dtype))
            steps = of.whole if array.whole else "T"
            at = let("tape", f"{at} + ({array.size(steps)} + {ALIGNMENT - 1}) / {ALIGNMENT} * {ALIGNMENT}")

        def share(own: int, other: Pointer) -> None:
            """Calls without lengths and resets find it there."""
            text = f"(has_lengths || has_reset ? {found[own].text} : {other.text})"
            found[own] = Pointer(text, found[own].dtype)

        if self.output is not None:
            own, place = self.output
            share(own, program.output.at(0 if self.net.reverse else f"(0 - B * {place.row_stride})"))
        for own, (state, place) in self.shared.items():
            share(own, found[state].at(0 if self.net.reverse else f"B * {place.row_stride}"))
        for number, own in enumerate(self.users):
            share(own, program.input(given + number))
        return found

    def sizes(self) -> list[list[int]]:
        """[bytes per row of a step, further steps] of every array, each rounded up to 256 bytes; with a third number,
        1, those of calls with lengths or resets alone; with a fourth, those that have a row for so many steps."""
        found = []
        for array in self.arrays:
            more = [0, array.every] if array.every > 1 else [1] if array.flagged else []
            each = prod(self.codes[0].graph.pixels)  # rows of a batch row
            found.append([each * array.row_bytes, array.more, *more])
        return found

    def matrix(self, pointers: Sequence[Pointer], key: tuple[int, int], number: int, start: HostExpr) -> Pointer:
        """Of a visit, the state `number` before a part of the time that begins at step `start`."""
        array = self.matrices[key][number]
        size = self.arrays[array].row_bytes // ITEM_BYTES[self.arrays[array].dtype]
        return pointers[array].at(f"{start} / {self.arrays[array].every} * B * {size}")

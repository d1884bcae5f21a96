"""The tape on the GPU: where `forward_train` leaves what `backward` reads.

In: the layers of the forward graphs of training, with what they keep. Out: `Tape`: pointers to its arrays, as both host
programs compute them, and its size for the manifest. Each array is [T, B, row], in order of time:

    inputs     the first layer's, then what each layer above reads: the outputs of the one below, in the dtype of x
    kept       for each layer and direction what its graph emits
    states     for each layer and direction the states that the backward graph reads, T+1 times: entry t is the state
               before step t, after step t + 1 in the direction that goes backwards it is the reverse
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from ..graph import Graph, Node
from ..rnn import RNN
from .places import Place
from .program import ALIGNMENT, ITEM_BYTES, Pointer, Program
from .steps import Layer


def states_read(graph: Graph) -> list[int]:
    """Numbers of the states whose values before the step the backward graph reads."""
    assert graph.backward is not None
    read = set(graph.backward.nodes())
    first = 1 + len(graph.inputs)
    leaves = graph.backward.inputs[first : first + len(graph.states)]
    return [number for number, leaf in enumerate(leaves) if leaf in read]


def kept_nodes(graph: Graph) -> tuple[Node, ...]:
    """What a forward layer keeps: emitted values, then the new values of states."""
    return (*graph.emitted, *(graph.results[number] for number in states_read(graph)))


@dataclass(frozen=True)
class Part:
    """One array: its rows per step and batch row, and of one more step; bytes of a row."""

    more: int  # 1: T + 1 entries
    row_bytes: int
    dtype: str


@dataclass
class Tape:
    """codes: the forward layers, by graph; of_layer: the graph of each layer."""

    net: RNN
    codes: list[Layer]
    of_layer: tuple[int, ...]
    parts: list[Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.inputs: list[int] = []  # by layer
        self.extra: list[int] = []
        self.visits: dict[tuple[int, int], list[int]] = {}  # by layer and direction: of each kept value
        for layer, index in enumerate(self.of_layer):
            node = self.codes[index].graph.inputs[0]
            self.inputs.append(self._add(self.input_place(node), 0))
            for more in self.codes[index].graph.inputs[1:] if layer == 0 else ():
                self.extra.append(self._add(self.input_place(more), 0))
        for layer, index in enumerate(self.of_layer):
            code = self.codes[index]
            emitted = len(code.graph.emitted)
            for direction in range(self.net.num_directions):
                kept = enumerate(code.layout.kept)
                places = [self._add(code.layout.kept_place(n), int(i >= emitted)) for i, n in kept]
                self.visits[layer, direction] = places

    def _add(self, place: Place, more: int) -> int:
        self.parts.append(Part(more, place.row_stride * ITEM_BYTES[place.dtype], place.dtype))
        return len(self.parts) - 1

    def input_place(self, node: Node) -> Place:
        """Rows of an input on the tape: dense."""
        return Place(self.net.dtype, prod(node.shape), 16)

    def pointers(self, program: Program, base: Pointer) -> list[Pointer]:
        """Each array, in a program whose tape begins at `base`."""
        found, at = [], "int64_t(0)"
        for part in self.parts:
            found.append(Pointer(f"({base.text} + {at})", part.dtype))
            size = f"(T + {part.more}) * B * {part.row_bytes}" if part.more else f"T * B * {part.row_bytes}"
            at = program.let("tape", f"{at} + ({size} + {ALIGNMENT - 1}) / {ALIGNMENT} * {ALIGNMENT}")
        return found

    def sizes(self) -> list[list[int]]:
        """[bytes per row of a step, further steps] of every array, each rounded up to 256 bytes."""
        return [[part.row_bytes, part.more] for part in self.parts]

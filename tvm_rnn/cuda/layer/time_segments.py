"""Training by segments of time: the further arguments of a host program that is called for one segment.

In: a program, and the number of the first of these inputs, integers in place of addresses. Out: `TimeSegment`:
expressions of the host program, and conditions for what concerns one layer and direction alone.

    whole   steps of all segments, where T is of one: gradients and outputs between layers have room for these
    first   the segment's first step among them
    visit   the layer and direction that the call is for, -1: all
    border  1: steps follow the segment; 2: steps come before it; 3: both. What goes back in time is reset at a flag
            of the step after the segment

Networks of one direction that go forward in time need none: their segments are calls like others.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from tvm_rnn.cuda.codegen.host_program import Host, Program

COUNT = 4


@dataclass(frozen=True)
class TimeSegment:
    """directions: of the network. given: whether the program has these inputs."""

    directions: int = 1
    whole: str = "T"
    first: str = "0"
    visit: str = "-1"
    border: str = "0"
    given: bool = False

    def of_visit(self, host: Host, layer: int, direction: int) -> AbstractContextManager[None]:
        """What is done for one layer and direction, in calls for it."""
        return self._when(host, f"{self.visit} == {layer * self.directions + direction}")

    def of_layer(self, host: Host, layer: int) -> AbstractContextManager[None]:
        """What is done for both directions of a layer, in calls for either."""
        return self._when(host, f"{self.visit} / {self.directions} == {layer}")

    def _when(self, host: Host, condition: str) -> AbstractContextManager[None]:
        several = self.given and self.directions > 1
        return host.when(f"{self.visit} < 0 || {condition}") if several else nullcontext()


def time_segment(program: Program, number: int, directions: int) -> TimeSegment:
    """Those of a program whose inputs from `number` on are these numbers."""
    names = ("whole", "first", "visit", "border")
    texts = [f"reinterpret_cast<int64_t>({program.input(number + i).text})" for i in range(COUNT)]
    found = {name: program.sequence.let(name, text) for name, text in zip(names, texts, strict=True)}
    return TimeSegment(directions, **found, given=True)

"""What the passes made of a network, in each form that somebody plans with: handed to planners, which run no pass.

In: a network, its options, and the function that runs the passes (`pipeline.passed` puts it in). Out: graphs of
inference, of training, of layers in a wave, and of a first step from no states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from tvm_rnn.decisions import recording
from tvm_rnn.graph.graph import Layers
from tvm_rnn.network.rnn import RNN
from tvm_rnn.options import Options

Stages = list[tuple[str, Layers]]  # the graphs after each pass, in order
IN_STEP = ("hoist_gemms",)  # left out where products of inputs are part of the step


class Pipeline(Protocol):
    """Runs the passes. starts: for a first step from no states (`first_step.py`)."""

    def __call__(self, net: RNN, options: Options, starts: bool = False) -> Stages: ...


@dataclass(frozen=True)
class Passed:
    """A network after its passes. Each form is made when it is first asked for."""

    net: RNN
    options: Options
    pipeline: Pipeline

    @cached_property
    def stages(self) -> Stages:
        """Of inference."""
        return self.pipeline(self.net, replace(self.options, training=False))

    @property
    def layers(self) -> Layers:
        """The graphs of inference after all passes."""
        return self.stages[-1][1]

    def run(self) -> Layers:
        """Run the passes of inference now: who listens hears of them first."""
        return self.layers

    def training(self, keep: bool | str) -> Stages:
        """With backward graphs, for that choice of what is kept. Run at each call: who listens hears of it again."""
        return self.pipeline(self.net, replace(self.options, training=keep))

    @cached_property
    def in_wave(self) -> Layers:
        """The graphs of layers that run step by step beside each other: products of inputs are part of the step."""
        return self.in_step(False)

    @cached_property
    def first_step(self) -> Layers:
        """The graphs of a call of one step that is given no states, with products of inputs as part of the step. An
        attempt, too."""
        with recording(listen=False):
            return self.pipeline(self.net, replace(self.options, training=False, without=IN_STEP), starts=True)[-1][1]

    def in_step(self, training: bool | str) -> Layers:
        """The graphs of inference, or of training for that choice of what is kept, with products of inputs as part of
        the step. This is an attempt: nobody hears of its passes."""
        with recording(listen=False):
            return self.pipeline(self.net, replace(self.options, training=training, without=IN_STEP))[-1][1]

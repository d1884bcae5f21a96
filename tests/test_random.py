"""hypothesis: random equations from the op table, compiled, equal the oracle; every pass keeps their meaning.

Equations with comparisons or sign run in float64 only: a rounding error of float32 may turn one over. The zoo's cells
with random sizes and options are in test_random_cells.py.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from networks import first_state, fitting
from random_equations import OPS, Equations, Shape, Writer, equations

import tvm_rnn as rnn
from tvm_rnn import target
from tvm_rnn.language import trace
from tvm_rnn.options import PASS_NAMES
from tvm_rnn.oracle.reference import Draws, Reference
from tvm_rnn.oracle.tolerance import assert_close, relative_error
from tvm_rnn.passes import pipeline

HERE = [n for n in ("llvm", "x86-64-v3", "x86-64") if set(target.resolve(n).features) <= set(target.host().features)]
PASSES = st.sets(st.sampled_from(PASS_NAMES))
STEPS, SEED = 4, 2**40 + 3
# No explain phase: it compiles a counter-example hundreds of times over.
PHASES = (Phase.explicit, Phase.generate, Phase.shrink)


@dataclass
class ByChance(Writer):
    """Writes lines without hypothesis, hence many in a short time."""

    rng: random.Random = field(default_factory=random.Random)

    def one_of(self, options: Any) -> Any:
        return self.rng.choice(list(options))

    def order(self, rank: int) -> Shape:
        return tuple(self.rng.sample(range(rank), rank))


def test_random_equations_are_made_of_every_function() -> None:
    rng, called = random.Random(0), set[str]()
    for _ in range(300):
        writer = ByChance(lambda _: None, sharp=True, drawing=True, rng=rng)
        for name, shape in (("x", (4,)), ("h", (4,)), ("S", (2, 5)), ("M", (1, 3))):
            writer.leaf(writer.states, name, shape)
        for _ in range(12):
            getattr(writer, rng.choice(OPS.split()))()
        called |= {name for line in writer.lines for name in re.findall(r"\b(\w+)\(", line.text)}
    assert called >= trace.FUNCTIONS, trace.FUNCTIONS - called


def examples(count: int, same: bool) -> Callable[[Any], Any]:
    """That many examples; `same`: each time the same ones."""
    checks = list(HealthCheck)
    return settings(
        max_examples=count, deadline=None, derandomize=same, database=None, suppress_health_check=checks, phases=PHASES
    )


def drawn(drawn_from: Equations, net: rnn.RNN, batch: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Inputs and states in -1..1, as the equations' bounds want them; lengths and resets."""
    rng = np.random.default_rng(0)
    x = {n: rng.uniform(-1, 1, (STEPS, batch, *s)).astype(net.dtype) for n, s in drawn_from.inputs.items()}
    state = {n: rng.uniform(-1, 1, v.shape).astype(net.dtype) for n, v in first_state(net, batch).items()}
    rows = {"lengths": rng.integers(0, STEPS + 1, batch), "reset": rng.random((STEPS, batch)) < 0.2}
    return x, state, fitting(net, rows)


def compiled_is_the_oracle(
    cell: Equations, dtype: str, without: set[str], machine: str, batches: tuple[int, ...], batch: int
) -> None:
    net = cell.net("float64" if cell.sharp else dtype)
    module: Any = rnn.compile(net, machine, batches, without=without, training=cell.draws)
    oracle, x, state, rows = rnn.reference(net, SEED if cell.draws else None), *drawn(cell, net, batch)

    def run(**own: Any) -> Any:
        return module.forward_train(x, state, seed=SEED, **own)[:2] if cell.draws else module(x, state, **own)

    assert_close(run(), oracle(x, state), net.dtype, 2000, "all rows")
    assert_close(run(**rows), oracle(x, state, **rows), net.dtype, 2000, "ragged rows")


def loop_is_the_oracle(cell: Equations, without: set[str], machine: str, batch: int) -> None:
    """A closed loop: the output of a step is the input of the next."""
    net = cell.net("float64")
    module: Any = rnn.compile(net, machine, generate=True, without=without)
    prompt = np.random.default_rng(0).uniform(-1, 1, (2, batch, *cell.inputs["x"]))
    given = {"prompt": prompt, "seed": SEED if cell.draws else None}
    found, expected = module.generate(STEPS, **given), rnn.reference(net).generate(STEPS, **given)
    assert_close(found[:2], expected[:2], net.dtype, 2000)


CASES = {
    "cell": equations(drawing=True),
    "dtype": st.sampled_from(["float32", "float64"]),
    "without": PASSES,
    "machine": st.sampled_from(HERE),
    "batches": st.sampled_from([(), (1,), (3, 16)]),
    "batch": st.sampled_from([1, 2, 5, 9]),
}


@pytest.mark.slow
@examples(15, same=True)
@given(**CASES)
def test_compiled_equations(**case: Any) -> None:
    compiled_is_the_oracle(**case)


LOOPS = {name: CASES[name] for name in ("without", "machine", "batch")}


@pytest.mark.broad
@examples(4, same=True)
@given(cell=equations(drawing=True, looped=True), **LOOPS)
def test_loops(**case: Any) -> None:
    loop_is_the_oracle(**case)


@pytest.mark.slow
@examples(200, same=False)
@given(cell=equations(drawing=True, looped=True), **LOOPS)
def test_many_loops(**case: Any) -> None:
    loop_is_the_oracle(**case)


@pytest.mark.slow
@examples(500, same=False)
@given(**CASES)
def test_many_compiled_equations(**case: Any) -> None:
    compiled_is_the_oracle(**case)


@pytest.mark.slow
@examples(60, same=False)
@given(**CASES | {"cell": equations(most=40, drawing=True)})
def test_long_compiled_equations(**case: Any) -> None:
    compiled_is_the_oracle(**case)


def every_stage_is_the_oracle(cell: Equations, without: set[str]) -> None:
    net = cell.net("float64")
    x, state, rows = drawn(cell, net, 2)
    expected, final = rnn.reference(net, SEED if cell.draws else None)(x, state, **rows)
    for stage, layers in pipeline.run(net, target.TABLE["x86-64-v4"], without):
        graphs = [layers.graphs[i] for i in layers.of_layer]
        y, end = Reference(net, graphs, Draws(SEED) if cell.draws else None)(x, state, **rows)
        assert relative_error(y, expected) < 1e-12, stage
        assert max(relative_error(end[n], final[n]) for n in final) < 1e-12, stage


@pytest.mark.broad
@examples(200, same=True)
@given(cell=equations(drawing=True), without=PASSES)
def test_every_stage_keeps_the_meaning(cell: Equations, without: set[str]) -> None:
    every_stage_is_the_oracle(cell, without)


@pytest.mark.slow
@examples(5000, same=False)
@given(cell=equations(most=30, drawing=True), without=PASSES)
def test_every_stage_keeps_the_meaning_of_many(cell: Equations, without: set[str]) -> None:
    every_stage_is_the_oracle(cell, without)

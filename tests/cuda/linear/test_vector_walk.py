"""How blocks walk over steps: whole rounds and a rest, in both directions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from emulated import run
from tvm import tirx
from vector_scans import BATCH, WIDTH, linear

from tvm_rnn.cuda.codegen.kernel_writer import Writer, write
from tvm_rnn.cuda.linear.vector_effects import Effect
from tvm_rnn.cuda.linear.vector_loads import Step
from tvm_rnn.cuda.linear.vector_walk import Walk
from tvm_rnn.tir.expr import Expr


class Counting(Walk):
    """Counts the steps of the chunk that are inside it, in each warp, and what the rounds of all warps do."""

    def begin(self) -> None:
        self.counted = self.w.local(1, "int32")
        self.w.store(self.counted, tirx.const(0, "int32"), 0)
        self.total = [Effect(self, e) for e in self.elements]

    def round(self, number: Expr, steps: Sequence[Step]) -> None:
        w = self.w
        for step in steps:
            one = tirx.const(1, "int32") if step.inside is None else tirx.Cast("int32", step.inside)
            w.store(self.counted, self.counted[0] + one, 0)
        for part in self.effects(number, steps):
            for own, words in zip(self.total, part, strict=True):
                own.join(words)

    def finish(self) -> None:
        w = self.w
        w.store(w["counts"], self.counted[0], self.flat)
        for e, own in enumerate(self.total):
            w.store(w["totals"], own.words()[-1], self.flat + e)


@pytest.mark.parametrize(("steps", "backwards"), [(17, False), (12, True), (5, False)])
def test_whole_rounds_and_a_rest(steps: int, backwards: bool) -> None:
    """Of the first warp: a round is its steps, and those of the other one."""
    scan, _ = linear()
    given = [a for a in scan.arguments if a.role == "read"]
    rng = np.random.default_rng(steps)
    arrays = {a.name: rng.standard_normal((steps, BATCH, WIDTH)).astype("float32") for a in given}
    arrays |= {"counts": np.zeros(BATCH * WIDTH, "int32"), "totals": np.zeros((BATCH, WIDTH), "float32")}
    pointers = [*((a.name, "float32") for a in given), ("counts", "int32"), ("totals", "float32")]
    scalars = {"steps": steps, "reverse": int(backwards), "batch": BATCH, "chunks": 1, "span": steps}

    def body(w: Writer) -> None:
        Counting(w, scan, masked=False).emit()

    kernel = write("k", pointers, [(name, "int32") for name in scalars], body, threads=scan.threads("apply"))
    run(kernel, arrays, scalars, -(-BATCH * WIDTH // scan.tile))
    first = sum(t % scan.round < scan.ahead for t in range(steps))
    assert (arrays["counts"] == first).all()
    names = {a.node: a.name for a in given}
    row = scan.rows[0]
    factors, terms = (arrays[names[n]].astype("float64") for n in (row.args[1].args[0], row.args[2]))
    h = np.zeros((BATCH, WIDTH))
    for t in reversed(range(steps)) if backwards else range(steps):
        h = h / (1 + np.exp(-factors[t])) + terms[t]
    np.testing.assert_allclose(arrays["totals"], h, rtol=1e-4, atol=1e-4)

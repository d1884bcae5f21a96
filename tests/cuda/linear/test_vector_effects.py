"""What steps do to states: effects that are joined in any way do what they do one after the other, on the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import run
from tvm.script.ir_builder import tirx as I
from vector_scans import KINDS

from tvm_rnn.cuda.codegen.kernel_writer import Writer, write
from tvm_rnn.cuda.linear.vector_effects import Effect, Rows

THREADS = 32


@pytest.mark.parametrize("kind", ["pair", "maximum"])
@pytest.mark.parametrize("masked", [False, True])
def test_joined_in_any_way(kind: str, masked: bool) -> None:
    """Behind each other, and the last two first; where one is cut, what comes before it counts no more."""
    scan, _ = KINDS[kind]()
    words, count = scan.words, len(scan.states)
    rng = np.random.default_rng(count)
    given = rng.standard_normal((THREADS, 3, words)).astype("float32")
    given[..., 0] = rng.random((THREADS, 3)) < 0.3 if masked else 0
    states = rng.standard_normal((THREADS, count)).astype("float32")

    def body(w: Writer) -> None:
        I.cta_id([1])
        thread = w.keep(I.thread_id([THREADS]))
        rows = Rows(w, scan, masked)
        parts = [[w["given"][(thread * 3 + p) * words + n] for n in range(words)] for p in range(3)]
        forwards, backwards = Effect(rows, 0), Effect(rows, 0)
        for part in parts:
            forwards.join(part)
        for part in reversed(parts):
            backwards.come_behind(part)
        apart = [forwards.words(), backwards.words()]
        for number, each in enumerate([parts, *([words] for words in apart)]):
            held = [w.local(1, "float32") for _ in scan.states]
            for n, register in enumerate(held):
                w.store(register, w["states"][thread * count + n], 0)
            for part in each:
                rows.act(held, part)
            for n, register in enumerate(held):
                w.store(w["found"], register[0], (thread * 3 + number) * count + n)

    found = np.full((THREADS, 3, count), np.nan, "float32")
    kernel = write("k", [(n, "float32") for n in ("given", "states", "found")], [], body, threads=THREADS)
    run(kernel, {"given": given, "states": states, "found": found}, {}, 1)
    np.testing.assert_allclose(found[:, 1], found[:, 0], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(found[:, 2], found[:, 0], rtol=2e-5, atol=2e-5)
    cut = given[:, 2, 0] == 1
    np.testing.assert_array_equal(found[cut, 0], given[cut, 2, words - count :])

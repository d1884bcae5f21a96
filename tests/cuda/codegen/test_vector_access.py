"""Several elements at once: what is loaded is stored, in every pair of dtypes, on the emulator."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from emulated import POISON, decoded, encoded, rounded, run
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Writer, write
from tvm_rnn.cuda.codegen.vector_access import DTYPES, LoadedLanes, aligned, store_lanes

ODD = [0.0, -0.0, 1.0, 1e-30, 70000.0, np.inf, -np.inf, np.nan, 1 + 2**-9, 1 + 3 * 2**-9, -3.14159, 2.0**-24]


def moved(source: str, target: str, lanes: int, w: Writer) -> None:
    I.cta_id([1])
    at = w.keep(I.thread_id([32]) * lanes)
    loaded = LoadedLanes(w, source, lanes)
    loaded.load("a", at)
    store_lanes(w, "b", target, at, loaded.values())


@pytest.mark.broad
@pytest.mark.parametrize("lanes", [4, 8, 1])
@pytest.mark.parametrize("source", DTYPES)
def test_what_is_loaded_is_stored(source: str, lanes: int) -> None:
    """Rounded to the nearest; infinities and NaN stay."""
    with np.errstate(over="ignore"):
        values = rounded(np.resize(ODD, 32 * lanes), source)
    for target in DTYPES:
        body = partial(moved, source, target, lanes)
        kernel = write("k", [("a", source), ("b", target)], [], body, threads=32)
        arrays = {"a": encoded(values, source), "b": encoded(np.full(32 * lanes + 1, POISON), target)}
        run(kernel, arrays, {}, 1)
        found = decoded(arrays["b"], target)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(found[:-1], rounded(values, target))
        assert np.isnan(found[-1])


def test_addresses() -> None:
    pair = [Pointer("a", "bfloat16"), Pointer("b", "float32"), Pointer("c", "bfloat16")]
    text = "(reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(c)) % 8 == 0"
    assert aligned(pair) == f"{text} && (reinterpret_cast<uintptr_t>(b)) % 16 == 0"
    assert aligned(pair[:1], 8).endswith("% 16 == 0") and aligned(pair[:1], 1).endswith("% 2 == 0")

"""Weight drop on GPUs: dropped parameters are NumPy's bit for bit, emulated; what programs have of it."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import run

from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.rowwise.dropout_masks import NetworkMaskKeys
from tvm_rnn.cuda.rowwise.weight_drop import Dropped, drop_kernel
from tvm_rnn.graph.graph import Node
from tvm_rnn.runtime import runtime_random

WEIGHT = Node("param", shape=(3, 7), name="R")


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dropped_weights_are_numpys(dtype: str) -> None:
    kernel, name, size = drop_kernel("drop", dtype, 0.6), runtime_random.ONCE + "R", 300
    source = np.random.default_rng(0).normal(size=size).astype(dtype)
    for seed, there in ((3, 0), (-1, 0), (77, 1)):
        target = np.full(size + 8, np.nan, dtype)
        arrays = {"source": source, "target": target, "seed_at": np.array([seed])}
        word = runtime_random.name_word(name)
        number = 12345 if there else seed
        scalars = {"count": size, "number": number, "there": there, "word": word, "place": 2 * 1 + 1}
        run(kernel, arrays, scalars, -(-size // 128))
        words = runtime_random.key(seed % (1 << 64), name, 1, 1)
        kept = runtime_random.mask(words, 0.6, 1, size, 0)[0] > 0
        expected = np.where(kept, source * np.dtype(dtype).type(1 / 0.6), 0)
        np.testing.assert_array_equal(target[:size] == 0, expected == 0)
        # CUDA text has 16 digits of the factor.
        np.testing.assert_allclose(target[:size], expected, rtol=1e-15 if dtype == "float64" else 0)
        assert np.isnan(target[size:]).all() and kept.any() and not kept.all()


def test_a_parameter_is_dropped_once_for_all_that_read_it() -> None:
    program = Program()
    dropped = Dropped({"R": 0.25})
    one, two = (dropped.weight(program, WEIGHT, 1, 0, "float32") for _ in range(2))
    other = dropped.weight(program, WEIGHT, 1, 1, "float32")
    assert one == two != other and len(program.kernels) == 1
    assert [name for name, _ in program.parameters] == ["R_l1", "masks.seed", "masks.seed_at", "R_l1_reverse"]
    assert sum("drop0" in line for line in program.pack.lines) == 2
    mask_keys = NetworkMaskKeys(program, 2, [], 2, 2)
    mask_keys.prepare(program.sequence)
    assert not program.sequence.lines  # no mask of rows: no keys
    dropped.gradient(program.sequence, mask_keys, WEIGHT, (1, 0), program.input(0).cast("float32"))
    assert sum("drop0" in line for line in program.sequence.lines) == 1

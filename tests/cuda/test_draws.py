"""Masks on GPUs: keys and masks are NumPy's bit for bit, emulated."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import decoded, encoded, run

from tvm_rnn import runtime_random
from tvm_rnn.cuda.draws import Draws, keys_kernel, mask_kernel
from tvm_rnn.cuda.places import Place
from tvm_rnn.cuda.program import Program
from tvm_rnn.graph import make
from tvm_rnn.ops import TABLE

STREAMS = ("dropout", "recurrent_dropout.h", "zoneout.c")


@pytest.mark.parametrize(("layers", "directions"), [(3, 2), (2, 1)])
def test_keys_are_numpys(layers: int, directions: int) -> None:
    kernel = keys_kernel(STREAMS, layers, directions)
    for seed, there in ((5, 0), (-3, 0), (0x0123456789ABCDEF, 1)):
        arrays = {"keys": np.zeros(2 * layers * directions * 3, np.uint32), "seed_at": np.array([seed])}
        run(kernel, arrays, {"number": 99 if there else seed, "there": there}, 1)
        expected = runtime_random.keys(seed % (1 << 64), list(STREAMS), layers, directions)
        np.testing.assert_array_equal(arrays["keys"], expected.ravel())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("every", "shape"), [("step", (7,)), ("sequence", (7,)), ("step", (3, 5))])
def test_masks_are_numpys(every: str, shape: tuple[int, ...], dtype: str) -> None:
    batch, steps, start, size = 3, 4, (1 << 32) - 2, int(np.prod(shape))
    node = make("mask", stream="zoneout.c", keep=0.3, every=every, to=shape)
    made = mask_kernel("mask", node, lambda n: [Place(dtype, size + 1)], STREAMS)
    assert made.at == 4 and [a.role for a in made.arguments] == ["write"]
    memory = encoded(np.full((steps * batch, size + 1), 7.0), dtype)
    words = runtime_random.key(8, "zoneout.c", 1, 0)
    arrays = {"w0": memory, "keys": np.array(words, np.uint32)}
    run(
        made.kernel, arrays, {"rows": steps * batch, "batch": batch, "start": start}, -(-steps * batch // (128 // size))
    )
    found = decoded(memory, dtype).reshape(steps, batch, size + 1)
    assert (found[..., size] == 7.0).all()  # what lies behind a row stays
    for t in range(steps):
        expected = TABLE["mask"].numpy(words, batch, start + t, **node.attrs)
        np.testing.assert_array_equal(found[t, :, :size].reshape(batch, *shape), expected)


def test_layers_and_directions_have_words_of_their_own() -> None:
    program = Program()
    draws = Draws(program, 4, STREAMS, 3, 2)
    draws.prepare(program.sequence)
    texts = [draws.of(layer, direction).keys.text for layer in range(3) for direction in range(2)]
    assert len({*texts}) == 6 and program.inputs == 7
    assert draws.of(0, 0).first == "reinterpret_cast<int64_t>(input[6])"
    assert "mask_keys" in program.kernels and any("mask_keys" in line for line in program.sequence.lines)

"""Masks on GPUs: keys and masks are NumPy's bit for bit, emulated."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import decoded, encoded, run

from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.rowwise.dropout_masks import (
    BITS,
    Dropped,
    NetworkMaskKeys,
    drop_kernel,
    keys_kernel,
    mask_kernel,
    words_kernel,
)
from tvm_rnn.graph.graph import Node, make
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.runtime import runtime_random

STREAMS = ("dropout", "recurrent_dropout.h", "zoneout.c")


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(("layers", "directions"), [(3, 2), (2, 1)])
def test_keys_are_numpys(layers: int, directions: int) -> None:
    kernel = keys_kernel(STREAMS, layers, directions)
    for seed, there in ((5, 0), (-3, 0), (0x0123456789ABCDEF, 1)):
        arrays = {"keys": np.zeros(2 * layers * directions * 3, np.uint32), "seed_at": np.array([seed])}
        run(kernel, arrays, {"number": 99 if there else seed, "there": there}, 1)
        expected = runtime_random.keys(seed % (1 << 64), list(STREAMS), layers, directions)
        np.testing.assert_array_equal(arrays["keys"], expected.ravel())


def drawn(arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], tuple[int, int]]:
    """The arrays and the keys of one mask, which are returned too."""
    words = runtime_random.key(8, "zoneout.c", 1, 0)
    return {**arrays, "keys": np.array(words, np.uint32)}, words


def mask(every: str, shape: tuple[int, ...]) -> Node:
    return make("mask", stream="zoneout.c", keep=0.3, every=every, to=shape)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("every", "shape", "steps"),
    [("step", (7,), 4), ("sequence", (7,), 4), ("step", (3, 5), 4), ("sequence", (3, 5), 33), ("sequence", (1,), 64)],
)
def test_masks_are_numpys(every: str, shape: tuple[int, ...], steps: int, dtype: str) -> None:
    batch, start, size = 3, (1 << 32) - 2, int(np.prod(shape))
    node = mask(every, shape)
    made = mask_kernel("mask", node, lambda n: [Place(dtype, size + 1)], STREAMS)
    assert made.at == 4 and [a.role for a in made.arguments] == ["write"]
    memory = encoded(np.full((steps * batch, size + 1), 7.0), dtype)
    arrays, words = drawn({"w0": memory})
    whole = every == "sequence"
    rows = -(-steps // 32) * batch if whole else steps * batch
    scalars = {"rows": rows, "batch": batch, **({"steps": steps} if whole else {"start": start})}
    run(made.kernel, arrays, scalars, -(-rows // (128 // size)))
    found = decoded(memory, dtype).reshape(steps, batch, size + 1)
    assert (found[..., size] == 7.0).all()  # what lies behind a row stays
    for t in range(steps):
        expected = TABLE["mask"].numpy(words, batch, start + t, **node.attrs)
        np.testing.assert_array_equal(found[t, :, :size].reshape(batch, *shape), expected)


@pytest.mark.broad
@pytest.mark.parametrize("every", ["step", "sequence"])
@pytest.mark.parametrize(("shape", "batch", "steps"), [((33,), 5, 70), ((130,), 1, 32), ((1,), 7, 1), ((2, 3), 3, 65)])
def test_words_hold_32_steps(every: str, shape: tuple[int, ...], batch: int, steps: int) -> None:
    start, size, groups = (1 << 32) - 40, int(np.prod(shape)), -(-steps // BITS)
    node = mask(every, shape)
    groups = 1 if every == "sequence" else groups
    memory = np.zeros((groups, batch, size), np.uint32)
    arrays, words = drawn({"words": memory})
    scalars = {"rows": groups * batch, "batch": batch, "start": start}
    blocks = groups * batch * -(-size // 128) if size > 64 else -(-groups * batch // (128 // size))
    run(words_kernel("words", node), arrays, scalars, blocks)
    for t in range(steps):
        group, bit = (0, t % BITS) if every == "sequence" else divmod(t, BITS)
        expected = TABLE["mask"].numpy(words, batch, start + t, **node.attrs)
        np.testing.assert_array_equal((memory[group] >> bit) & 1, expected.reshape(batch, size))


def test_a_tile_is_drawn_in_either_form() -> None:
    program = Program()
    mask_keys = NetworkMaskKeys(program, 4, STREAMS, 1, 1).of(0, 0)
    words, rows = (program.buffer(name, 64, dtype) for name, dtype in (("words", "uint32"), ("rows", "float32")))
    for number, every in enumerate(("step", "sequence")):
        made = mask_kernel(f"mask{number}", mask(every, (7,)), lambda n: [Place("float32", 8)], STREAMS)
        made.fill(program.sequence, [rows], None, mask_keys, ("count", "start"), ("true", "true"))
        made.launch_words(program.sequence, words, mask_keys, "count", "start")
    step_rows, step_words, whole_rows, whole_words = (line[: line.rindex("));")] for line in program.sequence.lines)
    groups = "int64_t((count + 31) / 32 * B), int64_t(B), int64_t("
    first = f"{mask_keys.first} + start)"
    assert step_rows.endswith(f"int64_t((count) * B), int64_t(B), int64_t({first}")
    assert step_words.endswith(f"{groups}{first}") and whole_rows.endswith(f"{groups}count)")
    assert whole_words.endswith(f"int64_t(B), int64_t(B), int64_t({first}")


def test_layers_and_directions_have_words_of_their_own() -> None:
    program = Program()
    mask_keys = NetworkMaskKeys(program, 4, STREAMS, 3, 2)
    mask_keys.prepare(program.sequence)
    texts = [mask_keys.of(layer, direction).keys.text for layer in range(3) for direction in range(2)]
    assert len({*texts}) == 6 and program.inputs == 7
    assert mask_keys.of(0, 0).first == "reinterpret_cast<int64_t>(input[6])"
    assert "mask_keys" in program.kernels and any("mask_keys" in line for line in program.sequence.lines)


WEIGHT = Node("param", shape=(3, 7), name="R")


@pytest.mark.broad
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

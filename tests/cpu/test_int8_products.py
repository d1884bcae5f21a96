"""integer_products: sums of 8-bit levels are exactly those that NumPy finds, whatever the sizes."""

from __future__ import annotations

import json
from pathlib import Path

import chromium
import cross
import javascript
import numpy as np
import pytest
from tvm import tirx

import tvm_rnn as rnn
from tvm_rnn import ConfigError, cell
from tvm_rnn.cpu import weight_storage
from tvm_rnn.cpu.dot_product import DOT_PRODUCTS, DotProduct
from tvm_rnn.cpu.int8_products import row_elements
from tvm_rnn.oracle.tolerance import relative_error
from tvm_rnn.target import host
from tvm_rnn.tir.expr import Expr, TirExpr

needs_bytes = pytest.mark.skipif(weight_storage.bytes_on(host()) is None, reason="this CPU has no products of bytes")


@cell(states="h")
def linear(x: "I", h: "H", *, W: "3 H I", R: "3 H H"):
    a, b, c = W @ x + R @ h
    return a + b - c


def levels(rows: np.ndarray, largest: float) -> tuple[np.ndarray, np.ndarray]:
    """Integers and scales of the rows of an array [..., K], in float32 as compiled code has it."""
    with np.errstate(all="ignore"):
        peak = np.abs(rows).max(-1, keepdims=True)
        scale = np.where(peak == 0, np.float32(1), peak / np.float32(largest))
        inverse = np.where(peak == 0, np.float32(1), np.float32(largest) / peak)
        scaled = rows * inverse
    return np.where(np.isnan(scaled), 0, np.rint(scaled)).astype(np.int64), scale


def product(matrix: np.ndarray, rows: np.ndarray, largest: float) -> np.ndarray:
    """[..., H, I] by [B, I] -> [B, ..., H]."""
    peak = np.abs(matrix).max(-1, keepdims=True)
    scale = np.where(peak == 0, np.float32(1), peak / np.float32(127))
    weights = np.rint(matrix / scale).astype(np.int64)
    own, each = levels(rows, largest)
    sums = np.einsum("ghk,bk->bgh", weights, own)
    return sums.astype(np.float32) * (scale[..., 0] * each[:, :, None])


def expected(net: rnn.RNN, x: np.ndarray, largest: float = 127) -> np.ndarray:
    """largest: of the levels of operands."""
    h, steps = np.zeros((x.shape[1], net.hidden_size), np.float32), []
    for x_t in x:
        a, b, c = np.moveaxis(
            product(net.weights["W_l0"], x_t, largest) + product(net.weights["R_l0"], h, largest), 1, 0
        )
        h = a + b - c
        steps.append(h)
    return np.stack(steps)


@pytest.mark.broad_after(1)
@needs_bytes
@pytest.mark.parametrize(
    ("inputs", "hidden"),
    [
        (1, 1),
        (5, 33),
        *(pytest.param(i, h, marks=pytest.mark.slow) for i, h in ((2, 7), (3, 16), (64, 130), (1000, 64))),
    ],
)
def test_sums_are_exact(inputs: int, hidden: int) -> None:
    net = rnn.RNN(linear, inputs, hidden).init(2)
    net.weights["W_l0"][1, 0] = 0.0
    module = rnn.compile(net, weights="int8_dynamic")
    for batch in (1, 2, 7, 16):
        x = np.random.default_rng(batch).normal(size=(3, batch, inputs)).astype("float32")
        x[1, 0] = 0.0
        y, _ = module(x)
        assert relative_error(y, expected(net, x)) < 1e-6


class InPlainCode(DotProduct):
    """Words of four as all machines have them, for vectors of any."""

    def add(self, sums: Expr, levels: Expr, weights: Expr) -> TirExpr:
        def byte(words: Expr, j: int, signed: bool) -> TirExpr:
            left, right = (tirx.Broadcast(tirx.const(bits, "int32"), self.words) for bits in (24 - 8 * j, 24))
            last = tirx.Broadcast(tirx.const(255, "int32"), self.words)
            return (words << left) >> right if signed else (words >> right - left) & last

        for j in range(4):
            sums = sums + byte(levels, j, not self.offset) * byte(weights, j, True)
        return sums


@pytest.mark.broad
@pytest.mark.parametrize("offset", [0, 128])
def test_sums_of_words_of_four_are_exact(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dot = InPlainCode("none", "any", frozenset(), host().lanes("float32"), offset=offset)
    monkeypatch.setattr(weight_storage, "dot_product", lambda machine: dot)
    if offset:
        net, x = drawn(11, 9, 1)
        assert relative_error(rnn.compile(net, batch=1, weights="int8_dynamic")(x)[0], expected(net, x)) < 1e-6
    else:
        net, x = bytes_and_inputs(11, 9)
        np.testing.assert_array_equal(rnn.compile(net, batch=1)(x)[0], whole_numbers(net, x))


@pytest.mark.broad
@needs_bytes
def test_what_is_not_finite_makes_its_row_nan_and_no_other() -> None:
    module = rnn.compile(rnn.RNN(linear, 40, 20).init(2), weights="int8_dynamic")
    x = np.random.default_rng(0).normal(size=(2, 5, 40)).astype("float32")
    x[0, 1, 39], x[0, 3, 0] = np.nan, -np.inf
    y, _ = module(x)
    assert np.isnan(y[:, [1, 3]]).all() and np.isfinite(y[:, [0, 2, 4]]).all()


@pytest.mark.broad
@needs_bytes
@pytest.mark.parametrize(
    "name", ["lstm", *(pytest.param(c, marks=pytest.mark.slow) for c in ("gru_reset_before", "rhn"))]
)
def test_cells_in_layers_and_both_directions_are_near_float64(name: str) -> None:
    sizes = {"depth": 2} if name == "rhn" else {}
    net = rnn.RNN(rnn.cells.get(name), 20, 20, 2, True, **sizes).init(1)
    module = rnn.compile(net, weights="int8_dynamic", batch=[1, 4])
    assert module.manifest.weight_dtype == "int8_dynamic"
    for batch in (1, 4, 33):
        x = np.random.default_rng(batch).uniform(-1, 1, (7, batch, 20)).astype("float32")
        lengths = 7 - np.arange(batch) % 8
        y, _ = module(x, lengths=lengths)
        assert 1e-5 < relative_error(y, rnn.reference(net)(x, lengths=lengths)[0]) < 2e-2
        module.threads = 2
        np.testing.assert_array_equal(module(x, lengths=lengths)[0], y)
        module.threads = None


def drawn(inputs: int, hidden: int, batch: int) -> tuple[rnn.RNN, np.ndarray]:
    """A network and x of three steps, with zeros in both."""
    net = rnn.RNN(linear, inputs, hidden).init(2)
    net.weights["W_l0"][1, 0] = 0.0
    x = np.random.default_rng(batch).normal(size=(3, batch, inputs)).astype("float32")
    x[1, 0] = 0.0
    return net, x


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(("inputs", "hidden", "batch"), [(5, 33, 1), (64, 130, 7), (1000, 65, 2)])
def test_sums_are_exact_on_arm(inputs: int, hidden: int, batch: int, tmp_path: Path) -> None:
    own = cross.tools("aarch64-linux-gnu+dotprod")
    if isinstance(own, str):
        pytest.skip(own)
    net, x = drawn(inputs, hidden, batch)
    rnn.compile(net, "aarch64-linux-gnu+dotprod", weights="int8_dynamic").export(bundle=tmp_path / "far")
    y = cross.run_example(cross.build_example(own, tmp_path / "far"), tmp_path, {"x": x}).reshape(3, batch, hidden)
    assert relative_error(y, expected(net, x)) < 1e-6


# What a page makes of x: its results, or what the module says of this engine.
PAGE = """
(async (x) => {
  const { open } = await import("./far.js");
  try { return Array.from((await open(undefined, { rows: 7 })).run(new Float32Array(x))); }
  catch (error) { return error.message; }
})"""


@pytest.mark.broad
def test_sums_are_exact_in_browsers(tmp_path: Path) -> None:
    if missing := javascript.missing() or chromium.missing():
        pytest.skip(missing)
    net, x = drawn(50, 33, 7)
    rnn.compile(net, "wasm32+relaxed-simd", batch=1, weights="int8_dynamic").export(web=tmp_path / "far")
    with chromium.page(tmp_path / "far", tmp_path / "profile") as page:
        page.until("document.body")
        y = page.evaluate(f"{PAGE}({json.dumps(x.ravel().tolist())})")
    assert not isinstance(y, str), y
    assert relative_error(np.float32(y).reshape(3, 7, 33), expected(net, x, 63)) < 1e-6


@pytest.mark.broad
def test_an_engine_without_products_of_bytes_says_so(tmp_path: Path) -> None:
    """Node 20 has none, and an older one by an option, whose sums are wrong."""
    if javascript.missing():
        pytest.skip(javascript.missing())
    net, x = drawn(3, 4, 1)
    rnn.compile(net, "wasm32+relaxed-simd", batch=1, weights="int8_dynamic").export(web=tmp_path / "far")
    try:
        found = javascript.results(tmp_path / "far", net, {"x": x}, {})
    except AssertionError as error:
        assert "far: it needs relaxed SIMD, this engine has" in str(error) and 'weights "int8"' in str(error)
    else:
        assert all(relative_error(y, expected(net, x, 63)) < 1e-6 for y in found)


@pytest.mark.parametrize(
    ("target", "do"),
    [
        ("x86-64-v2", r'got:\s+x86-64-v2\s+do:\s+weights="int8", which needs no instruction of its own$'),
        ("x86-64-v4", r'without avx512vnni[\s\S]*"x86-64-v4\+avx512vnni"'),
        ("aarch64", r'"aarch64-linux-gnu\+dotprod"'),
        ("wasm32", r'"wasm32\+relaxed-simd"'),
        ("riscv64", r'got:\s+riscv64-linux-gnu\s+do:\s+weights="int8", which needs no instruction of its own$'),
    ],
)
def test_a_cpu_without_the_instruction_is_an_error(target: str, do: str) -> None:
    with pytest.raises(ConfigError, match=r"8-bit integers need a CPU[\s\S]*" + do):
        rnn.compile(rnn.RNN(rnn.cells.lstm, 4, 4), target, batch=1, weights="int8_dynamic")


def test_sums_that_could_overflow_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"65537[\s\S]*65536"):
        row_elements((1 << 16) + 1, 16, DOT_PRODUCTS[0])


def test_a_row_has_its_scale_and_words() -> None:
    of_four, of_two = (next(dot for dot in DOT_PRODUCTS if dot.terms == terms) for terms in (4, 2))
    assert [row_elements(k, 16, of_four) for k in (1, 64, 65, 1000)] == [32, 32, 48, 16 + 256]
    assert [row_elements(k, 8, of_two) for k in (1, 16, 17, 1000)] == [16, 16, 24, 8 + 504]


@cell(states="h")
def of_bytes(x: "I", h: "H", *, W: "2 H I", R: "2 H H"):
    """Whole numbers alone: sums and all that is made of them are exact."""
    a, b = rnn.to_int8(W) @ rnn.to_uint8(x) + rnn.to_int8(R) @ rnn.to_uint8(h)
    return rnn.mod(a - b, 251.0)


def whole_numbers(net: rnn.RNN, x: np.ndarray) -> np.ndarray:
    """What NumPy's integers make of it."""
    h, steps = np.zeros((x.shape[1], net.hidden_size), np.int64), []
    W, R = (np.rint(net.weights[name]).clip(-128, 127).astype(np.int64) for name in ("W_l0", "R_l0"))
    for x_t in np.rint(np.nan_to_num(x)).clip(0, 255).astype(np.int64):
        a, b = np.moveaxis(np.einsum("ghk,bk->bgh", W, x_t) + np.einsum("ghk,bk->bgh", R, h), 1, 0)
        h = np.mod(a - b, 251)
        steps.append(h)
    return np.stack(steps)


def bytes_and_inputs(inputs: int, hidden: int) -> tuple[rnn.RNN, np.ndarray]:
    rng = np.random.default_rng(inputs)
    net = rnn.RNN(of_bytes, inputs, hidden)
    net.load({name: rng.normal(0, 90, shape).astype("f4") for name, shape in net.weight_shapes.items()})
    x = rng.normal(100, 120, (4, 3, inputs)).astype("f4")
    x[0, 0, 0] = np.nan
    return net, x


@pytest.mark.parametrize(("inputs", "hidden"), [(1, 3), pytest.param(37, 66, marks=pytest.mark.broad)])
def test_products_of_bytes_are_exact(inputs: int, hidden: int) -> None:
    net, x = bytes_and_inputs(inputs, hidden)
    np.testing.assert_array_equal(rnn.compile(net)(x)[0], whole_numbers(net, x))
    np.testing.assert_array_equal(rnn.reference(net)(x)[0], whole_numbers(net, x))


@pytest.mark.broad
@needs_bytes
def test_products_of_bytes_use_the_instruction() -> None:
    """And none where training reads the weights, too."""
    net, _ = bytes_and_inputs(5, 7)
    sizes = [
        rnn.compile(own, training=training).manifest.packed_elements for own, training in ((net, False), (net, True))
    ]
    assert sizes[0] < sizes[1]

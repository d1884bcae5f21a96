"""RNN: sizes, layers, directions, dtypes, weights by name, and every ConfigError and WeightError.

In: zoo cells and small cells defined here. Out: failures of `network/rnn.py`. What an RNN computes is tested with the
oracle in `test_reference.py` and `test_cells.py`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import tvm_rnn as rnn
from tvm_rnn import RNN, CellError, ConfigError, WeightError, cell, cells
from tvm_rnn.network.rnn import equations_digest


@cell(initial={"m": -2.0}, states="h m", init={"b": "zeros", "g": "ones", "s": 0.25})
def small(x: "I", h: "H", m: "2 H", *, W: "H I", b: "H", g: "H", s: ""):
    return g * (W @ x) + b + s * h, m + h


@cell(states="h")
def pair(x: "I", z: "I", h: "H", *, W: "H I"):
    return W @ (x + z) + h


@cell(states="h")
def scalar_free(x: "I", h: "I"):
    return x + h


def arrays(net: RNN) -> dict[str, np.ndarray]:
    return {name: np.full(shape, 0.5, net.dtype) for name, shape in net.weight_shapes.items()}


# ---- sizes ----------------------------------------------------------------------------------------------------------


def test_sizes_of_one_layer() -> None:
    net = RNN(cells.lstm, 3, 5)
    assert (net.input_size, net.hidden_size, net.output_size) == (3, 5, 5)
    assert (net.num_layers, net.num_directions, net.bidirectional, net.dtype) == (1, 1, False, "float32")
    assert net.weight_shapes == {"W_l0": (4, 5, 3), "R_l0": (4, 5, 5), "b_l0": (4, 5)}
    assert net.weights == {}
    assert repr(net) == "<RNN lstm H=5, I=3 layers=1 directions=1 float32>"


def test_weight_names_and_shapes_by_layer_and_direction() -> None:
    net = RNN(cells.elman, 3, 5, num_layers=2, bidirectional=True)
    assert list(net.weight_shapes.items()) == [
        ("W_l0", (5, 3)),
        ("R_l0", (5, 5)),
        ("b_l0", (5,)),
        ("W_l0_reverse", (5, 3)),
        ("R_l0_reverse", (5, 5)),
        ("b_l0_reverse", (5,)),
        ("W_l1", (5, 10)),
        ("R_l1", (5, 5)),
        ("b_l1", (5,)),
        ("W_l1_reverse", (5, 10)),
        ("R_l1_reverse", (5, 5)),
        ("b_l1_reverse", (5,)),
    ]
    assert (net.num_directions, net.output_size) == (2, 10)


def test_a_size_per_layer() -> None:
    net = RNN(cells.lstm_projection, 3, [5, 6, 7], 3, P=(2, 3, 4), bidirectional=True)
    assert [layer.sizes for layer in net.layers] == [
        {"I": 3, "H": 5, "P": 2},
        {"I": 4, "H": 6, "P": 3},
        {"I": 6, "H": 7, "P": 4},
    ]
    assert [layer.width for layer in net.layers] == [2, 3, 4]
    assert (net.hidden_size, net.output_size) == (7, 8)


def test_layers_of_equal_sizes_share_their_graph() -> None:
    first, second, third, fourth = RNN(cells.gru, 5, 5, 4).layers
    assert first.graph is second.graph is third.graph is fourth.graph
    first, second = RNN(cells.gru, 3, 5, 2).layers
    assert first.graph is not second.graph


def test_proj_size_is_torchs_name_of_p() -> None:
    assert (
        RNN(cells.lstm_projection, 3, 5, proj_size=2).weight_shapes
        == RNN(cells.lstm_projection, 3, 5, P=2).weight_shapes
    )


def test_hidden_size_is_not_asked_for_without_axis_h() -> None:
    net = RNN(scalar_free, 4, num_layers=2)
    assert (net.hidden_size, net.output_size, net.weight_shapes) == (4, 4, {})


@pytest.mark.parametrize("count", [1, np.int64(1), np.uint8(1)])
def test_any_whole_number_is_a_size(count: Any) -> None:
    net = RNN(cells.elman, count, count, count)
    assert type(net.input_size) is int and net.sizes == [{"H": 1, "I": 1}]


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("float64", "float64"), (np.float32, "float32"), (np.dtype("f8"), "float64"), (float, "float64")],
)
def test_a_dtype_is_kept_as_its_name(dtype: Any, name: str) -> None:
    net = RNN(small, 3, 5, dtype=dtype).init()
    assert net.dtype == name and type(net.dtype) is str
    assert {w.dtype.name for w in net.weights.values()} == {name}


@cell
def lower(x: "i", h: "h", *, W: "h i"):
    return W @ x + h


CONFIG = {
    "no cell": (lambda: RNN("lstm", 3, 5), "RNN needs a cell", "rnn.cells.lstm"),
    "torch's name": (lambda: RNN("GRU", 3, 5), "RNN needs a cell", "rnn.cells.gru "),
    "a function": (lambda: RNN(cells.lstm.function, 3, 5), "RNN needs a cell", "your own @cell"),
    "input_size 0": (lambda: RNN(cells.lstm, 0, 5), "RNN: input_size", "at least 1"),
    "input_size -1": (lambda: RNN(cells.lstm, -1, 5), "RNN: input_size", "got:      -1"),
    "input_size 2.0": (lambda: RNN(cells.lstm, 2.0, 5), "RNN: input_size", "got:      2.0"),
    "input_size text": (lambda: RNN(cells.lstm, "3", 5), "RNN: input_size", "got:      '3'"),
    "input_size True": (lambda: RNN(cells.lstm, True, 5), "RNN: input_size", "got:      True"),
    "input_size None": (lambda: RNN(cells.lstm, None, 5), "RNN: input_size", "got:      None"),
    "hidden_size 0": (lambda: RNN(cells.lstm, 3, 0), "RNN: hidden_size", "at least 1"),
    "hidden_size array": (lambda: RNN(cells.lstm, 3, np.array([5])), "RNN: hidden_size", "array([5])"),
    "hidden_size in a list": (lambda: RNN(cells.lstm, 3, [5, 0], 2), "RNN: hidden_size", "got:      0"),
    "too few per layer": (lambda: RNN(cells.lstm, 3, [5], 2), "RNN: size H per layer", "1 values for 2 layers"),
    "too many per layer": (
        lambda: RNN(cells.lstm_projection, 3, 5, 1, P=[2, 2]),
        "RNN: size P per layer",
        "2 values for 1 layers",
    ),
    "num_layers 0": (lambda: RNN(cells.lstm, 3, 5, 0), "RNN: num_layers", "got:      0"),
    "num_layers 1.5": (lambda: RNN(cells.lstm, 3, 5, 1.5), "RNN: num_layers", "got:      1.5"),
    "dtype int": (lambda: RNN(cells.lstm, 3, 5, dtype=int), "unsupported dtype", "float32, float64"),
    "dtype text": (lambda: RNN(cells.lstm, 3, 5, dtype="flaot32"), "unsupported dtype", "did you mean 'float32'"),
    "dtype None": (lambda: RNN(cells.lstm, 3, 5, dtype=None), "unsupported dtype", "'None'"),
    "unknown axis": (lambda: RNN(cells.lstm, 3, 5, P=2), "has no axis 'P'", "I, H"),
    "nearly an argument": (lambda: RNN(cells.lstm, 3, 5, num_layer=2), "no such argument", "did you mean 'num_layers'"),
    "nearly batch_first": (
        lambda: RNN(cells.lstm, 3, 5, batch_frist=True),
        "no such argument",
        "did you mean 'batch_first'",
    ),
    "proj_size of lstm": (lambda: RNN(cells.lstm, 3, 5, proj_size=2), "has no axis 'P'", "use a known axis"),
    "both names of P": (lambda: RNN(cells.lstm_projection, 3, 5, proj_size=2, P=2), "another name of P", "one of them"),
    "a text for a flag": (lambda: RNN(cells.lstm, 3, 5, bidirectional="no"), "RNN: bidirectional", "True or False"),
    "steps": (lambda: RNN(cells.lstm, 3, 5, T=7), "has no axis 'T'", "hidden_size"),
    "hidden_size without H": (lambda: RNN(scalar_free, 3, 5), "has no axis 'H'", "one of"),
    "capitals": (lambda: RNN(lower, 3, hidden_size=5), "has no axis 'H', whose size hidden_size is", "mean 'h'"),
    "2**31 units": (lambda: RNN(cells.lstm, 3, 2**31), "hidden_size is too large", "2,147,483,647"),
    "2**70 inputs": (lambda: RNN(cells.lstm, 2**70, 3), "input_size is too large", "2,147,483,647"),
    "the axis of the input": (lambda: RNN(cells.lstm, 3, 5, I=4), "layer 0 does not fit its input", "x[I] = 4"),
    "a second input": (
        lambda: RNN(pair, 3, 5, 2),
        "every layer is given the same z",
        "[3] at layer 0 and [5] at layer 1",
    ),
}


@pytest.mark.parametrize("name", CONFIG)
def test_config_errors(name: str) -> None:
    make, what, rest = CONFIG[name]
    with pytest.raises(ConfigError) as caught:
        make()
    assert what in str(caught.value).splitlines()[0]
    assert rest.replace("I, H", "H, I") in str(caught.value) or rest in str(caught.value)


def test_a_fixed_input_axis_fits_only_layers_of_that_width() -> None:
    @cell
    def fixed(x: "H", h: "H"):
        return x + h

    assert RNN(fixed, 5, 5, 3).output_size == 5
    with pytest.raises(ConfigError, match=r"layer 1 does not fit.*\n.*\n.*the output of layer 0 = 10"):
        RNN(fixed, 5, 5, 2, bidirectional=True)


def test_a_missing_size_is_the_cells_error() -> None:
    with pytest.raises(CellError, match=r"RNN\(\.\.\., hidden_size=\.\.\.\)"):
        RNN(cells.lstm, 3)
    with pytest.raises(CellError, match=r"RNN\(\.\.\., P=\.\.\.\)"):
        RNN(cells.lstm_projection, 3, 5)


# ---- weights --------------------------------------------------------------------------------------------------------


def test_init_is_deterministic_and_as_the_cell_says() -> None:
    first, again, other = (RNN(small, 3, 16, 2, bidirectional=True).init(seed).weights for seed in (0, 0, 1))
    for name, value in first.items():
        np.testing.assert_array_equal(value, again[name])
        assert value.dtype == np.float32 and value.flags.c_contiguous
    assert not np.array_equal(first["W_l0"], other["W_l0"])
    assert not np.array_equal(first["W_l1"], first["W_l1_reverse"])
    assert np.abs(first["W_l0"]).max() <= 0.25 and np.abs(first["W_l0"]).max() > 0.2  # 1 / sqrt(16), as torch
    assert not first["b_l0"].any() and (first["g_l1_reverse"] == 1).all() and first["s_l0"] == 0.25
    wide = RNN(small, 3, 16, 2, bidirectional=True, dtype="float64").init().weights
    np.testing.assert_allclose(wide["W_l1"], first["W_l1"], rtol=1e-6)


@pytest.mark.parametrize("seed", [-1, 1.5, "1", None, True, [1]])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(ConfigError, match="init: seed"):
        RNN(cells.lstm, 3, 5).init(seed)


def test_init_returns_the_rnn() -> None:
    net = RNN(small, 3, 4)
    assert net.init() is net and net.load(arrays(net)) is net


def test_every_weight_is_an_array_also_a_scalar() -> None:
    @cell
    def scaled(x: "I", h: "I", *, w: ""):
        return w * x + h

    net = RNN(scaled, 3).init()
    assert type(net.weights["w_l0"]) is np.ndarray and net.weights["w_l0"].shape == ()


def test_initial_state() -> None:
    net = RNN(small, 3, 4, 3, bidirectional=True)
    state = net.initial_state(7)
    assert {name: a.shape for name, a in state.items()} == {"h": (6, 7, 4), "m": (6, 7, 2, 4)}
    assert (state["m"] == -2).all() and not state["h"].any() and state["m"].dtype == np.float32
    uneven = RNN(small, 3, [4, 5], 2).initial_state(0)
    assert [a.shape for a in uneven["m"]] == [(1, 0, 2, 4), (1, 0, 2, 5)]
    wrong: Any
    for wrong in (-1, 1.5, "2", None, True, 2**63):
        with pytest.raises(ConfigError, match="initial_state: batch"):
            net.initial_state(wrong)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", ">f8"])
def test_load_converts_and_copies(dtype: str) -> None:
    net = RNN(small, 3, 4)
    given = {name: np.ones(shape, dtype, order="F") for name, shape in net.weight_shapes.items()}
    net.load(given)
    given["W_l0"][...] = 9
    for name, shape in net.weight_shapes.items():
        assert net.weights[name].shape == shape and net.weights[name].dtype == np.float32
        assert (net.weights[name] == 1).all() and net.weights[name].flags.c_contiguous


def test_one_direction_or_both() -> None:
    net = RNN(cells.gru, 3, 4, 2, reverse=True)
    assert net.num_directions == 1 and net.weight_shapes == RNN(cells.gru, 3, 4, 2).weight_shapes
    assert repr(net) == "<RNN gru H=4, I=3 layers=2 reverse float32>"
    with pytest.raises(ConfigError, match="both directions include the reverse one"):
        RNN(cells.gru, 3, 4, bidirectional=True, reverse=True)


def test_load_of_nested_lists() -> None:
    net = RNN(small, 1, 2)
    net.load({"W_l0": [[1], [2]], "b_l0": [0.0, 0.5], "g_l0": (1, 1), "s_l0": 3})
    assert net.weights["W_l0"].tolist() == [[1], [2]] and net.weights["s_l0"] == 3


@pytest.mark.parametrize("kind", [str, Path])
def test_load_of_safetensors(kind: Any, tmp_path: Path) -> None:
    source = RNN(cells.gru, 3, 4, 2, bidirectional=True).init(3)
    save_file(source.weights, tmp_path / "w.safetensors")
    net = RNN(cells.gru, 3, 4, 2, bidirectional=True).load(kind(tmp_path / "w.safetensors"))
    for name, value in source.weights.items():
        np.testing.assert_array_equal(net.weights[name], value)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_load_of_torch_tensors(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    net = RNN(small, 3, 4)
    given = {
        name: torch.nn.Parameter(torch.full(shape, 0.5, dtype=getattr(torch, dtype)))
        for name, shape in net.weight_shapes.items()
    }
    net.load(given)
    assert all((value == 0.5).all() and value.dtype == np.float32 for value in net.weights.values())


def test_wrong_weights_are_all_named_and_nothing_changes() -> None:
    net = RNN(small, 3, 4).init()
    before = dict(net.weights)
    given: dict[str, Any] = arrays(net)
    del given["b_l0"]
    given.update(W_l0=np.ones((3, 4)), g_l0=np.ones(4, complex), s_l0="text", V_l0=np.ones(1), b=[[1], [2, 3]])
    with pytest.raises(WeightError) as caught:
        net.load(given)
    text = str(caught.value)
    for line in (
        "missing: b_l0[4]",
        "unknown: V_l0",
        "unknown: b",
        "W_l0: shape [3, 4], expected [4, 3]",
        "g_l0: dtype complex128, expected float32",
        "s_l0: dtype <U4, expected float32",
        "expected: 4 arrays, see .weight_shapes",
    ):
        assert line in text
    assert net.weights == before


@pytest.mark.parametrize("value", [[[1], [2, 3]], {"a": 1}, None, object(), np.ma.ones((2, 1))])
def test_what_is_no_array_is_named(value: Any) -> None:
    net = RNN(cells.elman, 1, 2)
    with pytest.raises(WeightError, match=r"W_l0: "):
        net.load({**arrays(net), "W_l0": value})


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    net = RNN(small, 3, 4)
    with pytest.raises(WeightError, match=re.escape(str(tmp_path / "missing"))):
        net.load(tmp_path / "missing")
    with pytest.raises(WeightError, match="no such weights file"):
        net.load(tmp_path)
    (tmp_path / "text").write_text("not a tensor")
    with pytest.raises(WeightError, match="not a safetensors file"):
        net.load(tmp_path / "text")
    (tmp_path / "empty").touch()
    with pytest.raises(WeightError, match="not a safetensors file"):
        net.load(tmp_path / "empty")
    for source in (3, None, [np.ones(3)]):
        with pytest.raises(WeightError, match="a dict or the path"):
            net.load(source)


def test_weights_changed_by_hand_are_checked() -> None:
    net = RNN(small, 3, 4).init()
    net.weights["W_l0"] = np.ones((4, 3))
    net.check_weights()
    assert net.weights["W_l0"].dtype == np.float32
    net.weights["W_l0"] = np.ones((4, 4))
    with pytest.raises(WeightError, match=r"W_l0: shape \[4, 4\], expected \[4, 3\]"):
        net.check_weights()


def test_a_digest_knows_equations_by_what_they_compute() -> None:
    def digest(size: int = 4, factor: float = 0.5, array: tuple[float, ...] = (1.0, 2.0, 3.0)) -> str:
        @rnn.cell(states="h")
        def own(x: "I", h: "H", *, W: "H I"):
            return rnn.tanh(W @ x) * factor + h * np.array(array, "f4")

        return equations_digest(rnn.RNN(own, size, 3))

    assert digest() == digest() and len(digest()) == 64
    assert len({digest(), digest(5), digest(factor=0.25), digest(array=(1.0, 2.0, 4.0)), digest(factor=0.5000001)}) == 5
    sizes = {"P": 4, "H": 5}
    assert equations_digest(rnn.RNN(rnn.cells.lstm_projection, 3, **sizes)) == equations_digest(
        rnn.RNN(rnn.cells.lstm_projection, 3, 5, P=4)
    )


def test_what_torchs_users_give_is_told_the_way() -> None:
    """A layer of torch in place of a network, and its weights in place of a network's."""
    torch = pytest.importorskip("torch")
    layer = torch.nn.LSTM(3, 4)
    for name, call in {"compile": rnn.compile, "reference": rnn.reference}.items():
        with pytest.raises(ConfigError, match=rf"{name} needs an RNN[\s\S]*rnn\.{name}\(rnn\.from_torch\(layer\)\)"):
            call(layer)
    with pytest.raises(WeightError, match=r"unknown: weight_ih_l0[\s\S]*rnn\.from_torch"):
        RNN(cells.lstm, 3, 4).load(layer.state_dict())

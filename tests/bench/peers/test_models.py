"""A module as other frameworks have it: sizes read off a manifest, ONNX models, and NumPy against the oracle."""

from __future__ import annotations

import numpy as np
import pytest
from peer_problems import FITTING, manifest_of, problem_of, small

import tvm_rnn as rnn
from tvm_rnn.bench.peers.models import (
    ONNX_CELLS,
    TORCH_CELLS,
    NumpyModel,
    Unsupported,
    in_one_piece,
    loaded,
    net_of,
    onnx_model,
)
from tvm_rnn.frontends.torch import state_arrays
from tvm_rnn.oracle.tolerance import assert_close, relative_error, tolerance


@pytest.mark.few_cells
@pytest.mark.parametrize("name", FITTING)
def test_a_manifest_leads_back_to_the_rnn(name: str) -> None:
    net = small(name)
    found = net_of(manifest_of(net))
    assert found.cell is net.cell
    assert found.weight_shapes == net.weight_shapes
    assert found.bidirectional and found.num_layers == 2


def test_sizes_per_layer_and_more_axes_are_read_off_the_shapes() -> None:
    net = rnn.RNN(rnn.cells.lstm_projection, 7, [6, 5], num_layers=2, P=[3, 2], dtype="float64")
    found = net_of(manifest_of(net))
    assert [layer.sizes for layer in found.layers] == [{"I": 7, "H": 6, "P": 3}, {"I": 3, "H": 5, "P": 2}]
    assert found.dtype == "float64"


@pytest.mark.parametrize("sizes", [{}, {"N": 3}, {"N": 3, "M": 2, "K": 5}], ids=str)
@pytest.mark.parametrize("name", ["mlstm", "gated_delta_net_conv", "mamba2_conv", "retnet_rotary"])
def test_heads_are_read_off_the_shapes(name: str, sizes: dict[str, int]) -> None:
    cell = rnn.cells.get(name)
    own = {axis: size for axis, size in sizes.items() if axis in cell.size_names}
    net = rnn.RNN(cell, 7, 6, **own)
    (found,) = net_of(manifest_of(net)).layers
    assert found.sizes == net.layers[0].sizes and ("N" in found.sizes) == ("N" in own)


def test_a_cell_that_is_not_of_the_zoo_has_no_peers() -> None:
    @rnn.cell
    def mine(x: "I", h: "H", *, W: "H I"):
        return rnn.tanh(W @ x + h)

    with pytest.raises(Unsupported, match="mine is not a cell of the zoo"):
        net_of(manifest_of(rnn.RNN(mine, 4, 4)))


def test_a_users_cell_with_the_name_of_another_is_not_taken_for_it() -> None:
    @rnn.cell(name="lstm")
    def mine(x: "I", h: "H", *, W: "H I", b: "H"):
        return rnn.tanh(W @ x + h + b)

    problem = problem_of(rnn.RNN(mine, 4, 4).init())
    with pytest.raises(Unsupported, match="not a cell of the zoo"):
        problem.form(TORCH_CELLS)


@pytest.mark.few_cells
@pytest.mark.parametrize("name", FITTING)
def test_numpy_agrees_with_the_oracle_and_keeps_the_dtype(name: str) -> None:
    net = small(name)
    problem = problem_of(net)
    y = NumpyModel(problem)(list(problem.inputs.values()))
    oracle = rnn.reference(net)
    expected, _ = oracle(dict(problem.inputs))
    # How far the exact result moves with a rounding of the inputs: mlstm_capped divides by what may be small.
    rng, rounding = np.random.default_rng(3), np.finfo(np.float32).eps
    near = {name: v * (1 + rounding * rng.uniform(-1, 1, v.shape)) for name, v in problem.inputs.items()}
    moved = relative_error(oracle(near)[0], expected)
    assert y.dtype == np.float32
    assert relative_error(y, expected) <= tolerance("float32", 6) + 4 * moved


def test_numpy_in_float64() -> None:
    net = small("gru", dtype="float64")
    problem = problem_of(net)
    expected, _ = rnn.reference(net)(problem.x)
    assert_close(NumpyModel(problem)([problem.x]), expected, "float64", 6)


@pytest.mark.parametrize("name", ONNX_CELLS)
def test_onnx_models_are_valid(name: str) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string(onnx_model(problem_of(small(name))))
    onnx.checker.check_model(model, full_check=True)
    (y,) = model.graph.output
    assert [d.dim_value for d in y.type.tensor_type.shape.dim] == [6, 3, 8]


def test_torch_weights_have_torchs_names() -> None:
    names = {n.removesuffix("_reverse")[:-3] for n in state_arrays(loaded(problem_of(small("lstm_projection"))))}
    assert names == {"weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"}


def test_what_onnx_lacks_is_said() -> None:
    pytest.importorskip("onnx")
    for net, reason in (
        (small("mgu"), "no cell mgu"),
        (small("lstm", dtype="float64"), "float64"),
        (rnn.RNN(rnn.cells.lstm, 4, [4, 5], num_layers=2).init(), "one size"),
    ):
        with pytest.raises(Unsupported, match=reason):
            onnx_model(problem_of(net))


def test_a_cell_with_two_inputs_has_no_single_x() -> None:
    with pytest.raises(Unsupported, match="2 inputs"):
        _ = problem_of(small("augru")).x


def test_torch_s_dtypes_are_as_they_were_after_a_layer_is_in_one_piece() -> None:
    torch = pytest.importorskip("torch")
    before = {*torch.backends.cudnn.CUDNN_TENSOR_DTYPES}
    layer = torch.nn.LSTM(3, 4)
    assert in_one_piece(layer) is layer and {*torch.backends.cudnn.CUDNN_TENSOR_DTYPES} == before

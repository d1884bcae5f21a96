import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError
from tvm_rnn.network.model import Model, widened
from tvm_rnn.network.origin import Origin
from tvm_rnn.network.program import NETWORK, Declared, Program, Step
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.target import resolve
from tvm_rnn.tune.session import workload


def test_a_model_names_its_networks_weights() -> None:
    nets = [rnn.RNN(rnn.cells.elman, 3, 2).init(), rnn.RNN(rnn.cells.gru, 2, 2)]
    model = Model(nets, Program((), (), (), {}), Origin("onnx", "two nodes"))
    assert list(model.weights) == ["0.W_l0", "0.R_l0", "0.b_l0"]
    assert repr(model) == f"<Model of {nets[0]!r}, {nets[1]!r}>"


T, B, WIDTH, H = 5, 3, 7, 10


def network(dtype: str, cell: str = "gru") -> rnn.RNN:
    return rnn.RNN(rnn.cells.get(cell), WIDTH, H, 2, dtype=dtype).init(seed=3)


def halves() -> rnn.RNN:
    """A network of float16 among values of float16, one of which is cast to float32."""
    net = network("float16")
    steps = (
        Step("Add", ("X", "one"), ("x",)),
        Step(NETWORK, ("x", "", "", ""), ("y", "h0", "h1"), {"network": 0}, "GRU"),
        Step("Cast", ("y",), ("Y",), {"dtype": "float32"}),
        Step("Cast", ("h1",), ("h",), {"dtype": "float16"}),
    )
    outputs = (Declared("Y", "float32", None), Declared("h", "float16", None))
    net.program = Program((Declared("X", "float16", (None, None, WIDTH)),), outputs, steps, {"one": np.ones(1, "f2")})
    return net


@pytest.mark.broad
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_cpu_runs_it_in_float32(dtype: str) -> None:
    net, x = network(dtype), np.random.default_rng(0).normal(size=(T, B, WIDTH)).astype("f4")
    with pytest.raises(ConfigError, match="precision='float32'"):
        rnn.compile(net)
    module = rnn.compile(net, precision="float32")
    assert module.manifest.dtype == "float32" and net.dtype == dtype
    for name, value in net.weights.items():
        np.testing.assert_array_equal(module.weights[name], value)
    single = rnn.RNN(rnn.cells.gru, WIDTH, H, 2).load(net.weights)
    y, state = module(x)
    expected, last = rnn.reference(single)(x)
    assert_close(y, expected, "float32", T)
    assert_close(state, last, "float32", T)


@pytest.mark.broad
def test_what_is_around_it_goes_with_it() -> None:
    net, x = halves(), np.random.default_rng(0).normal(size=(T, B, WIDTH)).astype("f2").astype("f4")
    module = rnn.compile(net, precision="float32")
    found = module.run({"X": x})
    assert {name: value.dtype.name for name, value in found.items()} == {"Y": "float32", "h": "float32"}
    assert_close(found, rnn.reference(net).run({"X": x}), "float32", T)
    assert net.program is not None and net.program.inputs[0].dtype == "float16" and net.dtype == "float16"


@pytest.mark.broad
def test_a_cpu_computes_a_model_of_halves_in_float32_and_keeps_its_dtypes() -> None:
    net, x = halves(), np.random.default_rng(0).normal(size=(T, B, WIDTH)).astype("f2")
    found = rnn.compile(net, progress=False).run({"X": x})
    assert {name: value.dtype.name for name, value in found.items()} == {"Y": "float32", "h": "float16"}
    expected = rnn.reference(net).run({"X": x})
    assert_close({"Y": found["Y"]}, {"Y": expected["Y"]}, "float32", T)
    np.testing.assert_allclose(found["h"], expected["h"], rtol=1e-3, atol=1e-4)


def test_a_gpu_keeps_networks_of_16_bits() -> None:
    made = widened(halves(), None)
    assert made.dtype == "float16" and made.program is not None
    assert {value.dtype.name for value in made.program.constants.values()} == {"float32"}
    assert made.program.inputs == halves().program.inputs


def test_models_of_several_networks() -> None:
    nets, program = [network("float16"), network("float32")], halves().program
    assert program is not None
    made = widened(Model(nets, program, Origin("onnx", "two")), "float32")
    assert [net.dtype for net in made.networks] == ["float32"] * 2 and "float16" not in made.program.dtypes
    assert [net.dtype for net in nets] == ["float16", "float32"]


def test_what_is_around_networks_of_other_dtypes_is_computed_in_float32() -> None:
    """Sums of 300 terms; arrays are of float16 as the program has them."""
    rng = np.random.default_rng(0)
    ends = (Declared("x", "float16", ("T", 300)),), (Declared("y", "float16", None), Declared("p", "float16", None))
    steps = (Step("MatMul", ("x", "w"), ("p",)), Step("Mul", ("p", "x1"), ("y",)))
    known = {"w": rng.normal(size=(300, 6)).astype("f2"), "x1": np.float16([[0.3]])}
    model = Model([], Program(*ends, steps, known), Origin("onnx", "half"))
    x = rng.normal(size=(4, 300)).astype("f2")
    found = rnn.compile(model, progress=False).run({"x": x})
    product = x.astype("f4") @ known["w"].astype("f4")
    assert found["p"].dtype == found["y"].dtype == "f2"
    np.testing.assert_allclose(found["p"], product.astype("f2"), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found["y"], (product * np.float32(known["x1"])).astype("f2"), rtol=1e-3, atol=1e-3)


def test_what_stays_as_it_is() -> None:
    for dtype, precision in (("float32", "float32"), ("float16", None), ("bfloat16", "tf32"), ("float64", "float32")):
        net = network(dtype)
        assert widened(net, precision) is net


def test_every_way_in_takes_it() -> None:
    net = network("bfloat16")
    (own,) = rnn.explain(net, precision="float32").facts["networks"]
    assert (own["dtype"], own["precision"]) == ("float32", "float32")
    assert workload(net, resolve("llvm"), 4, 2, "float32").net.dtype == "float32"

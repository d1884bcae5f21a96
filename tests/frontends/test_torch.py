"""from_torch: every layer and option of torch.nn, the results of its layers, and the same bits on the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError, WeightError
from tvm_rnn.frontends.torch import state_arrays
from tvm_rnn.oracle.tolerance import assert_close

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore:LSTM with projections")]

LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTM", {}),
    "lstm both ways": ("LSTM", {"num_layers": 2, "bidirectional": True}),
    "lstm projected": ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 3}),
    "lstm projected without bias": ("LSTM", {"proj_size": 1, "bias": False}),
    "lstm batch first": ("LSTM", {"batch_first": True, "bias": False}),
    "gru": ("GRU", {"num_layers": 3}),
    "gru both ways": ("GRU", {"bidirectional": True, "bias": False}),
    "gru in eval mode": ("GRU", {"num_layers": 2, "dropout": 0.5}),
    "rnn": ("RNN", {"bidirectional": True}),
    "rnn relu": ("RNN", {"num_layers": 2, "nonlinearity": "relu"}),
    "lstm cell": ("LSTMCell", {}),
    "gru cell": ("GRUCell", {"bias": False}),
    "rnn cell": ("RNNCell", {}),
    "rnn cell relu": ("RNNCell", {"nonlinearity": "relu"}),
}
EVERY_LAYER = pytest.mark.parametrize("name", LAYERS)


def layer_of(name: str, dtype: str = "float64") -> Any:
    kind, options = LAYERS[name]
    torch.manual_seed(len(name))
    return getattr(torch.nn, kind)(5, 7, dtype=getattr(torch, dtype), **options).eval()


def torch_runs(layer: Any, x: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """y [T, B, ...] and the final states [L*D, B, ...] of a layer or, step by step, of a cell."""
    given = torch.from_numpy(x)
    with torch.no_grad():
        if type(layer).__name__.endswith("Cell"):
            state, steps = None, []
            for x_t in given:
                state = layer(x_t, state)
                steps.append(state[0] if isinstance(state, tuple) else state)
            parts = state if isinstance(state, tuple) else (state,)
            return torch.stack(steps).numpy(), [part[None].numpy() for part in parts]
        y, end = layer(given.transpose(0, 1) if layer.batch_first else given)
    y = y.transpose(0, 1) if layer.batch_first else y
    return y.numpy(), [e.numpy() for e in (end if isinstance(end, tuple) else (end,))]


def assert_same_bits(found: Any, expected: Any) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape, name
        assert torch.equal(found[name].view(torch.uint8), value.view(torch.uint8)), name


@EVERY_LAYER
def test_the_oracle_is_the_layer(name: str) -> None:
    layer, x = layer_of(name), np.random.default_rng(0).normal(size=(9, 3, 5))
    net = rnn.from_torch(layer, batch_first=False)
    y, state = rnn.reference(net)(x)
    expected, ends = torch_runs(layer, x)
    assert_close(y, expected, "float64", 9)
    assert_close(list(state.values()), ends, "float64", 9)
    assert net.origin is not None and net.origin.layer == f"torch.nn.{LAYERS[name][0]}"
    assert net.origin.batch_first == LAYERS[name][1].get("batch_first", False)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("name", ["rnn cell relu", "gru", pytest.param("lstm projected", marks=pytest.mark.slow)])
def test_compiled_modules_are_the_layer_and_say_where_they_are_from(name: str) -> None:
    layer = layer_of(name, "float32")
    x = np.random.default_rng(0).normal(size=(9, 3, 5)).astype(np.float32)
    module = rnn.compile(rnn.from_torch(layer))
    y, state = module(x)
    expected, ends = torch_runs(layer, x)
    assert_close(y, expected, "float32", 9)
    assert_close(list(state.values()), ends, "float32", 9)
    assert module.manifest.origin.layer == f"torch.nn.{LAYERS[name][0]}" and module.manifest.origin.file is None


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@EVERY_LAYER
def test_the_way_back_gives_the_same_bits(name: str, dtype: str) -> None:
    layer = layer_of(name, dtype)
    net = rnn.from_torch(layer, batch_first=False)
    assert net.dtype == dtype
    assert_same_bits(rnn.state_dict(net), layer.state_dict())
    again = rnn.to_torch_layer(net)
    assert type(again) is type(layer) and not again.training
    assert_same_bits(again.state_dict(), layer.state_dict())
    wanted = {"dropout": 0.0, **LAYERS[name][1]}
    assert all(getattr(again, key, value) == value for key, value in wanted.items())


@EVERY_LAYER
def test_a_state_dict_tells_the_layer(name: str) -> None:
    layer, (kind, options) = layer_of(name, "float32"), LAYERS[name]
    nonlinearity = {"nonlinearity": options["nonlinearity"]} if "nonlinearity" in options else {}
    whole = {f"encoder.rnn.{key}": value for key, value in layer.state_dict().items()}
    whole |= {"fc.weight": torch.ones(3, 7), "steps": torch.tensor(3)}
    for given_kind in (kind, None) if "RNN" not in kind else (kind,):
        net = rnn.from_torch(whole, given_kind, **nonlinearity)
        assert_same_bits(rnn.state_dict(net), layer.state_dict())
    own = rnn.from_torch(layer, batch_first=False)
    assert net.weights.keys() == own.weights.keys() and net.cell is own.cell


@given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False))
@example(1.7014117331926443e38, 1.7014118346046923e38)
@example(-3e38, -3e38)
@settings(max_examples=30, deadline=None)
def test_biases_of_any_size_come_back(one: float, two: float) -> None:
    """Also those whose sum loses all digits of one; finite ones whose sum is infinite are refused."""
    layer = torch.nn.GRU(1, 2)
    with torch.no_grad():
        layer.bias_ih_l0.fill_(one)
        layer.bias_hh_l0.fill_(two)
    with np.errstate(all="ignore"):
        infinite = np.isinf(np.float32(one) + np.float32(two))
    if infinite and np.isfinite([one, two]).all():
        with pytest.raises(WeightError, match="infinite in float32"):
            rnn.from_torch(layer)
        return
    assert_same_bits(rnn.state_dict(rnn.from_torch(layer)), layer.state_dict())


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn", "gru both ways"])
def test_weights_that_changed_since_are_given_as_they_are(name: str) -> None:
    net = rnn.from_torch(layer_of(name))
    net.load({key: value + 1 for key, value in net.weights.items()})
    x = np.random.default_rng(0).normal(size=(4, 2, 5))
    y, _ = torch_runs(rnn.to_torch_layer(net), x)
    assert_close(y, rnn.reference(net)(x)[0], "float64", 4)


def test_a_net_of_ours_becomes_a_layer_of_torch() -> None:
    net = rnn.RNN(rnn.cells.lstm_projection, 5, 6, 2, True, "float64", P=2).init(3)
    x = np.random.default_rng(0).normal(size=(4, 2, 5))
    assert_close(torch_runs(rnn.to_torch_layer(net), x)[0], rnn.reference(net)(x)[0], "float64", 4)


def test_files_of_large_models(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path, layer = tmp_path / "model.safetensors", layer_of("lstm both ways", "bfloat16")
    whole = {f"enc.{key}": value for key, value in layer.state_dict().items()}
    whole |= {f"dec.{key}": value for key, value in layer_of("gru", "float32").state_dict().items()}
    save_file({**whole, "other": torch.ones(2, dtype=torch.int8)}, path)
    net = rnn.from_torch(path, prefix="enc")
    assert_same_bits(rnn.state_dict(net), layer.state_dict())
    assert net.origin is not None and net.origin.file == str(path) and len(net.origin.sha256 or "") == 64
    assert rnn.from_torch(str(path), "GRU", prefix="dec.").num_layers == 3
    with pytest.raises(ConfigError, match=r"'dec\.', 'enc\.'"):
        rnn.from_torch(path)
    with pytest.raises(ConfigError, match=r"did you mean 'enc\.'"):
        rnn.from_torch(path, prefix="end")


def test_no_torch_is_needed_for_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_of("gru", "float32")
    net = rnn.from_torch({key: value.numpy() for key, value in layer.state_dict().items()})
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert state_arrays(net).keys() == layer.state_dict().keys()
    for call in (lambda: rnn.state_dict(net), lambda: rnn.from_torch(layer), lambda: rnn.to_torch_layer(net)):
        with pytest.raises(ConfigError, match="torch is not installed"):
            call()


class Tall(torch.nn.LSTM):
    def forward(self, x: Any, state: Any = None) -> Any:
        return super().forward(2 * x, state)


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        (torch.nn.MultiheadAttention(4, 2, batch_first=True), ["MultiheadAttention", "torch.nn.LSTM"]),
        (torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GRU(3, 4)), ["Sequential", "the layer itself: model[1]"]),
        (torch.nn.ModuleDict({"a": torch.nn.ModuleList([torch.nn.GRU(3, 4)])}), ["the layer itself: model.a[0]"]),
        (
            {"epoch": 3, "model": {"fc.weight": torch.ones(3, 7)}, "sizes": torch.ones(2)},
            ["epoch: int", "model: dict of 1: fc.weight", "sizes: Tensor[2]", "weight_ih_l0"],
        ),
        (
            {"a": torch.nn.GRU(3, 4), **{str(n): n for n in range(9)}},
            ["a: GRU", "and 2 more", "pass checkpoint['a'], or its state_dict()"],
        ),
        ({}, ["no weights of a recurrent layer", "nothing"]),
        (
            {"model": {"a.": torch.nn.GRU(3, 4).state_dict()}, "ema": torch.nn.GRU(3, 4).state_dict()},
            ["checkpoint['model']['a.']: ''", "checkpoint['ema']: ''", "pass one: checkpoint['model']"],
        ),
        (torch.nn.Linear(3, 3), ["linear.Linear", "torch.nn.LSTM", "a .safetensors file"]),
        (Tall(3, 4), ["Tall", "forward() of its own"]),
        (torch.nn.LSTM(3, 4, device="meta"), ["weight_ih_l0 has no values", "meta"]),
        (torch.nn.LSTM(3, 4).to(torch.float8_e4m3fn), ["float8_e4m3fn", "bfloat16"]),
        (torch.nn.GRU(3, 4, dtype=torch.complex64), ["complex64"]),
        (3, ["builtins.int"]),
        ("model.pt", ["pickles", "weights_only=True"]),
        ("none.safetensors", ["no such weights file"]),
    ],
    ids=lambda value: None if isinstance(value, list) else type(value).__name__,
)
def test_what_is_refused_says_why(source: Any, texts: list[str]) -> None:
    with pytest.raises((ConfigError, WeightError)) as error:
        rnn.from_torch(source)
    assert all(text in str(error.value) for text in texts), str(error.value)


def test_a_layer_with_the_batch_first_is_a_network_that_has_it_too() -> None:
    """Unless the user says otherwise. Names of weights do not tell: there time is first."""
    layer, x = layer_of("lstm batch first"), np.random.default_rng(0).normal(size=(9, 3, 5))
    expected, _ = torch_runs(layer, x)
    net = rnn.from_torch(layer)
    assert net.batch_first and rnn.to_torch_layer(net).batch_first
    assert_close(rnn.reference(net)(x.swapaxes(0, 1))[0].swapaxes(0, 1), expected, "float64", 9)
    other = rnn.from_torch(layer, batch_first=False)
    assert not other.batch_first and rnn.to_torch_layer(other).batch_first
    assert_close(rnn.reference(other)(x)[0], expected, "float64", 9)
    names = rnn.from_torch(layer.state_dict(), batch_first=True)
    assert names.batch_first and not rnn.from_torch(layer.state_dict()).batch_first
    assert rnn.from_torch(layer_of("gru"), batch_first=True).batch_first
    with pytest.raises(ConfigError, match=r"batch_first= is for layers"):
        rnn.from_torch(layer, torch.ones(2, 3, 5), batch_first=True)


@pytest.mark.parametrize("training", [False, True])
def test_dropout_between_layers_comes_along(training: bool) -> None:
    layer = torch.nn.LSTM(3, 4, 2, dropout=0.25).train(training)
    net = rnn.from_torch(layer)
    assert net.regularisers.facts() == {"dropout": 0.25}
    assert rnn.to_torch_layer(net).dropout == 0.25
    with pytest.warns(UserWarning, match="dropout option"):
        single = torch.nn.LSTM(3, 4, dropout=0.25)  # where torch has no dropout either
    assert not rnn.from_torch(single).regularisers


def test_weights_inside_of_a_checkpoint_are_found() -> None:
    """As torch.save has them in people's trainings, DataParallel's and Lightning's."""
    layer = layer_of("gru", "float32")
    whole = {f"module.encoder.{name}": value for name, value in layer.state_dict().items()}
    other = {f"decoder.{name}": value for name, value in layer_of("lstm").state_dict().items()}
    optimiser = torch.optim.Adam(layer.parameters()).state_dict()
    checkpoint = {"epoch": 3, "state_dict": whole, "optimizer_states": [optimiser], "loops": {"fit": {"state": {}}}}
    net = rnn.from_torch(checkpoint)
    assert_same_bits(rnn.state_dict(net), layer.state_dict())
    assert net.origin is not None
    assert net.origin.layer == "torch.nn.GRU 'module.encoder' in checkpoint['state_dict']"
    deep = rnn.from_torch({"experiment": {1: {"model": {**whole, **other}}}, "ema": other}, prefix="module.encoder")
    assert deep.origin is not None and deep.origin.layer.endswith(
        "'module.encoder' in checkpoint['experiment'][1]['model']"
    )
    with pytest.raises(
        ConfigError, match=r"several dicts[\s\S]*\['g'\]: 'decoder\.'[\s\S]*\['d'\]: 'module\.encoder\.'"
    ):
        rnn.from_torch({"g": other, "d": whole})


class Speech(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = torch.nn.RNN(3, 4, 2, nonlinearity="relu", dropout=0.25, batch_first=True)
        self.cell = torch.nn.RNNCell(4, 2, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cell(self.rnn(x)[0][0])


class Scaled(torch.nn.GRU):
    def forward(self, input: torch.Tensor, hx: torch.Tensor | None = None) -> torch.Tensor:
        return 2.0 * input.sum() + self.weight_ih_l0.sum()


JIT = pytest.mark.filterwarnings("ignore:.*(TorchScript|torch.jit)", "ignore::torch.jit.TracerWarning")


@JIT
def test_scripts_say_their_weights_and_options(tmp_path: Path) -> None:
    model = Speech().eval()
    torch.jit.save(torch.jit.script(model), str(tmp_path / "m.pt"))
    script = torch.jit.load(str(tmp_path / "m.pt"))
    net = rnn.from_torch(script, prefix="rnn")
    assert net.batch_first and not rnn.from_torch(script, prefix="rnn", batch_first=False).batch_first
    assert net.cell is rnn.cells.elman_relu and net.regularisers.facts() == {"dropout": 0.25}
    assert net.origin is not None and net.origin.batch_first and net.origin.layer == "torch.nn.RNN 'rnn'"
    assert_same_bits(rnn.state_dict(net), model.rnn.state_dict())
    assert rnn.from_torch(script, prefix="cell").cell is rnn.cells.elman_relu
    assert rnn.from_torch(torch.jit.script(torch.nn.GRU(3, 4))).hidden_size == 4
    for call, text in (
        (lambda: rnn.from_torch(script), "prefixes 'cell.', 'rnn.'"),
        (lambda: rnn.from_torch(torch.jit.script(Scaled(3, 4))), r"Scaled[\s\S]*write them as a cell"),
        (lambda: rnn.from_torch(torch.jit.script(torch.nn.Linear(3, 4))), "no weights"),
    ):
        with pytest.raises((ConfigError, WeightError), match=text):
            call()


@pytest.mark.broad
@JIT
def test_traces_say_their_weights() -> None:
    """Without options: the kind where there is one alone, and what from_torch is told."""
    traced = torch.jit.trace(Speech().eval(), torch.zeros(2, 5, 3))
    with pytest.raises(ConfigError, match='kind="RNN", nonlinearity="relu"'):
        rnn.from_torch(traced, prefix="rnn")
    net = rnn.from_torch(traced, "RNN", prefix="rnn", nonlinearity="relu")
    assert net.num_layers == 2 and net.cell is rnn.cells.elman_relu
    assert rnn.from_torch(torch.jit.trace(torch.nn.LSTM(3, 4), torch.zeros(2, 5, 3))).cell is rnn.cells.lstm


def test_cells_that_torch_lacks() -> None:
    with pytest.raises(ConfigError, match="mgu"):
        rnn.state_dict(rnn.RNN(rnn.cells.mgu, 3, 4).init())
    with pytest.raises(ConfigError, match="all of one size"):
        rnn.to_torch_layer(rnn.RNN(rnn.cells.lstm, 3, [4, 5], 2).init())
    with pytest.raises(WeightError, match="no weights"):
        rnn.state_dict(rnn.RNN(rnn.cells.lstm, 3, 4))
    with pytest.raises(ConfigError, match="not an RNN"):
        rnn.state_dict(layer_of("gru"))


def test_torch_has_no_reverse_direction_alone() -> None:
    with pytest.raises(ConfigError, match="reverse direction alone"):
        rnn.to_torch_layer(rnn.RNN(rnn.cells.lstm, 3, 4, reverse=True).init())


def random_layer(seed: int) -> Any:
    """A layer or cell of torch.nn with any of its options and sizes, of any dtype that NumPy can compute with."""
    rng = np.random.default_rng(seed)
    kind = str(rng.choice(["RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"]))
    width, hidden = int(rng.integers(1, 9)), int(rng.integers(2, 10))
    options: dict[str, Any] = {"bias": bool(rng.random() < 0.7), "dtype": getattr(torch, str(rng.choice(DTYPES)))}
    if kind.startswith("RNN"):
        options["nonlinearity"] = str(rng.choice(["tanh", "relu"]))
    if not kind.endswith("Cell"):
        options |= {"num_layers": int(rng.integers(1, 4)), "bidirectional": bool(rng.random() < 0.4)}
        options |= {"batch_first": bool(rng.random() < 0.5)}
        options |= {"dropout": 0.3} if options["num_layers"] > 1 and rng.random() < 0.3 else {}
    if kind == "LSTM" and rng.random() < 0.4:
        options["proj_size"] = int(rng.integers(1, hidden))
    torch.manual_seed(seed)
    return getattr(torch.nn, kind)(width, hidden, **options).eval()


DTYPES = ["float32", "float64"]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_five_hundred_random_layers(part: int, tmp_path: Path) -> None:
    """Forwards by the oracle, one in 25 compiled as well; back with the same bits, also by way of a file."""
    safetensors = pytest.importorskip("safetensors.torch")
    for seed in range(50 * part, 50 * part + 50):
        layer = random_layer(seed)
        net = rnn.from_torch(layer, batch_first=False)
        T, B = 1 + seed % 9, 1 + seed % 4
        x = np.random.default_rng(seed).normal(size=(T, B, layer.input_size)).astype(net.dtype)
        y, ends = torch_runs(layer, x)
        for run in (rnn.reference(net), *([rnn.compile(net)] if seed % 25 == 0 else [])):
            found, state = run(x)
            assert_close(found, y, net.dtype, T, str(layer))
            assert_close(list(state.values()), ends, net.dtype, T, str(layer))
        own = layer.state_dict()
        assert_same_bits(rnn.state_dict(net), own)
        assert_same_bits(rnn.to_torch_layer(net).state_dict(), own)
        safetensors.save_file(own, tmp_path / "w.safetensors")
        kind, nonlinearity = type(layer).__name__.removesuffix("Cell"), getattr(layer, "nonlinearity", "tanh")
        read = rnn.from_torch(tmp_path / "w.safetensors", kind, nonlinearity=nonlinearity)
        assert read.cell.name == net.cell.name
        assert_same_bits(dict(sorted(rnn.state_dict(read).items())), dict(sorted(own.items())))

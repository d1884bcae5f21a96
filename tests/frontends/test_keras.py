"""from_keras against Keras itself: layers, Sequential and Functional models, in memory and as .keras files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError
from tvm_rnn.oracle.tolerance import assert_close

torch = pytest.importorskip("torch")  # what Keras computes with here
os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
L = keras.layers
T, B, WIDTH = 7, 3, 5
RNG = np.random.default_rng(0)
X = RNG.normal(size=(B, T, WIDTH)).astype("f4")
MASKED = np.where(np.arange(T)[:, None] < np.array([4, T, 1])[:, None, None], X, 0)
WORDS = np.where(np.arange(T) < np.array([5, T, 2])[:, None], RNG.integers(1, 10, (B, T)), 0).astype("i4")


def filled(layer: Any) -> Any:
    """The layer with random weights; Keras begins with zeros for biases."""
    rng = np.random.default_rng(1)
    for variable in layer.weights:
        value = rng.uniform(-0.4, 0.4, variable.shape)
        variable.assign((np.abs(value) if "variance" in variable.path else value).astype(str(variable.dtype)))
    return layer


def results(layer: Any, *given: Any) -> list[np.ndarray]:
    found = layer(list(given) if len(given) > 1 else given[0])
    return [keras.ops.convert_to_numpy(v) for v in keras.tree.flatten(found)]  # states of stacked cells are nested


def agrees(layer: Any, folder: Path | None = None, **feeds: Any) -> Any:
    """What the oracle gives is what Keras gives; of the layer, and where there is a folder of its file. The network."""
    filled(layer)
    sources = [layer]
    if folder is not None:
        sources.append(folder / "m.keras")
        layer.save(sources[1])
    expected = results(layer, *feeds.values())
    for source in sources:
        net = rnn.from_keras(source)
        found = rnn.reference(net).run(feeds)
        assert len(found) == len(expected)
        assert_close(list(found.values()), expected, "float32", T)
    return net


def model(*layers: Any) -> Any:
    return keras.Sequential([keras.Input((None, WIDTH), name="x"), *layers])


LAYERS: dict[str, Callable[[], Any]] = {
    "simple": lambda: L.SimpleRNN(4, activation="relu", return_sequences=True),
    "lstm": lambda: L.LSTM(4, return_sequences=True, return_state=True),
    "lstm without bias": lambda: L.LSTM(4, use_bias=False, return_state=True),
    "lstm of other functions": lambda: L.LSTM(4, activation="softsign", recurrent_activation="hard_sigmoid"),
    "gru": lambda: L.GRU(4, return_sequences=True),
    "gru without bias": lambda: L.GRU(4, use_bias=False),
    "gru that resets before": lambda: L.GRU(4, reset_after=False, return_state=True),
    "gru backwards": lambda: L.GRU(4, go_backwards=True, return_sequences=True, return_state=True),
    "gru of other functions": lambda: L.GRU(4, activation="elu", recurrent_activation="softmax"),
    "last of backwards": lambda: L.LSTM(4, go_backwards=True),
    "both ways": lambda: L.Bidirectional(L.LSTM(4, return_sequences=True, return_state=True)),
    "both ways at last": lambda: L.Bidirectional(L.GRU(4), merge_mode="sum"),
    "both ways, two outputs": lambda: L.Bidirectional(L.SimpleRNN(4, return_sequences=True), merge_mode=None),
    "two cells": lambda: L.Bidirectional(
        L.LSTM(3, return_sequences=True), backward_layer=L.GRU(2, go_backwards=True, return_sequences=True)
    ),
    "of a cell": lambda: L.RNN(L.GRUCell(4), return_sequences=True, return_state=True),
    "of stacked cells": lambda: L.RNN([L.LSTMCell(4), L.LSTMCell(3), L.GRUCell(2)], go_backwards=True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    layer = LAYERS[name]()
    layer.build((None, None, WIDTH))
    net = agrees(layer, inputs=X)
    names = ", ".join(own.origin.layer for own in getattr(net, "networks", [net]))
    assert type(layer).__name__ in names


def test_stacks_are_one_network() -> None:
    net = rnn.from_keras(filled(model(*(L.GRU(4, return_sequences=True) for _ in range(3)))))
    assert net.num_layers == 3 and net.cell is rnn.cells.gru
    net = rnn.from_keras(filled(model(*(L.Bidirectional(L.LSTM(4, return_sequences=True)) for _ in range(2)))))
    assert net.num_layers == 2 and net.bidirectional
    cells = L.RNN([L.LSTMCell(4), L.LSTMCell(3)], return_sequences=True)
    cells.build((None, None, WIDTH))
    assert rnn.from_keras(filled(cells)).num_layers == 2
    masked = model(L.Masking(), *(L.LSTM(4, return_sequences=True) for _ in range(2)))
    assert rnn.from_keras(filled(masked)).num_layers == 2


MODELS: dict[str, Callable[[], Any]] = {
    "tagger": lambda: model(L.LSTM(4, return_sequences=True), L.Dropout(0.5), L.Dense(3, activation="softmax")),
    "masks": lambda: model(
        L.Masking(), L.LSTM(4, return_sequences=True), L.Bidirectional(L.GRU(3, return_sequences=True)), L.SimpleRNN(2)
    ),
    "masks both ways": lambda: model(L.Masking(), L.Bidirectional(L.LSTM(4)), L.Dense(2, activation="gelu")),
    "masks backwards": lambda: model(L.Masking(), L.GRU(4, go_backwards=True, return_sequences=True)),
    "masks to zeros": lambda: model(L.Masking(), L.GRU(4, return_sequences=True, zero_output_for_mask=True)),
    "norms": lambda: model(L.BatchNormalization(), L.GRU(4, return_sequences=True), L.LayerNormalization(), L.LSTM(2)),
    "pools": lambda: model(L.LSTM(4, return_sequences=True), L.GlobalAveragePooling1D(), L.RepeatVector(3), L.GRU(2)),
    "shapes": lambda: model(
        L.Reshape((-1, 5)), L.LSTM(4), L.Reshape((2, 2)), L.Permute((2, 1)), L.Flatten(), L.Dense(2)
    ),
    "each step": lambda: model(L.TimeDistributed(L.Dense(4, activation="relu")), L.LSTM(3), L.Activation("tanh")),
    "convolutions": lambda: model(
        L.Conv1D(6, 3, padding="causal", dilation_rate=2, activation="relu"),
        L.SeparableConv1D(4, 2, strides=2, padding="same"),
        L.ZeroPadding1D(1),
        L.MaxPooling1D(2),
        L.PReLU(shared_axes=[1]),
        L.GRU(2),
    ),
    "units": lambda: model(L.LeakyReLU(), L.LSTM(3, return_sequences=True), L.ELU(), L.ReLU(), L.Softmax(), L.GRU(2)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_in_memory_and_in_files(name: str, tmp_path: Path) -> None:
    x = MASKED.astype("f4") if "masks" in name else X
    net = agrees(MODELS[name](), tmp_path, x=x)
    origin = net.origin
    assert origin is not None and origin.file == str(tmp_path / "m.keras") and len(origin.sha256 or "") == 64


def test_words_are_floats_where_an_input_says_nothing(tmp_path: Path) -> None:
    words = keras.Input((None,), name="words")
    layer = keras.Model(words, L.GRU(4)(L.Embedding(10, WIDTH, mask_zero=True)(words)))
    agrees(layer, tmp_path, words=WORDS.astype("f4"))
    (found,) = rnn.compile(rnn.from_keras(layer)).run({"words": WORDS.astype("f4")}).values()
    assert_close([found], results(layer, WORDS.astype("f4")), "float32", T)


def test_a_functional_model_with_states_that_are_handed_on(tmp_path: Path) -> None:
    words = keras.Input((None,), dtype="int32", name="words")
    x = L.Embedding(10, WIDTH, mask_zero=True)(words)
    y, h, c = L.LSTM(4, return_sequences=True, return_state=True, name="encoder")(x)
    z = L.LSTM(4, return_sequences=True, name="decoder")(x, initial_state=[h, c])
    both = L.Average()([L.Add()([y, z]), L.Subtract()([y, z])])
    outputs = [L.TimeDistributed(L.Dense(2, activation="softmax"), name="tags")(L.Concatenate()([y, both])), h]
    net = agrees(keras.Model(words, outputs), tmp_path, words=WORDS)
    assert [d.name for d in net.program.outputs] == ["tags", "encoder"] and len(net.networks) == 2


def test_pictures_and_attention(tmp_path: Path) -> None:
    """Convolutions over the columns of a picture, networks, and attention with heads over what they make."""
    x = keras.Input((8, None, 2), name="x")
    y = L.MaxPooling2D(2)(L.Conv2D(4, 3, padding="same", activation="relu")(x))
    y = L.TimeDistributed(L.Flatten())(L.Permute((2, 1, 3))(L.DepthwiseConv2D(2, padding="same")(y)))
    y = L.Bidirectional(L.LSTM(3, return_sequences=True))(y)
    z = L.Add()([y, L.MultiHeadAttention(2, 3)(query=y, value=y)])
    out = L.Concatenate()([L.Attention(use_scale=True)([z, y]), L.AdditiveAttention()([y, z])])
    agrees(keras.Model(x, out), tmp_path, x=RNG.normal(size=(B, 8, 10, 2)).astype("f4"))


def test_several_inputs_and_a_shared_layer(tmp_path: Path) -> None:
    a, b = (keras.Input((None, WIDTH), name=name) for name in "ab")
    shared = L.GRU(4, name="shared")
    other = L.Maximum()([shared(a), L.Multiply()([shared(b), shared(a)])])
    out = L.Dense(2, name="out")(L.Add()([shared(a), L.Minimum()([shared(b), other])]))
    agrees(keras.Model([a, b], out), tmp_path, a=X, b=X[:, ::-1].copy())


def test_a_compiled_model_takes_masks_and_says_where_it_is_from(tmp_path: Path) -> None:
    layer = filled(model(L.Masking(), L.SimpleRNN(4, return_sequences=True), L.Bidirectional(L.SimpleRNN(2))))
    layer.save(tmp_path / "m.keras")
    rnn.compile(rnn.from_keras(tmp_path / "m.keras")).export(tmp_path / "m.so")
    module = rnn.load(tmp_path / "m.so")
    x = MASKED.astype("f4")
    assert_close(list(module.run({"x": x}).values()), results(layer, x), "float32", T)
    assert module.manifest.origin.framework == "keras"
    with pytest.raises(rnn.InputError, match="at the end of rows"):
        module.run({"x": x[:, ::-1].copy()})


def test_states_of_stateful_layers_are_inputs_and_outputs() -> None:
    x = keras.Input((T, WIDTH), batch_size=B, name="x")
    layer = filled(keras.Model(x, L.GRU(4, stateful=True, return_sequences=True, name="g")(x)))
    oracle, state = rnn.reference(rnn.from_keras(layer)), np.zeros((1, B, 4))
    for _ in range(3):
        found = oracle.run({"x": X, "g.h": state})
        assert_close(found["g"], results(layer, X)[0], "float32", T)
        state = found["g.h.next"]


def test_activations_of_keras() -> None:
    """All that a layer may be told by name."""
    from tvm_rnn.frontends.keras_cells import ACTIVATIONS

    x = np.linspace(-1.5, 1.5, 50).reshape(1, 10, 5).astype("f4")
    for name in ACTIVATIONS:
        layer = filled(model(L.SimpleRNN(4, activation=name, return_sequences=True), L.Dense(3, activation=name)))
        found = rnn.reference(rnn.from_keras(layer)).run({"x": x})
        assert_close(list(found.values()), results(layer, x), "float32", 10, name)


def test_other_dtypes() -> None:
    layer = L.LSTM(4, dtype="float64", return_sequences=True)
    layer.build((None, None, WIDTH))
    net = rnn.from_keras(filled(layer))
    assert net.dtype == "float64"
    assert_close(rnn.reference(net).run({"inputs": X})["outputs"], results(layer, X.astype("f8"))[0], "float64", T)


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="no weights yet"):
        rnn.from_keras(L.LSTM(4))

    class Mine(L.LSTM):
        pass

    mine = Mine(4)
    mine.build((None, None, WIDTH))
    with pytest.raises(ConfigError, match="not a layer of Keras"):
        rnn.from_keras(mine)
    for layer, text in (
        (model(L.Conv1DTranspose(4, 2), L.LSTM(4), L.Lambda(lambda v: v)), "Conv1DTranspose.*\n.*Lambda"),
        (model(L.Dense(2)), "no recurrent layer"),
        (model(L.Bidirectional(L.RNN(L.LSTMCell(2)))), "it wraps 'RNN'"),
        (model(L.ReLU(6.0), L.LSTM(2)), "a ReLU with slope"),
        (model(L.Masking(), L.LSTM(2, return_sequences=True), L.GlobalAveragePooling1D()), "over masked steps"),
        (model(L.LSTM(2, activation=lambda v: v)), "activation"),
    ):
        with pytest.raises(ConfigError, match=text):
            rnn.from_keras(layer)
    x = keras.Input((None, WIDTH), name="x")
    y = L.GRU(4, return_sequences=True)(L.Masking()(x))
    with pytest.raises(ConfigError, match="values with masks are merged"):
        rnn.from_keras(keras.Model(x, L.Multiply()([y, y])))


def random_layer(seed: int) -> tuple[Any, np.random.Generator]:
    """A recurrent layer of Keras with any of its options, perhaps in both directions or of stacked cells."""
    rng = np.random.default_rng(seed)

    def coin(chance: float = 0.5) -> bool:
        return bool(rng.random() < chance)

    def cell(kind: str) -> dict[str, Any]:
        found: dict[str, Any] = {"units": int(rng.integers(1, 7)), "use_bias": coin(0.8)}
        found["activation"] = str(rng.choice(["tanh", "relu", "sigmoid", "softsign", "linear"]))
        if kind != "SimpleRNN":
            found["recurrent_activation"] = str(rng.choice(["sigmoid", "hard_sigmoid", "tanh"]))
        return found | ({"reset_after": coin()} if kind == "GRU" else {})

    kind = str(rng.choice(["SimpleRNN", "LSTM", "GRU"]))
    more = {"return_sequences": coin(), "return_state": coin(0.4), "go_backwards": coin(0.3)}
    which = int(rng.integers(4))
    if which == 0:
        cells = [
            getattr(L, f"{own}Cell")(**cell(own))
            for own in rng.choice(["SimpleRNN", "LSTM", "GRU"], int(rng.integers(1, 4)))
        ]
        return L.RNN(cells, **more), rng
    layer = getattr(L, kind)(**cell(kind), **{**more, "go_backwards": more["go_backwards"] and which != 1})
    if which == 1:
        return L.Bidirectional(layer, merge_mode=str(rng.choice(["concat", "sum", "mul", "ave"]))), rng
    return layer, rng


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_two_hundred_random_layers(part: int, tmp_path: Path) -> None:
    """As layers, and alone in models that are saved to files; some with masks. One in 20 compiled as well."""
    for seed in range(50 * part, 50 * part + 50):
        layer, rng = random_layer(seed)
        x = rng.normal(size=(int(rng.integers(1, 4)), int(rng.integers(1, 8)), WIDTH)).astype("f4")
        if seed % 3:
            layer.build((None, None, WIDTH))
            (name,) = (item.name for item in rnn.from_keras(filled(layer)).program.inputs[:1])
            net = agrees(layer, None, **{name: x})
        else:
            given = keras.Input((None, WIDTH), name="x")
            masked = L.Masking()(given) if rng.random() < 0.5 else given
            net = agrees(keras.Model(given, layer(masked)), tmp_path, x=x)
        if seed % 20 == 0:
            feeds = {net.program.inputs[0].name: x}
            expected = rnn.reference(net).run(feeds)
            assert_close(rnn.compile(net).run(feeds), expected, "float32", x.shape[1])

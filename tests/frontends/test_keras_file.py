"""Keras files as data: damaged, hostile or strange ones are refused; nothing outside of a file is ever read."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keras_files import changed, sequential, tagger, weights_file, write

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError, TvmRnnError
from tvm_rnn.frontends.keras_file import describe, groups_of, paths_of, snake_case

LAYERS = tagger()
CONFIG, WEIGHTS = sequential(*LAYERS), weights_file(*LAYERS)


def said(path: Path) -> str:
    with pytest.raises(ConfigError) as error:
        rnn.from_keras(path)
    assert str(path) in str(error.value)
    return str(error.value)


def test_a_file_written_by_hand_is_read(tmp_path: Path) -> None:
    model = rnn.from_keras(write(tmp_path / "m.keras", CONFIG, WEIGHTS))
    assert [net.cell.name for net in model.networks] == ["lstm", "gru"]
    x = np.random.default_rng(1).normal(size=(2, 5, 3)).astype("f4")
    y = rnn.reference(model).run({"x": x})["layer_2"]
    assert y.shape == (2, 5, 2) and np.allclose(y.sum(-1), 1)
    again = rnn.from_keras(write(tmp_path / "z.keras", CONFIG, WEIGHTS, zipfile.ZIP_DEFLATED))
    np.testing.assert_array_equal(rnn.reference(again).run({"x": x})["layer_2"], y)
    assert model.origin.framework == "keras" and model.origin.file == str(tmp_path / "m.keras")


def test_names_in_files() -> None:
    assert [snake_case(n) for n in ("SimpleRNN", "LSTM", "TimeDistributed", "GRUCell", "InputLayer")] == [
        "simple_rnn",
        "lstm",
        "time_distributed",
        "gru_cell",
        "input_layer",
    ]
    assert groups_of(["LSTM", "Dense", "LSTM", "LSTM"]) == ["lstm", "dense", "lstm_1", "lstm_2"]
    stacked = {"class_name": "StackedRNNCells", "config": {"cells": [{"class_name": n} for n in ("LSTMCell",) * 2]}}
    assert paths_of({"class_name": "RNN", "config": {"cell": stacked}}) == [
        "cell/cells/lstm_cell/",
        "cell/cells/lstm_cell_1/",
    ]
    assert paths_of({"class_name": "MultiHeadAttention", "config": {}})[::3] == ["query_dense/", "output_dense/"]
    assert paths_of({"class_name": "RNN", "config": "odd"}) == ["cell/"] and paths_of({}) == [""]


def linked(link: Any, place: str = "layers/gru/cell/vars/0") -> bytes:
    """The weights with one array in another form."""
    buffer = io.BytesIO(WEIGHTS)
    with h5py.File(buffer, "r+") as file:
        del file[place]
        if callable(link):
            link(file, place)
        else:
            file[place] = link
    return buffer.getvalue()


def huge(file: Any, place: str) -> None:
    file.create_dataset(place, shape=(1 << 40,), dtype="f4", chunks=(1 << 20,))


def unwritten(file: Any, place: str) -> None:
    space = h5py.h5s.create_simple((1 << 40, 1 << 10))
    h5py.h5d.create(file["layers/gru/cell/vars"].id, b"0", h5py.h5t.NATIVE_FLOAT, space)


def elsewhere(file: Any, place: str) -> None:
    file.create_dataset(place, shape=(8, 15), dtype="f4", external=[("secret.bin", 0, 480)])


def virtual(file: Any, place: str) -> None:
    layout = h5py.VirtualLayout((8, 15), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "x", (8, 15))
    file.create_virtual_dataset(place, layout)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (linked(h5py.ExternalLink("other.h5", "/x")), "a link to elsewhere"),
        (linked(h5py.SoftLink("/layers/lstm")), "a link to elsewhere"),
        (linked(h5py.ExternalLink("other.h5", "/x"), "layers/gru/cell"), "a link to elsewhere"),
        (linked(elsewhere), "no array of this file"),
        (linked(virtual), "no array of this file"),
        (linked(huge), "and 0 bytes"),
        (linked(unwritten), "and 0 bytes"),
        (linked(np.array([b"text"])), "is of dtype"),
        (linked(np.zeros((8, 15), "c16")), "is of dtype"),
        (linked(np.zeros((8, 15))), "not all float32"),
        (linked(np.zeros((8, 14), "f4")), "its arrays have shapes"),
        (linked(np.zeros((), "f4")), "its arrays have shapes"),
        (linked(lambda file, place: file.create_group(place)), "no array of this file"),
        (linked(lambda file, place: None, "layers/gru"), "its arrays have shapes []"),
        (b"no HDF5", "not a .keras file"),
        (WEIGHTS[:2000], "not a .keras file"),
    ],
    ids=range(16),
)
def test_weights_that_are_refused(weights: bytes, text: str, tmp_path: Path) -> None:
    assert text in said(write(tmp_path / "m.keras", CONFIG, weights))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("", "not a .keras file"),
        ("[1, 2]", "holds a list"),
        ("[" * 100_000, "depth of at most"),
        ("{}", "class_name"),
        ({"class_name": "Sequential", "config": {}}, "config is not Keras's"),
        ({"class_name": "Sequential", "config": {"layers": []}}, "no input layer"),
        ({"class_name": "Sequential", "config": {"layers": [1]}}, "config is not Keras's"),
        ({"class_name": "MyModel", "config": {}}, "a MyModel is neither Sequential nor Functional"),
        (changed(CONFIG, 2, units=2**40), "its arrays have shapes"),
        (changed(CONFIG, 2, units="many"), "units is 'many'"),
        (changed(CONFIG, 2, units=-1), "units is -1"),
        (changed(CONFIG, 2, activation="mine"), "activation 'mine' is none of"),
        (changed(CONFIG, 2, activation={"class_name": "function", "config": "os.system"}), "'os.system'"),
        (changed(CONFIG, 2, activation={"class_name": "MyFunction", "module": "evil"}), "activation"),
        (changed(CONFIG, 2, dtype="mixed_float16"), "dtype 'mixed_float16'"),
        (changed(CONFIG, 1, merge_mode="max"), "merge_mode 'max'"),
        (changed(CONFIG, 1, layer={"class_name": "Conv3D", "config": {}}), "it wraps 'Conv3D'"),
        (changed(CONFIG, 1, layer=3), "it wraps ''"),
        (changed(CONFIG, 0, ragged=True), "sparse and ragged"),
        (changed(CONFIG, 0, batch_shape=7), "batch_shape is 7"),
        (sequential(("Lambda", {"function": ["cos\nsystem", None, None]}, {})), "layers of class Lambda"),
        (sequential(("Conv3D", {}, {}), ("Custom", {}, {})), "layers of class Custom"),
        (sequential(("Dropout", {}, {})), "no recurrent layer"),
    ],
    ids=range(23),
)
def test_configs_that_are_refused(config: Any, text: str, tmp_path: Path) -> None:
    assert text in said(write(tmp_path / "m.keras", config, WEIGHTS))


def test_everything_that_is_not_supported_is_named_at_once(tmp_path: Path) -> None:
    layers = [*LAYERS, ("Conv3D", {}, {}), ("Hashing", {}, {})]
    config = changed(sequential(*layers), 2, activation="mine")
    text = said(write(tmp_path / "m.keras", config, weights_file(*layers)))
    for part in ("GRU 'layer_1': activation 'mine'", "Conv3D 'layer_3': layers of class", "Hashing 'layer_4'"):
        assert part in text


def test_archives_that_are_refused(tmp_path: Path) -> None:
    assert "no such Keras file" in said(tmp_path / "none.keras")
    (tmp_path / "text.keras").write_text("no zip")
    assert "not a .keras file" in said(tmp_path / "text.keras")
    with zipfile.ZipFile(tmp_path / "part.keras", "w") as archive:
        archive.writestr("config.json", "{}")
    assert "model.weights.h5" in said(tmp_path / "part.keras")
    bomb = write(tmp_path / "bomb.keras", CONFIG, bytes(10 << 20), zipfile.ZIP_DEFLATED)
    with rnn.Budget(bytes=1 << 20):
        assert bomb.stat().st_size < 1 << 17 and "model.weights.h5, which unpacks to 10485760 bytes" in said(bomb)


def nested(depth: int) -> Any:
    """A Bidirectional around a Bidirectional around ..."""
    layer: dict[str, Any] = {"class_name": "LSTM", "config": {"units": 4}}
    for _ in range(depth):
        layer = {"class_name": "Bidirectional", "config": {"name": "b", "layer": layer}}
    return {"class_name": "Sequential", "config": {"layers": [CONFIG["config"]["layers"][0], layer]}}


def test_a_layer_has_one_list_of_paths_however_deep_it_is() -> None:
    """A list that doubled with each Bidirectional took minutes at 20 of them."""
    for depth in (1, 2, 40):
        config = nested(depth)["config"]["layers"][1]
        assert paths_of(config) == ["forward_layer/cell/", "backward_layer/cell/"]


def test_what_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    assert "it wraps 'Bidirectional'" in said(write(tmp_path / "m.keras", nested(20), WEIGHTS))
    arguments: list[Any] = []
    for _ in range(300):
        arguments = [arguments]
    layer = {"name": "l", "class_name": "LSTM", "config": {}, "inbound_nodes": [{"args": arguments}]}
    for config in (nested(300), {"class_name": "Functional", "config": {"layers": [layer]}}):
        assert "depth of at most 100" in said(write(tmp_path / "m.keras", config, WEIGHTS))


def test_a_config_of_many_values_is_refused_before_it_is_parsed(tmp_path: Path, monkeypatch: Any) -> None:
    path = write(tmp_path / "m.keras", '{"a": [' + "[]," * (1 << 20) + "[]]}", WEIGHTS, zipfile.ZIP_DEFLATED)
    monkeypatch.setattr(json, "loads", lambda text: pytest.fail("it was parsed"))
    text = said(path)
    assert "nodes of at most 1048576" in text and "with tvm_rnn.Budget(nodes=" in text


def test_one_array_under_many_names_is_counted_each_time(tmp_path: Path) -> None:
    def links(file: Any, place: str) -> None:
        array = file.create_dataset("many", data=np.zeros(1 << 16, "f4"))
        for i in range(20):
            file[f"layers/gru/cell/vars/{i + 3}"] = array

    path = write(tmp_path / "m.keras", CONFIG, linked(links))
    with rnn.Budget(bytes=0):
        assert "its arrays have shapes" in said(path)  # 64 bytes for each of the file
    path = write(tmp_path / "m.keras", CONFIG, linked(links), zipfile.ZIP_DEFLATED)
    with rnn.Budget(bytes=1 << 20):
        assert "'layers/gru/cell/vars/" in said(path) and "budget" in said(path)


def test_h5py_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.keras", CONFIG, WEIGHTS)
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ConfigError, match="h5py is not installed"):
        rnn.from_keras(path)


def test_what_is_no_layer() -> None:
    for thing in (3, None, np.ones(3), rnn.cells.lstm):
        with pytest.raises(ConfigError, match="not a layer of Keras"):
            describe(thing)


def survives(path: Path) -> None:
    """A network that can be run, or one error of ours."""
    with contextlib.suppress(TvmRnnError):
        rnn.reference(rnn.from_keras(path)).run({"x": np.ones((2, 4, 3), "f4")})


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=4))
STRANGE = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner))


@st.composite
def configs(draw: Any) -> Any:
    """The tagger's config with something else in a few places."""
    config = json.loads(json.dumps(CONFIG))
    for _ in range(draw(st.integers(1, 3))):
        place: Any = config
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = draw(st.sampled_from(keys))
            if not isinstance(place[key], (dict, list)) or not place[key] or draw(st.booleans()):
                break
            place = place[key]
        place[key] = draw(STRANGE)
    return config


@pytest.mark.broad
@given(configs())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_changed_configs(tmp_path_factory: pytest.TempPathFactory, config: Any) -> None:
    survives(write(tmp_path_factory.getbasetemp() / "changed.keras", config, WEIGHTS))


@pytest.mark.broad
@given(st.lists(st.tuples(st.integers(0, len(WEIGHTS) - 1), st.integers(0, 255)), min_size=1, max_size=3))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_changed_bytes_of_weights(tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]) -> None:
    """The zip is written around them, so that its checksums do not stop what HDF5 should see."""
    data = bytearray(WEIGHTS)
    for at, byte in changes:
        data[at] = byte
    survives(write(tmp_path_factory.getbasetemp() / "bytes.keras", CONFIG, bytes(data)))


@pytest.mark.parametrize("step", [211])
def test_a_file_that_was_cut_short(tmp_path: Path, step: int) -> None:
    data = write(tmp_path / "m.keras", CONFIG, WEIGHTS).read_bytes()
    for end in range(0, len(data), len(data) // step):
        (tmp_path / "cut.keras").write_bytes(data[:end])
        said(tmp_path / "cut.keras")


def test_addresses_beyond_any_file(tmp_path: Path) -> None:
    """Found by fuzzing: HDF5 asks for bytes at a place that is no number of C, which is an OverflowError in Python."""
    numbers = np.frombuffer(WEIGHTS[: len(WEIGHTS) // 8 * 8], "<u8")
    places = [int(i) for i in np.flatnonzero((numbers >= 512) & (numbers < len(WEIGHTS)))]
    assert len(places) > 20
    for place in places:
        changed = numbers.copy()
        changed[place] = (1 << 64) - 4
        survives(write(tmp_path / "m.keras", CONFIG, changed.tobytes() + WEIGHTS[8 * len(numbers) :]))

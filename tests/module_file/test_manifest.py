"""module_file/manifest.py: what a manifest must say, and the container file that carries it.

In: a hand-written manifest and a few bytes that stand for code. Out: files in a temporary folder, taken apart by hand.
"""

from __future__ import annotations

import copy
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_gpu import tiny_manifest
from safetensors.numpy import load as load_safetensors
from tiny_module import H, Tiny

from tvm_rnn.errors import BuildError, WeightError
from tvm_rnn.module_file import manifest as module
from tvm_rnn.module_file.manifest import serialize_weights, validate, write_container
from tvm_rnn.runtime import runtime
from tvm_rnn.runtime.runtime import read_container

CODE = b"\x7fELF" + bytes(range(200))
CONSTANT_PACK = [{"function": "pack_0", "weights": ["decay_l0", "constant.0"], "offset": 0}]
FOOTER = struct.Struct("<8sIIQQQQ")


def at(manifest: dict[str, Any], path: str) -> tuple[Any, str]:
    """The container of the field at a dotted path ("[]": the first item), and the field's key in it."""
    *heads, last = path.split(".")
    value: Any = manifest
    for head in heads:
        value = value[head.removesuffix("[]")]
        value = value[0] if head.endswith("[]") else value
    return value, last.removesuffix("[]")


def training_manifest() -> dict[str, Any]:
    """That of a module that trains; what it has for inference serves both functions."""
    manifest = copy.deepcopy(Tiny().manifest())
    part = {key: manifest[key] for key in ("packs", "packed_elements", "workspace", "rows_per_tile")}
    names = [weight["name"] for weight in manifest["weights"]]
    finish = {"function": "finish_0", "weights": [*names, "constant.2.finish.0"], "offset": 0, "gradients": names}
    tape = {"fixed": 32, "per_row": 16, "per_sequence_row": 48}
    backward = {**copy.deepcopy(part), "totals_elements": 64, "finishes": [finish]}
    manifest["training"] = {"forward": copy.deepcopy(part), "backward": backward, "tape": tape}
    return manifest


def manifest_with(path: str) -> dict[str, Any]:
    """A good manifest that has this field."""
    if path.startswith("training"):
        return training_manifest()
    return copy.deepcopy(tiny_manifest() if path in GPU.split() else Tiny().manifest())


NETWORK = """
versions cell dtype num_layers num_directions inputs[].name inputs[].shape output.name output.shape states[].name
states[].shapes states[].initial weights[].name weights[].shape target.name target.kind target.mcpu target.machine
target.features entry_points batch flops_per_row templates passes created
"""
FUNCTION = """
packs[].function packs[].weights packs[].offset packed_elements workspace.fixed workspace.per_row
workspace.per_tile_row workspace.per_sequence_row rows_per_tile
"""
GPU = """
precision weight_dtype variants variants[].arch variants[].target variants[].packed_bytes variants[].parameters[]
variants[].kernels[].kernel variants[].templates
"""
BETWEEN = """
training.tape.fixed training.tape.per_row training.tape.per_sequence_row training.backward.totals_elements
training.backward.finishes[].function training.backward.finishes[].weights training.backward.finishes[].offset
training.backward.finishes[].gradients
"""
TRAINING = [*(f"training.{way}.{path}" for way in ("forward", "backward") for path in FUNCTION.split())]
PATHS = [*NETWORK.split(), *FUNCTION.split(), *GPU.split(), *TRAINING, *BETWEEN.split()]


def slots(error: pytest.ExceptionInfo[Exception]) -> str:
    text = str(error.value)
    assert "got:" in text and "expected:" in text
    return text


@pytest.mark.parametrize("tiny", [Tiny(), Tiny(2), Tiny(1, 2), Tiny(2, dtype="float64", extra=True)], ids=str)
def test_a_good_manifest_is_valid(tiny: Tiny) -> None:
    validate(tiny.manifest())
    validate(json.loads(json.dumps(tiny.manifest())))


@pytest.mark.parametrize("path", PATHS)
def test_every_field_is_checked(path: str) -> None:
    right = [[-1], [None]] if path.endswith("templates") else [{"a": 1}] if path == "versions" else []
    for wrong in (None, [-1], [None], {"a": 1}):
        if wrong in right:
            continue
        manifest = manifest_with(path)
        holder, key = at(manifest, path)
        holder[key] = wrong
        with pytest.raises(BuildError) as error:
            validate(manifest)
        assert key in slots(error), wrong


# Without "variants" it is the manifest of a module for a CPU.
@pytest.mark.parametrize("path", [path for path in PATHS if path != "variants"])
def test_every_field_is_required(path: str) -> None:
    manifest = manifest_with(path)
    holder, key = at(manifest, path)
    del holder[key]
    with pytest.raises(BuildError, match="the manifest is not valid") as error:
        validate(manifest)
    assert key in slots(error)


def test_a_manifest_of_training() -> None:
    """Its functions may read no other weights, and their constants are in the file."""
    good = training_manifest()
    validate(good)
    weights = {weight["name"]: np.ones(weight["shape"], "f4") for weight in good["weights"]}
    constant = {"constant.2.finish.0": np.ones(2, "f4")}
    assert load_safetensors(serialize_weights(good, {**weights, **constant})).keys() == {*weights, *constant}
    with pytest.raises(WeightError, match=r"constant\.2\.finish\.0"):
        serialize_weights(good, weights)
    good["training"]["backward"]["finishes"][0]["weights"] = ["strange"]
    with pytest.raises(BuildError, match=r"packs 'finish_0' weights[\s\S]*strange"):
        validate(good)


def test_a_manifest_for_gpus() -> None:
    validate(tiny_manifest(archs=("sm_80", "sm_90a")))
    with pytest.raises(BuildError, match=r"'sm_90a' parameters[\s\S]*strange"):
        wrong = tiny_manifest()
        wrong["variants"][0]["parameters"] = [["w_l0", "float32"], ["constant.0", "float32"], ["strange", "float32"]]
        validate(wrong)


def test_weights_of_16_bits_are_float32_in_the_file() -> None:
    manifest = tiny_manifest(dtype="bfloat16")
    assert load_safetensors(serialize_weights(manifest, {"w_l0": np.ones(3, "f4")}))["w_l0"].dtype == np.float32
    with pytest.raises(WeightError, match="float16"):
        serialize_weights(manifest, {"w_l0": np.ones(3, "f2")})


@pytest.mark.parametrize("number", [None, 0, 1, 3, "2"])
def test_another_format_is_refused(number: Any) -> None:
    with pytest.raises(BuildError, match="format"):
        validate(Tiny().manifest(format=number))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"inputs": [{"name": "x", "shape": [H]}] * 2}, "each name once"),
        ({"inputs": {}}, "expected: `array`"),
        ({"packs": [{"function": "pack_0", "weights": ["decay_l7"], "offset": 0}]}, "decay_l7"),
        ({"states": [{"name": "h", "shapes": [[H], [H]], "initial": 0.0}]}, "one per layer"),
        ({"states": [{"name": "h", "shapes": [[H]], "initial": float("inf")}]}, "expected: `float` <="),
        ({"states": [{"name": "h", "shapes": [[H]], "initial": float("nan")}]}, "expected: `float` >="),
        ({"states": [{"name": "h", "shapes": [[H]], "initial": 0.0, "constant": 1}]}, "expected: `bool`"),
        (
            {"states": [{"name": "m", "shapes": [[H], [2]], "initial": 0.0, "constant": True}], "num_layers": 2},
            "one shape in every layer",
        ),
        ({"dtype": "float8"}, r"float32\|float64"),
        ({"num_directions": 3}, "expected: `int` <= 2"),
        ({"rows_per_tile": 0}, "expected: `int` >= 1"),
        ({"num_layers": True}, r"got: +True\n +expected: `int`"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(BuildError, match=text):
        validate(Tiny().manifest(**changes))


def test_weights_are_safetensors() -> None:
    tiny = Tiny(2, dtype="float64")
    blob = serialize_weights(tiny.manifest(), tiny.weights())
    found = load_safetensors(blob)
    assert found.keys() == tiny.weights().keys()
    for name, array in tiny.weights().items():
        np.testing.assert_array_equal(found[name], array, strict=True)
    assert serialize_weights(tiny.manifest(), {}) == b""


def test_weights_of_any_layout_keep_their_values() -> None:
    """Strided, byte-swapped, and without dimensions: each is the same array in the file."""
    shapes = [{"name": "s", "shape": []}, {"name": "t", "shape": [2, 3]}, {"name": "u", "shape": [4]}]
    manifest = Tiny().manifest(weights=shapes, packs=[])
    weights = {
        "s": np.array(3, "f4"),
        "t": np.arange(6, dtype="f4").reshape(3, 2).T,
        "u": np.arange(4, dtype=">f4"),
    }
    found = load_safetensors(serialize_weights(manifest, weights))
    for name, array in weights.items():
        assert found[name].shape == array.shape and found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ({"decay_l0": np.zeros(H, "f8")}, "float64"),
        ({"decay_l0": np.zeros(H + 1, "f4")}, "shape"),
        ({"decay": np.zeros(H, "f4")}, "decay_l0"),
        ({"decay_l0": np.zeros(H, "f4"), "more": np.zeros(H, "f4")}, "more"),
        ({"decay_l0": np.zeros(H, "f4"), "constant.0": np.zeros(H, "f4")}, "constant.0"),
    ],
    ids=["dtype", "shape", "missing", "unknown", "unknown constant"],
)
def test_weights_that_do_not_fit_are_refused(weights: dict[str, np.ndarray], text: str) -> None:
    with pytest.raises(WeightError, match=text) as error:
        serialize_weights(Tiny().manifest(), weights)
    slots(error)


def test_constants_are_always_in_the_file() -> None:
    manifest = Tiny().manifest(packs=CONSTANT_PACK)
    validate(manifest)
    constant = {"constant.0": np.ones((2, 3), "f4")}
    assert load_safetensors(serialize_weights(manifest, constant)).keys() == constant.keys()
    both = {**Tiny().weights(), **constant}
    assert load_safetensors(serialize_weights(manifest, both)).keys() == both.keys()
    for missing in ({}, Tiny().weights()):
        with pytest.raises(WeightError, match=r"constant\.0"):
            serialize_weights(manifest, missing)
    with pytest.raises(WeightError, match="float64"):
        serialize_weights(manifest, {"constant.0": np.ones(2)})


@pytest.mark.parametrize("weights", [{}, Tiny().weights()], ids=["empty", "full"])
@pytest.mark.parametrize("length", [64, 100, 127, 204])
def test_the_parts_lie_where_the_footer_says(tmp_path: Path, weights: dict[str, np.ndarray], length: int) -> None:
    path, code = tmp_path / "m.so", CODE[:length]
    write_container(code, Tiny().manifest(), weights, path)
    data = path.read_bytes()
    magic, version, crc, elf_size, offset, size, text = FOOTER.unpack(data[-FOOTER.size :])
    end = len(data) - FOOTER.size
    facts, said = runtime.carried(data, elf_size) or ("", {})
    carried = len(facts) + len(json.dumps(said, separators=(",", ":"))) + runtime.CARRIED.size
    assert (magic, version) == (b"TVMRNN\0\1", 1) and 0 <= elf_size - carried - length < 64
    assert crc == zlib.crc32(data[:end])
    assert data[:length] == code and not any(data[length : elf_size - carried])
    assert offset == elf_size and elf_size % 64 == 0 and offset + size + text == end
    assert data[offset : offset + size] == serialize_weights(Tiny().manifest(), weights)
    assert json.loads(data[end - text : end]) == Tiny().manifest()
    found, arrays = read_container(path)
    assert found == Tiny().manifest() and arrays.keys() == weights.keys()


def test_code_keeps_what_it_was_made_for(tmp_path: Path) -> None:
    """Another export has other weights and the same code; a manifest that was changed is not written."""
    tiny, path = Tiny(), tmp_path / "m.so"
    tiny.write(path)
    data = path.read_bytes()
    code = data[: FOOTER.unpack(data[-FOOTER.size :])[3]]
    write_container(code, tiny.manifest(created="later", weight_error=None), None, path)
    assert path.read_bytes().startswith(code) and read_container(path)[0]["created"] == "later"
    with pytest.raises(BuildError, match=r"rows_per_tile[\s\S]*got: +17[\s\S]*expected: +16"):
        write_container(code, tiny.manifest(rows_per_tile=17), None, path)
    assert read_container(path)[0]["created"] == "later"


def test_the_code_may_be_given_as_a_path(tmp_path: Path) -> None:
    (tmp_path / "code.so").write_bytes(CODE)
    write_container(CODE, Tiny().manifest(), None, tmp_path / "a.so")
    write_container(tmp_path / "code.so", Tiny().manifest(), None, str(tmp_path / "b.so"))
    assert (tmp_path / "a.so").read_bytes() == (tmp_path / "b.so").read_bytes()


def test_a_file_has_the_users_usual_mode(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_container(CODE, Tiny().manifest(), None, tmp_path / "m.so")
    finally:
        os.umask(old)
    assert (tmp_path / "m.so").stat().st_mode & 0o777 == 0o750


def test_nothing_is_written_where_something_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no code to write"):
        write_container(b"MZ" + CODE, Tiny().manifest(), None, tmp_path / "m.so")
    with pytest.raises(BuildError, match="format"):
        write_container(CODE, Tiny().manifest(format=9), None, tmp_path / "m.so")
    with pytest.raises(WeightError):
        write_container(CODE, Tiny().manifest(), {"decay": np.zeros(H, "f4")}, tmp_path / "m.so")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_keeps_the_old_file_and_leaves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "m.so"
    path.write_bytes(b"old")
    monkeypatch.setattr(module.os, step, fail)
    with pytest.raises(BuildError, match="No space left") as error:
        write_container(CODE, Tiny().manifest(), None, path)
    assert str(path) in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["m.so"] and path.read_bytes() == b"old"


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no directory") as error:
        write_container(CODE, Tiny().manifest(), None, tmp_path / "none" / "m.so")
    assert "do:" in str(error.value)
    with pytest.raises(BuildError, match="it is a directory"):
        write_container(CODE, Tiny().manifest(), None, tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BuildError, match="no directory"):
        write_container(CODE, Tiny().manifest(), None, tmp_path / "file" / "m.so")
    with pytest.raises(BuildError, match="too long"):
        write_container(CODE, Tiny().manifest(), None, tmp_path / ("m" * 300))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(BuildError, match="Permission denied"):
            write_container(CODE, Tiny().manifest(), None, tmp_path / "m.so")
    finally:
        tmp_path.chmod(0o755)

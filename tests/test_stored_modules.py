"""What the documentation promises under Compatibility: files of modules that earlier versions made load, and compute
what they computed.

In: `golden/modules/format_N.zip` for each format of manifests since 1.0.0, by `store_modules.py`.
"""

from __future__ import annotations

import platform
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from derivatives import Case, named

import tvm_rnn as rnn
from tvm_rnn.errors import LoadError
from tvm_rnn.module_file import schema
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.runtime.runtime import MANIFEST_FORMAT, OLDEST_FORMAT, read_container

FOLDER = Path(__file__).parent / "golden" / "modules"
FORMATS = range(OLDEST_FORMAT, MANIFEST_FORMAT + 1)
STEPS, BATCH = 7, 5  # of the calls
Arrays = dict[str, np.ndarray]


def flat(value: Any, name: str) -> Arrays:
    """Arrays by their paths. Dicts, lists and tuples are what is around them."""
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: own for part, inner in items for key, own in flat(inner, f"{name}/{part}").items()}
    return {name: np.asarray(value)}


def among(arrays: Arrays, name: str) -> Arrays:
    """Those that `flat` gave that name."""
    return {key: value for key, value in arrays.items() if key.split("/")[0] == name}


def of(arrays: Arrays, name: str) -> dict[str, Any]:
    """The dict that `flat` took: its values are arrays, or lists of them where layers differ."""
    found: dict[str, Any] = {}
    for key, value in among(arrays, name).items():
        own, *part = key.split("/")[1:]
        if part:
            found.setdefault(own, []).append(value)
        else:
            found[own] = value
    return found


def stored(number: int, kind: str, folder: Path) -> tuple[Path, Arrays]:
    """A module's file, and the arrays of its calls."""
    with zipfile.ZipFile(FOLDER / f"format_{number}.zip") as file:
        file.extractall(folder, [f"{kind}.so", f"{kind}.npz"])
    with np.load(folder / f"{kind}.npz") as arrays:
        return folder / f"{kind}.so", dict(arrays)


def loaded(path: Path) -> Any:
    """The module, as users load it. Skips the test on machines that it is not for."""
    if platform.machine() != "x86_64":
        pytest.skip("the stored modules are for x86-64")
    return rnn.load(path)


def check(module: Any, arrays: Arrays) -> None:
    """A call's results."""
    x, state, rows = (of(arrays, name) for name in ("x", "state", "rows"))
    found = module(x, state, **rows) if state else module.run(x)
    assert_close(flat(found, "expected"), among(arrays, "expected"), "float32", STEPS)


def check_training(module: Any, arrays: Arrays) -> None:
    """A call's results in training, with the masks of its seed, and its gradients."""
    rows, numbers = of(arrays, "rows"), {name: int(value) for name, value in of(arrays, "training").items()}
    case = Case(of(arrays, "x"), of(arrays, "state"), arrays["gy"], of(arrays, "gstate"), rows, numbers)
    y, state, tape = module.forward_train(case.x, case.state, **numbers, **rows)
    assert_close(flat((y, state), "expected"), among(arrays, "expected"), "float32", STEPS)
    found = flat(named(*module.backward(tape, case.gy, case.gstate)), "gradients")
    assert_close(found, among(arrays, "gradients"), "float32", STEPS)


@pytest.mark.parametrize("number", FORMATS)
@pytest.mark.parametrize("kind", ["inference", "int8", "model"])
def test_a_stored_module_computes_what_it_computed(number: int, kind: str, tmp_path: Path) -> None:
    path, arrays = stored(number, kind, tmp_path)
    module = loaded(path)
    assert module.manifest.format == number
    check(module, arrays)


@pytest.mark.parametrize("number", FORMATS)
def test_a_stored_module_steps(number: int, tmp_path: Path) -> None:
    path, arrays = stored(number, "int8", tmp_path)
    y, _ = loaded(path).step(arrays["x/x"][0], of(arrays, "state"))
    assert_close(y, arrays["expected/0"][0], "float32", 1)


@pytest.mark.parametrize("number", FORMATS)
def test_a_stored_module_trains(number: int, tmp_path: Path) -> None:
    path, arrays = stored(number, "training", tmp_path)
    check_training(loaded(path), arrays)


@pytest.mark.parametrize("number", FORMATS)
def test_a_stored_module_for_a_gpu_says_what_it_is(number: int, tmp_path: Path) -> None:
    path, _ = stored(number, "gpu", tmp_path)
    manifest, weights = read_container(path)
    facts = schema.read(manifest)
    assert isinstance(facts, schema.GpuNetwork) and facts.target.name == "nvidia-h100" and len(weights) == 3


@pytest.mark.gpu
@pytest.mark.parametrize("number", FORMATS)
def test_a_stored_module_for_a_gpu_trains(number: int, tmp_path: Path) -> None:
    path, arrays = stored(number, "gpu", tmp_path)
    try:
        module = loaded(path)
    except LoadError as reason:
        pytest.skip(str(reason).splitlines()[0])
    check_training(module, arrays)

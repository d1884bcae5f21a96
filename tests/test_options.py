"""options: what arguments of `compile` mean, for any network and for one of a dtype."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from tvm_rnn.errors import ConfigError
from tvm_rnn.options import PASS_NAMES, Options, asked, batch_sizes, check_passes
from tvm_rnn.passes.pipeline import PASSES
from tvm_rnn.target import GPUS, TABLE

CPU, GPU = TABLE["x86-64-v4"], GPUS["nvidia-h200"]


def test_the_names_of_passes_are_those_of_the_pipeline() -> None:
    assert tuple(step.name for step in PASSES) == PASS_NAMES


def test_what_nobody_asked_for() -> None:
    assert asked(CPU) == Options(CPU) and asked(CPU).of("float64") == Options(CPU, precision="float64")


def test_nobody_changes_them() -> None:
    name = "batches"
    with pytest.raises(FrozenInstanceError):
        setattr(Options(CPU), name, (1,))


def test_what_was_asked_for() -> None:
    found = asked(GPU, [GPU], batch=[8, 1, 8], without=["fuse_pointwise"], training=True, keep="states", max_bytes=5)
    expected = Options(GPU, (1, 8), ("fuse_pointwise",), training="states", max_bytes=5, targets=(GPU,))
    assert found == expected and asked(GPU, training=True).training is True


def test_precision_and_weights_are_those_of_a_dtype() -> None:
    given = asked(GPU, weights="float8_e4m3")
    assert (given.of("bfloat16").precision, given.of("bfloat16").stored) == ("bfloat16", "float8_e4m3")
    assert asked(GPU, precision="tf32").of("float32").precision == "tf32"
    assert asked(CPU, weights="torch.bfloat16").of("float32").stored == "bfloat16"
    assert asked(CPU, weights="float32").of("float32").stored == ""


@pytest.mark.parametrize(
    ("given", "dtype", "error"),
    [
        ({"precision": "tf32"}, "float32", "CPUs compute in float32 and float64 only"),
        ({}, "bfloat16", "CPUs compute in float32 and float64 only"),
        ({"precision": "tf32"}, "float64", "cannot be computed in 'tf32'"),
        ({"weights": "float8_e4m3"}, "float32", "float8_e4m3 weights are not for this target"),
        ({"weights": "bfloat16", "training": True}, "float32", "training keeps weights in the network's dtype"),
    ],
)
def test_what_does_not_go_together(given: dict[str, Any], dtype: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        asked(CPU, **given).of(dtype)


def test_weights_that_a_cpu_cannot_read() -> None:
    old = replace(TABLE["x86-64-v2"], features=()) if "x86-64-v2" in TABLE else replace(CPU, features=(), mcpu="x86-64")
    with pytest.raises(ConfigError, match="converts them"):
        asked(old, weights="float16").of("float32")


@pytest.mark.parametrize("given", [{"keep": "states"}, {"max_bytes": 9}])
def test_only_training_keeps_anything(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="only training keeps anything"):
        asked(CPU, **given)
    asked(CPU, training=True, **given)


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "2G"])
def test_a_budget_is_a_number_of_bytes(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="max_bytes is wrong"):
        asked(CPU, training=True, max_bytes=wrong)


def test_batch_sizes() -> None:
    assert batch_sizes(4) == (4,) and batch_sizes([3, 1, 3]) == (1, 3) and batch_sizes(()) == ()
    with pytest.raises(ConfigError, match="compile: batch"):
        batch_sizes([1, 0])


def test_passes_that_there_are() -> None:
    assert check_passes(["fuse_pointwise"]) == {"fuse_pointwise"}
    with pytest.raises(ConfigError, match="no such pass"):
        check_passes(["fuse"])


def test_passes_are_for_the_gpu_whose_kernels_all_others_can_run() -> None:
    """That with the least shared memory; of equals the first."""
    h200, b200, a100, ada = (GPUS[f"nvidia-{name}"] for name in ("h200", "b200", "a100", "rtx-4090"))
    assert Options(h200, targets=(h200,)).least is h200
    assert Options(h200, targets=(h200, a100, ada)).least is ada
    assert Options(b200, targets=(b200, h200)).least is b200
    assert Options(TABLE["x86-64-v3"]).least is TABLE["x86-64-v3"]


def test_one_pass_is_named_without_a_list() -> None:
    assert asked(CPU, without="hoist_gemms") == asked(CPU, without=["hoist_gemms"])
    with pytest.raises(ConfigError, match=r"got: +'hoist'[\s\S]*did you mean 'hoist_gemms'"):
        check_passes(asked(CPU, without="hoist").without)


def test_batch_sizes_in_words() -> None:
    words: dict[str, Any] = {"batch": "1,2"}
    with pytest.raises(ConfigError, match=r"got: +'1,2'[\s\S]*batch=\(1, 16\)"):
        asked(CPU, **words)

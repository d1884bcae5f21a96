"""What training adds to a module for GPUs: two programs beside that of inference, and facts."""

from __future__ import annotations

import pytest
from fake_gpu import tiny_manifest
from networks import network
from training_plans import trained

from tvm_rnn import RNN
from tvm_rnn.cuda.codegen.cuda_text import generate
from tvm_rnn.cuda.training import add_entry_points
from tvm_rnn.cuda.training.add_entry_points import WAYS, Trained, describe, plan
from tvm_rnn.decisions import recording
from tvm_rnn.module_file.schema import GpuNetwork, Kernel, read
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import Target, resolve


def planned(net: RNN, target: Target, training: bool | str) -> Trained:
    return plan(passed(net, Options(target, (4,), precision="float32", training=training)), target)


@pytest.mark.broad
def test_programs_have_names_of_their_own() -> None:
    _, plans = trained("elman")
    for program, way in zip(plans.programs, WAYS, strict=True):
        assert program.suffix == f"_{way}"
    found = generate(plans.programs[1], resolve("nvidia-h200"))
    assert found.name == "sm_90a_backward" and found.arch == "sm_90a"
    assert "#define ARCH sm_90a_backward" in found.host


def test_what_the_manifest_says() -> None:
    net, plans = trained("lstm")
    facts = read(tiny_manifest(entry_points=["sequence"]))
    assert isinstance(facts, GpuNetwork)
    describe(facts, [plans], {"sm_90a_backward": [{"kernel": "k"}]})
    (variant,) = facts.variants
    assert facts.entry_points == ["sequence", *WAYS] and facts.gradients is not None
    assert variant.forward_train is not None and variant.backward is not None
    assert variant.backward.kernels == [Kernel(kernel="k")]
    assert sorted(facts.gradients) == sorted(net.weight_shapes)
    read_first = [name for name, _ in variant.forward_train.parameters]
    assert sorted(read_first) == sorted(net.weight_shapes)


def test_constants_are_those_that_packing_reads() -> None:
    _, plans = trained("antisymmetric")
    read = {name for program in plans.programs for name, _ in program.parameters if name.startswith("constant.")}
    assert plans.constants().keys() == read


@pytest.mark.broad
def test_what_is_kept_where_nobody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """States, but where only steps that read values have persistent kernels."""
    net, target = network("cfn", 8, 8), resolve("nvidia-h200")
    found = planned(net, target, True)
    assert found.training == "states" and all(code.regimes for code in found.backward.code)
    monkeypatch.setattr(add_entry_points, "_persistent", lambda trained: trained.training == "values")
    with recording() as told:
        assert planned(net, target, True).training == "values"
    assert {d.what for d in told if d.what.startswith("keep=")} == {'keep="values"'}
    assert planned(net, target, "states").training == "states"


@pytest.mark.broad
def test_recurrences_over_all_time_keep_values() -> None:
    """They are read sooner than made again; who asks for states has them."""
    net, target = network("min_gru", 8, 8), resolve("nvidia-h200")
    assert planned(net, target, True).training == "values"
    assert planned(net, target, "states").training == "states"
    options = Options(target, (4,), ("parallelise_time",), precision="float32", training=True)
    assert plan(passed(net, options), target).training == "states"

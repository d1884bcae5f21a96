"""What training adds to a module for GPUs: two programs beside that of inference, and facts."""

from __future__ import annotations

from typing import Any

import pytest
from networks import network
from training_plans import trained

from tvm_rnn.cuda.codegen.cuda_text import generate
from tvm_rnn.cuda.training import add_entry_points
from tvm_rnn.cuda.training.add_entry_points import WAYS, describe, plan
from tvm_rnn.decisions import recording
from tvm_rnn.target import resolve


def test_programs_have_names_of_their_own() -> None:
    _, plans = trained("elman")
    for program, way in zip(plans.programs, WAYS, strict=True):
        assert program.suffix == f"_{way}"
    found = generate(plans.programs[1], resolve("nvidia-h200"))
    assert found.name == "sm_90a_backward" and found.arch == "sm_90a"
    assert "#define ARCH sm_90a_backward" in found.host


def test_what_the_manifest_says() -> None:
    net, plans = trained("lstm")
    facts: dict[str, Any] = {"variants": [{"arch": "sm_90a"}], "entry_points": ["sequence"]}
    describe(facts, [plans], {"sm_90a_backward": [{"kernel": "k"}]})
    assert facts["entry_points"] == ["sequence", *WAYS]
    assert facts["variants"][0]["backward"]["kernels"] == [{"kernel": "k"}]
    assert sorted(facts["gradients"]) == sorted(net.weight_shapes)
    read = [name for name, _ in facts["variants"][0]["forward_train"]["parameters"]]
    assert sorted(read) == sorted(net.weight_shapes)


def test_constants_are_those_that_packing_reads() -> None:
    _, plans = trained("antisymmetric")
    read = {name for program in plans.programs for name, _ in program.parameters if name.startswith("constant.")}
    assert plans.constants().keys() == read


@pytest.mark.broad
def test_what_is_kept_where_nobody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """States, but where only steps that read values have persistent kernels."""
    net, target = network("cfn", 8, 8), resolve("nvidia-h200")
    found = plan(net, target, (4,), (), "float32", True)
    assert found.training == "states" and all(code.regimes for code in found.backward.code)
    monkeypatch.setattr(add_entry_points, "_persistent", lambda trained: trained.training == "values")
    with recording() as told:
        assert plan(net, target, (4,), (), "float32", True).training == "values"
    assert {d.what for d in told if d.what.startswith("keep=")} == {'keep="values"'}
    assert plan(net, target, (4,), (), "float32", "states").training == "states"

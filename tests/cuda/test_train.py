"""What training adds to a module for GPUs: two programs beside that of inference, and facts."""

from __future__ import annotations

from typing import Any

from training_plans import trained

from tvm_rnn.cuda.source import generate
from tvm_rnn.cuda.train import WAYS, describe
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

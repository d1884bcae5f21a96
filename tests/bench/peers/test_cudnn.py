"""cuDNN's layers as a peer, with a library that computes on the CPU what cuDNN is documented to compute."""

from __future__ import annotations

import gc
from typing import Any

import fake_cudnn
import pytest
from gpu_stand_in import point, problem, stand_in

from tvm_rnn.bench.peers import cudnn as peers_cudnn
from tvm_rnn.bench.peers import cudnn_api as api
from tvm_rnn.bench.peers.gpu import FRAMEWORKS
from tvm_rnn.bench.peers.models import GpuProblem, Unsupported
from tvm_rnn.bench.run.gpu_worker import Bench, errors
from tvm_rnn.oracle.torch_graph import TorchModel

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers
WORKING = [f"{name}{layout}" for name in list(api.ALGORITHMS)[:3] for layout in ("", ", unpacked")]


@pytest.fixture(autouse=True)
def cudnn(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> api.Cudnn:
    if request.node.get_closest_marker("gpu"):
        return api.load() if torch.cuda.is_available() else pytest.skip("no NVIDIA GPU")
    library = fake_cudnn.library()
    monkeypatch.setattr(api, "load", lambda: library)
    fake_cudnn.log(library)
    return library


def oracle(given: GpuProblem) -> Any:
    return TorchModel(given.net, torch.float64, "cpu")([x.double() for x in given.inputs])


@pytest.mark.parametrize("cell", ["lstm", "gru", "elman", "elman_relu", "lstm_projection"])
@pytest.mark.parametrize("form", [{}, {"layers": 3, "directions": 2, "steps": 7, "batch": 1, "hidden": 33}])
def test_it_has_our_weights_and_gives_our_states(cell: str, form: dict[str, Any]) -> None:
    sizes = (("P", 5),) if cell == "lstm_projection" else ()
    given = problem(point(cell, sizes=sizes, **form), torch)
    with torch.no_grad():
        y, state = peers_cudnn.models(given)["STANDARD"]()
        assert set(state) == {s.name for s in given.net.cell.states}
        assert errors((y, state), oracle(given))[0] < 1e-5


def test_every_algorithm_is_a_configuration() -> None:
    given = problem(point(layers=2), torch)
    prepared = FRAMEWORKS["cudnn"](given)
    assert prepared.version == "cuDNN 9.19.1"
    assert list(prepared.compiling) == ["PERSIST_DYNAMIC", "PERSIST_DYNAMIC, unpacked"]
    with torch.no_grad():
        for name, run in prepared.runs.items():
            if name in WORKING:
                assert errors(run(), oracle(given))[0] < 1e-5, name
            else:
                with pytest.raises(Unsupported, match=r"cudnnGetRNNTempSpaceSizes.*NOT_SUPPORTED_SHAPE too many units"):
                    run()


@pytest.mark.parametrize(
    ("precision", "kind", "maths"),
    [("bfloat16", 9, {1}), ("float16", 2, {1}), ("tf32", 0, {0, 2}), ("float32", 0, {3})],
)
def test_precisions_are_types_and_ways_to_multiply(
    cudnn: api.Cudnn, precision: str, kind: int, maths: set[int]
) -> None:
    for model in peers_cudnn.models(problem(point(precision=precision), torch)).values():
        model._descriptor()
    words = [line.split() for line in fake_cudnn.log(cudnn).splitlines()]
    assert {int(line[8]) for line in words} == {kind} and {int(line[10]) for line in words} == maths
    assert {int(line[2]) for line in words} == {0, 1, 2, 3} and {int(line[12]) for line in words} == {0, 1}


def test_bfloat16_stays_bfloat16() -> None:
    given = problem(point(precision="bfloat16"), torch)
    with torch.no_grad():
        y, state = peers_cudnn.models(given)["PERSIST_STATIC"]()
        assert y.dtype == state["c"].dtype == torch.bfloat16 and errors((y, state), oracle(given))[0] < 1e-2


def test_a_second_call_prepares_nothing_and_reads_its_input_again(cudnn: api.Cudnn) -> None:
    given = problem(point("gru"), torch)
    model = peers_cudnn.models(given)["STANDARD"]
    with torch.no_grad():
        model()
        given.inputs[0].neg_()
        assert errors(model(), oracle(given))[0] < 1e-5
    lines = fake_cudnn.log(cudnn).splitlines()
    assert sum(line.startswith("layers") for line in lines) == 1 and len(lines) == 3  # and two streams


def test_descriptors_go_with_the_model(cudnn: api.Cudnn) -> None:
    before = fake_cudnn.alive(cudnn)
    model = peers_cudnn.models(problem(point(), torch))["STANDARD"]
    with torch.no_grad():
        model()
    assert fake_cudnn.alive(cudnn) > before
    del model
    gc.collect()
    assert fake_cudnn.alive(cudnn) == before


def test_a_weight_of_another_shape_is_an_error(cudnn: api.Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem(point(), torch)
    monkeypatch.setitem(given.net.weights, "W_l0", given.net.weights["W_l0"][:, :, :3])
    with pytest.raises(api.CudnnError, match=r"a weight of \[8, 3\] is \[1, 8, 4\] at byte"):
        peers_cudnn.models(given)["STANDARD"]()


@pytest.mark.parametrize(
    ("cell", "precision", "reason"), [("mgu", "float32", "no cell"), ("lstm", "float64", "no rec")]
)
def test_what_it_lacks_is_said(cell: str, precision: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        peers_cudnn.models(problem(point(cell, precision=precision), torch))


def test_the_best_configuration_counts_and_the_others_keep_their_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, torch)
    told: list[dict[str, Any]] = []
    skip = {"cudnn: PERSIST_STATIC": "it hung"}
    asked = {"point": point().as_dict(), "module": None, "frameworks": ["cudnn"], "rounds": 3}
    (row,) = Bench(told.append).measure({**asked, "compile_seconds": 60.0, "skip": skip})
    assert row["config"] == "STANDARD" and row["us_per_step"] == 101.0 / 5 and row["error"] < 1e-5
    assert set(row["configs"]) == set(WORKING) - {"PERSIST_STATIC"} and "compile_seconds" not in row
    assert row["left_out"]["PERSIST_STATIC"] == "it hung"
    assert "NOT_SUPPORTED_SHAPE" in row["left_out"]["PERSIST_STATIC_SMALL_H, unpacked"]
    assert {"stage": "checking STANDARD", "framework": "cudnn", "config": "STANDARD"} in told


@pytest.mark.gpu
@pytest.mark.parametrize("precision", peers_cudnn.MATHS)
@pytest.mark.parametrize("cell", peers_cudnn.MODES)
def test_the_real_library_agrees_with_the_oracle(cell: str, precision: str) -> None:
    """Whatever it supports, captured as the benchmark captures it; the plain algorithm it supports everywhere."""
    sizes = {"hidden": 128, "input": 64, "steps": 20, "batch": 8, "precision": precision}
    of = point(cell, sizes=(("P", 64),) if cell == "lstm_projection" else (), **sizes)
    asked = {"point": of.as_dict(), "module": None, "frameworks": ["cudnn", "torch"], "rounds": 3}
    ours, theirs = Bench(lambda told: None).measure({**asked, "compile_seconds": 60.0, "skip": {}})
    assert {"STANDARD", "STANDARD, unpacked"} <= set(ours["configs"]), ours
    assert "wrong" not in ours and theirs["error"] > 0
    for reason in ours.get("left_out", {}).values():
        assert "NOT_SUPPORTED" in reason, ours["left_out"]

"""cuDNN's layers as a peer, with a library that computes on the CPU what cuDNN is documented to compute."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from typing import Any

import fake_cudnn
import pytest
from gpu_stand_in import point, problem, stand_in

from tvm_rnn.bench.peers import cudnn as api
from tvm_rnn.bench.peers.gpu import FRAMEWORKS
from tvm_rnn.bench.peers.models import GpuProblem, Unsupported
from tvm_rnn.bench.run.gpu_worker import Bench, errors
from tvm_rnn.oracle.torch_graph import TorchModel

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers
LOAD = api.load  # not the stand-in of these tests
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
    return TorchModel(given.net, torch.float64, "cpu")([x.double() for x in given.inputs], given.lengths)


@pytest.mark.broad_after(3)
@pytest.mark.parametrize("cell", ["lstm", "gru", "elman", "elman_relu", "lstm_projection"])
@pytest.mark.parametrize("form", [{}, {"layers": 3, "directions": 2, "steps": 7, "batch": 1, "hidden": 33}])
def test_it_has_our_weights_and_gives_our_states(cell: str, form: dict[str, Any]) -> None:
    sizes = (("P", 5),) if cell == "lstm_projection" else ()
    given = problem(point(cell, sizes=sizes, **form), torch)
    with torch.no_grad():
        y, state = api.models(given)["STANDARD"]()
        assert set(state) == {s.name for s in given.net.cell.states}
        assert errors((y, state), oracle(given))[0] < 1e-5


def test_rows_with_lengths_are_padded() -> None:
    given = problem(point(layers=2, directions=2, batch=4, lengths=True), torch)
    runs = api.models(given)
    assert set(runs) == {f"{name}, unpacked" for name in api.ALGORITHMS}
    with torch.no_grad():
        assert errors(runs["STANDARD, unpacked"](), oracle(given))[0] < 1e-5


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
    [("bfloat16", 9, {1}), ("float16", 2, {1}), ("tf32", 0, {0}), ("float32", 0, {3})],
)
def test_precisions_are_types_and_ways_to_multiply(
    cudnn: api.Cudnn, precision: str, kind: int, maths: set[int]
) -> None:
    for model in api.models(problem(point(precision=precision), torch)).values():
        model._descriptor()
    words = [line.split() for line in fake_cudnn.log(cudnn).splitlines()]
    assert {int(line[8]) for line in words} == {kind} and {int(line[10]) for line in words} == maths
    assert {int(line[2]) for line in words} == {0, 1, 2, 3} and {int(line[12]) for line in words} == {0, 1}


def test_float32_that_is_multiplied_as_float16_is_a_peer_of_its_own(cudnn: api.Cudnn) -> None:
    for model in FRAMEWORKS["cudnn-fp16"](problem(point(precision="tf32"), torch)).runs.values():
        model._descriptor()
    assert {int(line.split()[10]) for line in fake_cudnn.log(cudnn).splitlines()} == {2}
    with pytest.raises(Unsupported, match="no recurrent layers in float16"):
        FRAMEWORKS["cudnn-fp16"](problem(point(precision="float16"), torch))


def test_bfloat16_stays_bfloat16() -> None:
    given = problem(point(precision="bfloat16"), torch)
    with torch.no_grad():
        y, state = api.models(given)["PERSIST_STATIC"]()
        assert y.dtype == state["c"].dtype == torch.bfloat16 and errors((y, state), oracle(given))[0] < 1e-2


def test_a_second_call_prepares_nothing_and_reads_its_input_again(cudnn: api.Cudnn) -> None:
    given = problem(point("gru"), torch)
    model = api.models(given)["STANDARD"]
    with torch.no_grad():
        model()
        given.inputs[0].neg_()
        assert errors(model(), oracle(given))[0] < 1e-5
    lines = fake_cudnn.log(cudnn).splitlines()
    assert sum(line.startswith("layers") for line in lines) == 1 and len(lines) == 3  # and two streams


def test_configurations_have_their_workspace_in_common() -> None:
    runs = api.models(problem(point(), torch))
    with torch.no_grad():
        for name in WORKING:
            runs[name]()
    assert len({runs[name].kept[2].data_ptr() for name in WORKING}) == 1
    room = api.Room(problem(point(), torch))
    few, many = room.of(8), room.of(16)
    assert many.numel() == 16 and room.of(4) is many is not few


def test_descriptors_go_with_the_model(cudnn: api.Cudnn) -> None:
    before = fake_cudnn.alive(cudnn)
    model = api.models(problem(point(), torch))["STANDARD"]
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
        api.models(given)["STANDARD"]()


@pytest.mark.parametrize(
    ("cell", "precision", "reason"), [("mgu", "float32", "no cell"), ("lstm", "float64", "no rec")]
)
def test_what_it_lacks_is_said(cell: str, precision: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        api.models(problem(point(cell, precision=precision), torch))


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
@pytest.mark.parametrize("precision", api.MATHS)
@pytest.mark.parametrize("cell", api.MODES)
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


class Owner:
    """Of a descriptor."""


def test_the_version_is_three_numbers() -> None:
    assert fake_cudnn.library().version == "9.19.1"


def test_a_status_becomes_a_reason() -> None:
    cudnn, owner = fake_cudnn.library(), Owner()
    rnn = cudnn.descriptor("RNN", owner)
    sizes = (4, 8, 5, 1)  # 8 units projected to 5

    def call(cell: int, biases: int) -> None:
        types = (api.LINEAR_INPUT, api.DATA["float32"], api.DATA["float32"], api.FMA_MATH)
        cudnn.call("cudnnSetRNNDescriptor_v8", rnn, 0, cell, biases, 0, *types, *sizes, None, 0)

    call(api.LSTM, api.DOUBLE_BIAS)
    with pytest.raises(Unsupported, match=r"^cudnnSetRNNDescriptor_v8: CUDNN_STATUS_NOT_SUPPORTED a projection$"):
        call(api.GRU, api.DOUBLE_BIAS)
    with pytest.raises(api.CudnnError, match="CUDNN_STATUS_BAD_PARAM unexpected"):
        call(api.LSTM, 1)


def test_descriptors_go_with_their_owner() -> None:
    cudnn, owner = fake_cudnn.library(), Owner()
    before = fake_cudnn.alive(cudnn)
    kept = [cudnn.descriptor(kind, owner) for kind in ("Tensor", "RNN", "RNNData")]
    assert all(kept) and fake_cudnn.alive(cudnn) == before + 3
    del owner
    gc.collect()
    assert fake_cudnn.alive(cudnn) == before


def test_the_library_that_is_loaded_already_is_found_first() -> None:
    code = (
        f"import ctypes, sys; ctypes.CDLL({fake_cudnn.path()!r})\n"
        "from tvm_rnn.bench.peers import cudnn as api\n"
        "print(api.load().version, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "9.19.1 False\n"


def test_a_library_beside_torch_is_opened_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [("no-such-library.so", os.RTLD_NOW), (fake_cudnn.path(), os.RTLD_NOW)]
    monkeypatch.setattr(api, "candidates", lambda: iter(places))
    assert LOAD.__wrapped__().version == "9.19.1"


def test_what_is_no_cudnn_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "candidates", lambda: iter([("libm.so.6", os.RTLD_NOW)]))
    with pytest.raises(Unsupported, match=r"libm\.so\.6 is no cuDNN 9"):
        LOAD.__wrapped__()
    monkeypatch.setattr(api, "candidates", lambda: iter([("no-such-library.so", os.RTLD_NOW)]))
    with pytest.raises(Unsupported, match="neither in this process nor beside torch"):
        LOAD.__wrapped__()


def test_places_are_tried_from_the_surest_on() -> None:
    pytest.importorskip("torch")
    places = list(api.candidates())
    assert places[0] == (api.LIBRARY, os.RTLD_NOW | os.RTLD_NOLOAD) and places[-1] == (api.LIBRARY, os.RTLD_NOW)
    assert all(os.path.exists(path) for path, _ in places[1:-1])


def test_integers_are_a_c_array() -> None:
    made = api.integers(range(3))
    assert list(made) == [0, 1, 2] and ctypes.sizeof(made) == 3 * ctypes.sizeof(ctypes.c_int)

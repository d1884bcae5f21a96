"""Training in parts of the time on GPUs: gradients under every plan, by the real kernels, run by emulator.py."""

from __future__ import annotations

from typing import Any

import emulator
import numpy as np
import pytest
from derivatives import draw, named, oracle
from networks import flags, network

import tvm_rnn as rnn
from tests.runtime.test_runtime_cuda_training import LIMITS, cast, error, gradients
from tvm_rnn import InputError
from tvm_rnn.runtime import gpu_arrays
from tvm_rnn.runtime.runtime_cuda_training import CudaSegmentedTape, add, clipped, fresh, sizes_of, tape_bytes, times
from tvm_rnn.runtime.runtime_memory import Sizes, plan_of, smallest

EVERY: dict[str, Any] = {"dropout": 0.4, "recurrent_dropout": 0.3, "zoneout": 0.2, "weight_drop": 0.35}
CASES: dict[str, tuple[str, int, str, dict[str, Any]]] = {
    "lstm-bfloat16": ("lstm", 16, "states", {"dtype": "bfloat16", "num_layers": 2}),
    "gru-float64": ("gru", 7, "values", {"dtype": "float64"}),
    "back-float16": ("gru_reset_before", 8, "states", {"dtype": "float16", "reverse": True}),
    "matrices-float32": ("mlstm", 9, "states", {"dtype": "float32"}),
    # Of one head the gradient of b is a difference of large numbers: inputs moved by 2^-9 move it by 11 %.
    "tanh-bfloat16": ("m2rnn", 8, "states", {"dtype": "bfloat16", "N": 3}),
    "both-bfloat16": ("lstm", 16, "values", {"dtype": "bfloat16", "num_layers": 2, "bidirectional": True}),
    "both-float32": ("gru_reset_before", 7, "states", {"dtype": "float32", "bidirectional": True}),
    "masks-float32": ("lstm", 7, "values", {"dtype": "float32", "num_layers": 2, **EVERY}),
    "both-masks-float32": ("gru", 5, "values", {"dtype": "float32", "bidirectional": True, "num_layers": 2, **EVERY}),
    "inputs-float32": ("augru", 9, "values", {"dtype": "float32", "num_layers": 2, "bidirectional": True}),
}


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")


def check(net: rnn.RNN, module: Any, steps: int, batch: int, monkeypatch: pytest.MonkeyPatch, **rows: Any) -> None:
    """Parts of one, of several and of all steps, each twice from one tape."""
    case = draw(net, steps, batch, **rows)
    if net.regularisers:
        case.training.update(seed=7, first_step=3)
    wanted = oracle(net, case)
    expected, last = rnn.reference(net, **case.training)(case.x, case.state, **rows)
    limit = LIMITS[net.dtype]
    for segment in (1, 3, steps - 1):
        monkeypatch.setattr(module, "_in_parts", lambda own, T, B, _, s=segment: plan_of(sizes(module, T, B), s))
        y, state, found = gradients(net, module, case)
        assert error(y, expected) < limit
        assert all(error(state[name], value) < limit for name, value in last.items())
        for name, value in wanted.items():
            assert error(found[name], value) < limit, (segment, name)
        x = cast(case.x if len(case.x) > 1 else case.x["x"], net.dtype)
        _, _, tape = module.forward_train(x, cast(case.state, net.dtype), **rows, **case.training)
        assert isinstance(tape, CudaSegmentedTape) and f"{steps} steps of {batch} rows" in repr(tape)
        given = cast(case.gy, net.dtype), cast(case.gstate, net.dtype)
        first, second = (named(*module.backward(tape, *given)) for _ in range(2))
        assert all(np.array_equal(first[name], second[name]) for name in first)
    monkeypatch.undo()


def sizes(module: Any, steps: int, batch: int) -> Any:
    return sizes_of(module.manifest, steps, batch, False, lambda way, own: 1000)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_gradients_in_parts_are_the_oracle_s(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, width, keep, options = CASES[name]
    net = network(cell, width, width, **options)
    module = emulator.compile(net, training=True, keep=keep)
    assert module.manifest["memory"]["keep"] == keep
    monkeypatch.setenv("FAKE_GPUS", "90")
    check(net, module, 8, 3, monkeypatch)
    monkeypatch.setenv("FAKE_GPUS", "90")
    check(net, module, 8, 3, monkeypatch, **flags(8, 3))
    monkeypatch.setenv("FAKE_GPUS", "90")
    check(net, module, 8, 3, monkeypatch, reset=np.random.default_rng(1).random((8, 3)) < 0.4)


@pytest.mark.slow
def test_budgets_of_a_module() -> None:
    net = network("gru", 7, 7)
    module = emulator.compile(net, training=True)
    case = draw(net, 40, 5)
    whole = module.plan_memory(40, 5)
    least = smallest(module.memory_sizes(40, 5))
    assert whole.again == 0 and least.bytes < whole.bytes
    module.max_bytes = least.bytes
    y, _, tape = module.forward_train(case.x["x"], case.state)
    assert isinstance(tape, CudaSegmentedTape) and module.max_bytes == least.bytes
    assert tape.nbytes < tape_bytes(module.manifest, 40, 5, False)
    none, zeros = (named(*module.backward(tape, gy, case.gstate)) for gy in (None, 0 * case.gy))
    assert all(np.array_equal(none[name], zeros[name]) for name in none)
    with pytest.raises(InputError, match=rf"no plan for 40 steps[\s\S]*at least {least.bytes}"):
        module.forward_train(case.x["x"], case.state, max_bytes=least.bytes - 1)
    assert not isinstance(module.forward_train(case.x["x"], max_bytes=whole.bytes)[2], CudaSegmentedTape)
    assert error(y, rnn.reference(net)(case.x["x"], case.state)[0]) < LIMITS["float32"]


def test_what_a_call_takes() -> None:
    """The tape's arrays are rounded up, the working memory is the hungrier program's, and results are apart."""
    manifest: dict[str, Any] = {
        "dtype": "bfloat16",
        "num_directions": 1,
        "num_layers": 1,
        "inputs": [{"shape": [5]}],
        "output": {"shape": [3]},
        "states": [{"shapes": [[3], [3]]}],
        "weights": [{"shape": [4, 3]}],
        "tape": [[10, 0], [6, 1], [8, 0, 1]],
        "memory": {"forward_flops_per_row": 10, "backward_flops_per_row": 20},
    }
    found = sizes_of(manifest, 100, 7, False, lambda way, own: {"forward_train": 50, "backward": 70}[way] * own)
    assert found.tape(20) == tape_bytes(manifest, 20, 7, False) == 1536 + 1024 and found.tape(0) == 0
    assert sizes_of(manifest, 100, 7, True, int).tape(20) == tape_bytes(manifest, 20, 7, True) == 1536 + 1024 + 1280
    assert found.work(20, False) == 1400 and found.work(20, True) == 1400 + 2 * 20 * 7 * 3 + 4 * 12
    assert found.states == 2 * 7 * 6 and found.results == 2 * 700 * 8 + 48 + 2 * found.states
    assert found.start > 0 and not found.whole
    both = {**manifest, "num_directions": 2}
    assert "compile it again" in sizes_of(both, 100, 7, False, int).whole
    both["parts"] = {"by": "visits", "whole_arrays": 1, "handed_bytes": 12}
    alone = sizes_of(both, 100, 7, False, lambda way, own: {"forward_train": 50, "backward": 70}[way] * own)
    assert alone.by_visit and not alone.whole and alone.tape(20) == 7168 + 1024  # what layers hand on: of all steps
    assert alone.work(20, True) - alone.work(20, False) == 2 * 20 * 7 * 6 + 4 * 12 + 8448


def test_times_are_those_that_were_measured() -> None:
    """forward_train and backward of LSTMs in bfloat16 on an H200: milliseconds of whole plans and of several parts."""
    lstm = {"forward_flops_per_row": 1_069_568, "backward_flops_per_row": 2_108_416}
    small: dict[str, Any] = {"dtype": "bfloat16", "num_layers": 1, "num_directions": 1, "memory": lstm}
    forward, backward, start = times(small, 32)
    assert 1000 * (forward + backward) / 1e3 == pytest.approx(2.85, rel=0.1)
    for again, parts, measured in ((594, 3, 3.696), (848, 7, 4.461), (987, 77, 11.90)):
        found = 1000 * (forward + backward) + again * forward + 3 * (parts - 1) * start
        assert found / 1e3 == pytest.approx(measured, rel=0.15)
    states = {**lstm, "backward_flops_per_row": 3_172_352, "again_flops_per_row": 1_063_936}
    _, longer, _ = times({**small, "memory": states}, 32)
    assert (forward + longer) / (forward + backward) == pytest.approx(3.2225 / 2.8494, rel=0.05)


def test_times_of_two_directions_are_those_that_were_measured() -> None:
    """2 layers of LSTM 256 in both directions, bfloat16, B = 32, T = 500, on an H200: all at once, in 2, 4, 8 parts."""
    facts = {"forward_flops_per_row": 5_000_000, "backward_flops_per_row": 10_000_000}
    both: dict[str, Any] = {"dtype": "bfloat16", "num_layers": 2, "num_directions": 2, "memory": facts}
    own = Sizes(500, 32, lambda steps: 0, lambda steps, again: 0, 0, 0, 0, *times(both, 32), by_visit=True, serial=2.0)
    for segment, measured in ((500, 5.006), (269, 8.631), (127, 9.499), (67, 11.164)):
        assert plan_of(own, segment).time == pytest.approx(measured / 5.006, rel=0.05)


def test_arrays_of_the_cpu_are_sent_again() -> None:
    piece = gpu_arrays.Piece(np.array([5, 0, 9]), "int64", 4096)
    assert fresh(piece).address == 0 and fresh(piece).array is piece.array
    assert clipped(piece, 2, 4).array.tolist() == [3, 0, 4]
    assert clipped(np.array([5, 0, 9]), 2, 4).tolist() == [3, 0, 4] and fresh("other") == "other"
    total, part = (gpu_arrays.Piece(np.ones((2, 2), "f4"), "float32") for _ in range(2))

    class Arrays:
        flat = staticmethod(lambda own: own.array.reshape(-1))

    add(Arrays(), [total], [part])
    assert (total.array == 2).all()

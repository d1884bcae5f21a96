"""Times on a GPU: what needs none here; graphs, replays and ceilings where there is one."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from tvm_rnn.bench.measure import gpu_graphs
from tvm_rnn.bench.measure.gpu_graphs import Captured, poison, rounds_us, same_bits, tensors

torch = pytest.importorskip("torch")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")


def test_tensors_are_found_in_whatever_holds_them() -> None:
    a, b, c = (torch.full((2,), float(i)) for i in range(3))
    found = list(tensors((a, {"h": b, "c": [c, None]})))
    assert [float(t[0]) for t in found] == [0.0, 1.0, 2.0]


def test_poison_reaches_floating_point_results_alone() -> None:
    y, count = torch.zeros(3), torch.zeros(3, dtype=torch.int64)
    poison((y, {"h": count}))
    assert y.isnan().all() and not count.any()


def test_bits_are_compared_nan_included() -> None:
    one = torch.tensor([1.0, math.nan])
    assert same_bits((one, {"h": one}), (one.clone(), {"h": one.clone()}))
    assert not same_bits([torch.tensor([0.0])], [torch.tensor([-0.0])])


def test_everyone_has_a_turn_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []

    def replay_us(captured: Captured, count: int) -> float:
        calls.append((captured.graph.name, count))
        return 400.0

    monkeypatch.setattr(gpu_graphs, "replay_us", replay_us)
    graphs = {name: Captured(SimpleNamespace(name=name), None) for name in "ab"}
    assert rounds_us(graphs, 2) == {"a": [400.0, 400.0], "b": [400.0, 400.0]}
    assert calls == [("a", 1), ("b", 1), *[("a", 3), ("b", 3)] * 2]  # 3 replays of 400 us make a round of 1 ms
    calls.clear()
    rounds_us({"c": Captured(SimpleNamespace(name="c"), None, calls=2)}, 1)
    assert calls == [("c", 1), ("c", 2)]  # of 2 calls each
    calls.clear()
    rounds_us({"d": Captured(SimpleNamespace(name="d"), None)}, 1, {"d": 100.0, "behind": 900.0})
    assert calls == [("d", 10)]  # by the reading that is known


@pytest.mark.gpu
@needs_gpu
def test_a_captured_function_is_replayed_into_the_same_tensors() -> None:
    x = torch.ones(1 << 20, device="cuda")
    captured = gpu_graphs.capture(lambda: x * 2)
    poison(captured.result)
    assert gpu_graphs.replay_us(captured, 3) > 0
    assert bool((captured.result == 2).all())
    assert gpu_graphs.memory_of(lambda: x * 2) >= 4 << 20
    several = gpu_graphs.capture(lambda: x.add_(1), 3)
    before = float(x[0])
    several.replay()
    assert float(x[0]) == before + 3 and gpu_graphs.replay_us(several, 1) > 0


@pytest.mark.gpu
@needs_gpu
def test_memory_that_is_handed_out_is_full_of_nan() -> None:
    for count in (64, 1 << 20):
        empty = gpu_graphs.run_poisoned(lambda count=count: torch.empty(count, device="cuda"), 4 * count)
        assert bool(empty.isnan().all())


@pytest.mark.gpu
@needs_gpu
def test_ceilings_are_plausible() -> None:
    found = gpu_graphs.ceilings()
    assert found["l2_tb_s"] > found["memory_tb_s"] > 0.1
    assert found["bfloat16_tflops"] > found["float32_tflops"] > 1

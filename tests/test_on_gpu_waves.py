"""Layers in a wave on a real GPU: one launch for all of them, through clusters, counters and polls, against the oracle;
with lengths and resets, in graphs and without, on several streams and from several threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from gpu_modules import gpu_module

import tvm_rnn as rnn
from tvm_rnn.bench.measure.gpu_graphs import capture, run_poisoned, same_bits
from tvm_rnn.oracle.tolerance import assert_close

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
REPEATS, BYTES = 20, 1 << 27
ORACLE_ROWS = 1300  # of all steps of a call together: four layers of 512 take it a second
# Cell, precision, inputs, units, layers, batch sizes to compile for: an exchange each.
NETWORKS: dict[str, tuple[str, str, int, int, int, list[int]]] = {
    "wave_cluster": ("lstm", "float16", 64, 256, 3, [16, 64]),
    "wave_counter": ("gru", "bfloat16", 512, 512, 4, [16]),
    "wave_polls": ("lstm", "bfloat16", 96, 512, 4, [64]),
    "wave_tf32": ("gru_reset_before", "tf32", 128, 256, 2, [16]),
    "wave_odd_cluster": ("lstm", "bfloat16", 37, 203, 3, [16]),
    "wave_odd_counter": ("gru", "float16", 97, 549, 4, [16]),
    "wave_odd_staged": ("lstm", "bfloat16", 95, 509, 4, [64]),
    "wave_long_input": ("gru", "float16", 2053, 29, 3, [16]),
    "wave_odd_tf32": ("elman", "tf32", 87, 133, 6, [16]),
    "wave_turns": ("lstm", "bfloat16", 96, 512, 4, [16, 64, 128]),
    "wave_float32": ("lstm", "float32", 512, 512, 4, [64]),
}


def plain(value: Any) -> np.ndarray:
    return np.asarray(value.double().cpu(), np.float64)


class Drawn:
    """A network, its module, and inputs of chance."""

    def __init__(self, name: str) -> None:
        cell, self.precision, self.inputs, hidden, layers, batches = NETWORKS[name]
        self.dtype = "float32" if self.precision == "tf32" else self.precision
        self.net = rnn.RNN(rnn.cells.get(cell), self.inputs, hidden, num_layers=layers, dtype=self.dtype).init(0)
        self.module = gpu_module(name, self.net, precision=self.precision, batch=batches)
        self.module.load_weights(self.net.weights)
        self.most = batches[-1]
        assert any("layers in a wave" in row["unit"] for row in self.module.manifest.templates)
        self.generator = torch.Generator(device="cuda").manual_seed(len(name))

    def normal(self, *shape: int) -> Any:
        return torch.randn(*shape, generator=self.generator, device="cuda").to(getattr(torch, self.dtype))

    def call(self, steps: int, batch: int) -> tuple[Any, dict[str, Any]]:
        state = self.module.init_state(batch).items()
        return self.normal(steps, batch, self.inputs), {name: self.normal(*value.shape) for name, value in state}

    def flags(self, steps: int, batch: int) -> tuple[dict[str, Any], ...]:
        lengths = torch.randint(0, steps + 1, (batch,), generator=self.generator, device="cuda")
        reset = torch.rand(steps, batch, generator=self.generator, device="cuda") < 0.2
        return {}, {"lengths": lengths}, {"reset": reset}, {"lengths": lengths, "reset": reset}

    def check(self, got: Any, x: Any, state: dict[str, Any], **flags: Any) -> None:
        """Against the oracle, which has as many rows as it has time for: rows are strangers to each other."""
        rows = np.linspace(0, x.shape[1] - 1, min(x.shape[1], ORACLE_ROWS // len(x))).round().astype(int)
        given, last = ({name: plain(v)[:, rows] for name, v in values.items()} for values in (state, got[1]))
        flagged = {name: value.cpu().numpy()[..., rows] for name, value in flags.items()}
        y, after = rnn.reference(self.net)(plain(x)[:, rows], given, **flagged)
        assert_close(plain(got[0])[:, rows], y, self.precision, len(x), "y")
        assert_close(last, after, self.precision, len(x), "state")


@pytest.mark.parametrize("name", [*list(NETWORKS)[:-1], pytest.param("wave_float32", marks=pytest.mark.slow)])
def test_a_wave_is_right_and_the_same_each_time(name: str) -> None:
    drawn = Drawn(name)
    long = ((19, drawn.most, True), (101, drawn.most - 3, False))
    for steps, batch, every in ((2, 13, True), (3, drawn.most, False), (5, 13, True), *long):
        x, state = drawn.call(steps, batch)
        for flags in drawn.flags(steps, batch)[:: 1 if every else 3]:

            def run(x: Any = x, state: Any = state, flags: Any = flags) -> Any:
                return drawn.module(x, state, **flags)

            first = run_poisoned(run, BYTES)
            drawn.check(first, x, state, **flags)
            for _ in range(REPEATS):
                assert same_bits(first, run_poisoned(run, BYTES)), (steps, batch, [*flags])
            captured = capture(run)
            assert same_bits(first, captured.again())


@pytest.mark.parametrize("name", ["wave_polls", "wave_cluster"])
def test_waves_on_several_streams(name: str) -> None:
    """Two modules and two streams, none waits for the other: each wave is placed whole, or not yet."""
    one, other = Drawn(name), Drawn("wave_counter")
    calls = [(drawn, *drawn.call(50, 16)) for drawn in (one, other, one, other)]
    wanted = [drawn.module(x, state) for drawn, x, state in calls]
    streams = [torch.cuda.Stream() for _ in calls]
    torch.cuda.synchronize()
    for _ in range(REPEATS):
        found = []
        for (drawn, x, state), stream in zip(calls, streams, strict=True):
            with torch.cuda.stream(stream):
                found.append(drawn.module(x, state))
        torch.cuda.synchronize()
        assert all(same_bits(got, first) for got, first in zip(found, wanted, strict=True))


def test_waves_from_two_threads() -> None:
    drawn = Drawn("wave_polls")
    calls = [drawn.call(40, 64) for _ in range(2)]
    wanted, wrong = [drawn.module(*call) for call in calls], list[int]()
    torch.cuda.synchronize()

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(REPEATS):
                got = drawn.module(*calls[number])
                torch.cuda.current_stream().synchronize()
                if not same_bits(got, wanted[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

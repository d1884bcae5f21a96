"""runtime_step: steps into arrays that exist compute what steps into new ones do, and nothing is allocated."""

from __future__ import annotations

import functools
import tracemalloc
from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.errors import InputError, WeightError
from tvm_rnn.runtime.runtime import Module

NETS = {
    "lstm": lambda: rnn.RNN(rnn.cells.lstm, 7, 33),
    "inputs": lambda: rnn.RNN(rnn.cells.augru, 5, 9, num_layers=2, dtype="float64"),
    "widths": lambda: rnn.RNN(rnn.cells.lstm, 4, num_layers=2, H=[6, 9]),
}


@functools.cache
def compiled(name: str) -> Module:
    return rnn.compile(NETS[name]().init(3))


@pytest.fixture(params=NETS)
def module(request: pytest.FixtureRequest) -> Module:
    return compiled(request.param)


def numbers(module: Module, steps: int, batch: int, seed: int = 0) -> list[Any]:
    """What each step reads: an array, or a tuple where the cell has several inputs."""
    rng, m = np.random.default_rng(seed), module.manifest
    whole = [rng.uniform(-1, 1, (steps, batch, *i.shape)).astype(m.dtype) for i in m.inputs]
    return [values[0] if len(values) == 1 else values for values in zip(*whole, strict=True)]


def arrays_of(module: Module, batch: int) -> tuple[np.ndarray, dict[str, Any]]:
    y, state = module.step(numbers(module, 1, batch)[0])
    return np.full_like(y, np.nan), {n: poisoned(v) for n, v in state.items()}


def poisoned(value: Any) -> Any:
    return [poisoned(v) for v in value] if isinstance(value, list) else np.full_like(value, np.nan)


def same(a: Any, b: Any) -> None:
    assert a.keys() == b.keys()
    for name in a:
        values = (a[name], b[name]) if isinstance(a[name], list) else ([a[name]], [b[name]])
        for left, right in zip(*values, strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.broad_after(2)
@pytest.mark.parametrize("batch", [1, 3])
def test_in_place_and_in_turns_are_what_steps_return(module: Module, batch: int) -> None:
    state, mine = module.init_state(batch), module.init_state(batch)
    y, _ = arrays_of(module, batch)
    turns = [arrays_of(module, batch) for _ in range(2)]
    before: Any = None
    for t, x in enumerate(numbers(module, 6, batch)):
        expected, state = module.step(x, state)
        pair = (y, mine)
        assert module.step(x, mine, out=pair) is pair
        np.testing.assert_array_equal(y, expected)
        same(mine, state)
        now = turns[t % 2]
        module.step(x, before, out=now)
        np.testing.assert_array_equal(now[0], expected)
        same(now[1], state)
        before = now[1]


def test_arrays_with_gaps_and_other_inputs_are_written_too(module: Module) -> None:
    x, given = numbers(module, 2, 3), module.init_state(3)
    wide = np.zeros((3, *module.manifest.output.shape, 2), module.manifest.dtype)
    y, (_, new) = wide[..., 0], arrays_of(module, 3)
    strided = x[0][:, ::1] if isinstance(x[0], np.ndarray) else x[0]
    for value in (x[0], x[1], np.asfortranarray(strided) if isinstance(strided, np.ndarray) else strided):
        expected, state = module.step(value, given)
        module.step(value, given, out=(y, new))
        np.testing.assert_array_equal(y, expected)
        same(new, state)
    assert not wide[..., 1].any()


@pytest.mark.broad
def test_other_arrays_weights_and_threads_are_noticed() -> None:
    module = rnn.compile(rnn.RNN(rnn.cells.lstm, 7, 33).init(3))
    (x,), state = numbers(module, 1, 1), module.init_state(1)
    y = np.empty((1, 33), np.float32)
    module.step(x, state, out=(y, state))
    old, state["h"] = state["h"], np.zeros((1, 1, 33), np.float32)
    kept = old.copy()
    expected = module.step(x, state)
    module.step(x, state, out=(y, state))
    np.testing.assert_array_equal(y, expected[0])
    same(state, expected[1])
    np.testing.assert_array_equal(old, kept)
    module.load_weights({name: 2 * value for name, value in module.weights.items()})
    module.threads = 2
    expected = module.step(x, state)
    module.step(x, state, out=(y, state))
    np.testing.assert_array_equal(y, expected[0])
    swapped = {"c": state["h"], "h": state["c"]}
    expected = module.step(x, swapped)
    module.step(x, swapped, out=(y, swapped))
    same(swapped, expected[1])


def test_no_rows_and_none_as_state() -> None:
    module = compiled("lstm")
    out = (np.empty((0, 33), np.float32), module.init_state(0))
    assert module.step(np.zeros((0, 7), np.float32), out=out) is out
    x, y, new = numbers(module, 1, 2)[0], *arrays_of(module, 2)
    for _ in range(2):
        module.step(x, out=(y, new))
        np.testing.assert_array_equal(y, module.step(x)[0])


def test_tensors_of_torch_are_written_and_moved_ones_noticed() -> None:
    torch = pytest.importorskip("torch")
    module = compiled("lstm")
    x = torch.from_numpy(numbers(module, 1, 2)[0])
    y, state = torch.empty(2, 33), {name: torch.from_numpy(v) for name, v in module.init_state(2).items()}
    for _ in range(3):
        expected = module.step(x, state)
        module.step(x, state, out=(y, state))
        np.testing.assert_array_equal(y.numpy(), expected[0].numpy())
        state["h"].set_(state["h"].clone())
        y.set_(torch.empty(2, 33))


def test_steps_allocate_nothing() -> None:
    module = compiled("lstm")
    x, state, y = np.ones((1, 7), np.float32), module.init_state(1), np.empty((1, 33), np.float32)
    out = (y, state)
    for _ in range(10):
        module.step(x, state, out=out)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    for _ in range(1000):
        module.step(x, state, out=out)
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert now - before < 1024 and peak - before < 4096  # Python's own frames and numbers; y alone would be 132 a step


WRONG = {
    "out is not what a step writes": lambda y, s: y,
    "does not fit": lambda y, s: (y[:, :-1], s),
    "float64 of shape": lambda y, s: (y.astype("f8"), s),
    "read-only": lambda y, s: (np.broadcast_to(y[:1, :1], y.shape), s),
    "the state of out is not the module's": lambda y, s: (y, {"h": s["h"]}),
    "state h of out does not fit": lambda y, s: (y, {**s, "h": s["h"][0]}),
    "arrays of out overlap": lambda y, s: (y, {"h": s["c"], "c": s["c"]}),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_cannot_be_written_to_is_an_error(text: str) -> None:
    module = compiled("lstm")
    y, state = np.empty((2, 33), np.float32), module.init_state(2)
    with pytest.raises(InputError, match=text):
        module.step(numbers(module, 1, 2)[0], state, out=WRONG[text](y, state))


def test_a_module_without_weights_is_an_error() -> None:
    module = rnn.compile(rnn.RNN(rnn.cells.lstm, 3, 4))
    with pytest.raises(WeightError, match="no weights"):
        module.step(np.zeros((1, 3), np.float32), out=(np.zeros((1, 4), np.float32), module.init_state(1)))

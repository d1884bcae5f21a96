"""Training in parts of the time: under every plan the oracle's gradients, a budget that is kept, what is refused.

In: small networks of every kind that can be cut in time, compiled once, under all plans of their tables.
"""

from __future__ import annotations

import functools
import gc
import shutil
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from derivatives import Case, draw, named, oracle
from networks import flags, network
from tiny_module import without_the_package

import tvm_rnn as rnn
from tvm_rnn import InputError
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.runtime import runtime_training
from tvm_rnn.runtime.runtime_memory import smallest, table
from tvm_rnn.runtime.runtime_training import TrainingModule

EVERY: dict[str, Any] = {"dropout": 0.4, "recurrent_dropout": 0.3, "zoneout": 0.2, "weight_drop": 0.35}
# A cell with two states, one with two phases, one with a matrix of state, steps that go back in time, both directions,
# masks, and a second input that all layers read.
NETS: dict[str, tuple[str, int, int, str, dict[str, Any]]] = {
    "lstm": ("lstm", 7, 7, "values", {"num_layers": 2}),
    "gru": ("gru", 7, 5, "states", {"dtype": "float64"}),
    "two phases": ("gru_reset_before", 3, 9, "states", {}),
    "matrix": ("mlstm", 5, 5, "values", {"dtype": "float64"}),
    "back": ("lstm", 4, 7, "states", {"reverse": True, "num_layers": 2}),
    "both": ("lstm", 5, 7, "values", {"bidirectional": True, "num_layers": 2}),
    "both twice": ("gru_reset_before", 3, 6, "states", {"bidirectional": True, "num_layers": 3, "dtype": "float64"}),
    "masks": ("gru", 7, 7, "values", {"num_layers": 2, **EVERY}),
    "both masks": ("lstm", 14, 7, "values", {"bidirectional": True, "num_layers": 2, "dtype": "float64", **EVERY}),
    "inputs": ("augru", 4, 5, "values", {"bidirectional": True, "num_layers": 2, "dtype": "float64"}),
}
FEW = ("lstm", "two phases", "both", "masks")


@functools.cache
def trained(name: str) -> tuple[rnn.RNN, TrainingModule]:
    cell, inputs, hidden, keep, options = NETS[name]
    net = network(cell, inputs, hidden, **options)
    module = rnn.compile(net, training=True, keep=keep)
    assert isinstance(module, TrainingModule) and module.manifest.memory["keep"] == keep
    return net, module


def gradients(module: TrainingModule, case: Case, budget: int | None) -> dict[str, Any]:
    _, _, tape = module.forward_train(case.x, case.state, max_bytes=budget, **case.rows, **case.training)
    return named(*module.backward(tape, case.gy, case.gstate))


def check(name: str, steps: int, batch: int, seed: int = 0, **rows: Any) -> None:
    net, module = trained(name)
    case = draw(net, steps, batch, seed, **rows)
    if net.regularisers:
        case.training.update(seed=seed + 5, first_step=11)
    expected, results = oracle(net, case), rnn.reference(net, **case.training)(case.x, case.state, **rows)
    plans = table(module.memory_sizes(steps, batch, "reset" in rows))
    for plan in plans:
        y, state, tape = module.forward_train(case.x, case.state, max_bytes=plan.bytes, **rows, **case.training)
        assert_close((y, state), results, net.dtype, max(steps, 1))
        assert_close(named(*module.backward(tape, case.gy, case.gstate)), expected, net.dtype, max(steps, 1))
    assert len(plans) > 2 or steps < 5


@pytest.mark.broad
@pytest.mark.parametrize("name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in NETS])
def test_gradients_under_every_plan_are_the_oracle_s(name: str) -> None:
    check(name, 23, 3)
    check(name, 1, 7)
    check(name, 29, 5, lengths=np.array([29, 0, 7, 15, 16]))
    check(name, 33, 4, 1, **flags(33, 4))
    check(name, 24, 33, 2, reset=np.random.default_rng(3).random((24, 33)) < 0.3)


@pytest.mark.broad
def test_a_tape_is_read_twice_and_by_many_threads() -> None:
    """The second backward makes the last part's values again as well."""
    net, module = trained("lstm")
    case = draw(net, 24, 3, **flags(24, 3))
    budget = smallest(module.memory_sizes(24, 3)).bytes
    expected, found = oracle(net, case), []
    _, _, tape = module.forward_train(case.x, case.state, max_bytes=budget, **case.rows)

    def work() -> None:
        found.append(named(*module.backward(tape, case.gy, case.gstate)))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 4
    for own in found:
        assert_close(own, expected, net.dtype, 24)
        for name, value in found[0].items():
            np.testing.assert_array_equal(own[name], value)


def test_no_gradient_of_y_is_one_of_zeros() -> None:
    net, module = trained("lstm")
    case = draw(net, 24, 3)
    budget = smallest(module.memory_sizes(24, 3)).bytes
    _, _, tape = module.forward_train(case.x, case.state, max_bytes=budget)
    none, zeros = (named(*module.backward(tape, gy, case.gstate)) for gy in (None, 0 * case.gy))
    assert all(np.array_equal(none[name], zeros[name]) for name in none) and any(g.any() for g in none.values())


def test_a_backward_that_was_interrupted_leaves_the_tape_right() -> None:
    """Ctrl-C while a part is written once more: what is on the tape then is no part's."""
    net, module = trained("lstm")
    case, half = draw(net, 24, 3), table(module.memory_sizes(24, 3))[1].bytes
    expected = gradients(module, case, half)
    _, _, tape = module.forward_train(case.x, case.state, max_bytes=half)
    assert isinstance(tape, runtime_training.SegmentedTape)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tape, "write", functools.partial(interrupted, tape))
        module.backward(tape, case.gy, case.gstate)
    found = named(*module.backward(tape, case.gy, case.gstate))
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def interrupted(tape: runtime_training.SegmentedTape, *_: object) -> None:
    tape.array[:] = np.nan
    raise KeyboardInterrupt


def test_chunks_of_time_with_carried_states_under_a_budget() -> None:
    """Truncated back-propagation, each chunk in parts of its own."""
    net, module = trained("lstm")
    case = draw(net, 30, 3)
    early, late = ({n: v[part] for n, v in case.x.items()} for part in (slice(0, 13), slice(13, 30)))
    first: Any
    second: Any
    _, middle, first = module.forward_train(early, case.state, max_bytes=smallest(module.memory_sizes(13, 3)).bytes)
    _, _, second = module.forward_train(late, middle, max_bytes=smallest(module.memory_sizes(17, 3)).bytes)
    assert first.nbytes > 0 and len(first.plan.spans) > 1 < len(second.plan.spans)
    gx_late, carried, g_late = module.backward(second, case.gy[13:], case.gstate)
    gx_early, gstate, g_early = module.backward(first, case.gy[:13], carried)
    found = named(np.concatenate([gx_early, gx_late]), gstate, {n: g_early[n] + g_late[n] for n in g_early})
    assert_close(found, oracle(net, case), net.dtype, 30)


def test_the_first_state_may_change_and_x_is_read_again() -> None:
    net, module = trained("lstm")
    case = draw(net, 24, 3)
    expected = oracle(net, case)
    budget = smallest(module.memory_sizes(24, 3)).bytes
    _, _, tape = module.forward_train(case.x, case.state, max_bytes=budget)
    for array in case.state.values():
        array[:] = 0
    assert_close(named(*module.backward(tape, case.gy, case.gstate)), expected, net.dtype, 24)


@pytest.mark.broad
@pytest.mark.parametrize("name", ["lstm", "both", pytest.param("matrix", marks=pytest.mark.slow)])
def test_the_predicted_peak_is_what_is_measured(name: str) -> None:
    """All that both calls take, with what they return, within 5 %."""
    net, module = trained(name)
    steps, batch = (300, 33) if name != "matrix" else (90, 33)
    case = draw(net, steps, batch)
    gradients(module, case, None)  # packs weights, which stay
    for plan in table(module.memory_sizes(steps, batch))[:-1]:
        module._local.training = None
        module.tape_memory = runtime_training.Spare().array
        gc.collect()
        tracemalloc.start()
        y, state, tape = module.forward_train(case.x, case.state, max_bytes=plan.bytes)
        found = module.backward(tape, case.gy, case.gstate)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak == pytest.approx(plan.peak_bytes, rel=0.05), plan
        assert tape.nbytes < plan.bytes
        del y, state, tape, found


def test_the_module_s_own_budget() -> None:
    net, module = trained("lstm")
    case = draw(net, 24, 3)
    whole = module.plan_memory(24, 3)
    assert whole.again == 0 and module.max_bytes is None
    module.max_bytes = whole.bytes // 2
    try:
        plan = module.plan_memory(24, 3)
        assert plan.again > 0 and plan.bytes <= whole.bytes // 2 and plan.time > 1
        assert_close(gradients(module, case, None), oracle(net, case), net.dtype, 24)
        _, _, tape = module.forward_train(case.x, case.state)
        assert isinstance(tape, runtime_training.SegmentedTape) and "24 steps of 3 rows" in repr(tape)
        _, _, other = module.forward_train(case.x, case.state, max_bytes=whole.bytes)
        assert not isinstance(other, runtime_training.SegmentedTape)
    finally:
        module.max_bytes = None
    with pytest.raises(InputError, match="max_bytes is wrong"):
        module.max_bytes = -1


def test_budgets_that_nothing_fits() -> None:
    net, module = trained("lstm")
    case = draw(net, 24, 3)
    least = smallest(module.memory_sizes(24, 3)).bytes
    with pytest.raises(InputError, match=rf"24 steps of 3 rows[\s\S]*at least {least}[\s\S]*fewer steps"):
        module.forward_train(case.x, case.state, max_bytes=least - 1)
    gradients(module, case, least)


@pytest.mark.broad
def test_two_directions_go_through_time_each_for_itself() -> None:
    net, module = trained("both")
    case = draw(net, 40, 3)
    whole = module.plan_memory(40, 3)
    least = smallest(module.memory_sizes(40, 3))
    assert least.by_visit and least.again == 40 and whole.again == 0 and "by layer and direction" in str(least)
    assert least.facts()["by_layer_and_direction"] and least.bytes < 0.6 * whole.bytes
    parts = [gradients(module, case, least.bytes) for _ in range(2)]
    for name, value in gradients(module, case, whole.bytes).items():
        np.testing.assert_array_equal(parts[0][name], parts[1][name])
        np.testing.assert_allclose(parts[0][name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_four_files_train_under_a_budget_without_the_package(tmp_path: Path) -> None:
    net, module = trained("lstm")
    module.export(tmp_path / "m.so")
    for name in ("runtime", "runtime_training", "runtime_memory"):
        shutil.copy(Path(runtime_training.__file__).parent / f"{name}.py", tmp_path)
    case = draw(net, 24, 3)
    np.savez(tmp_path / "in.npz", gy=case.gy, **case.x)
    budget = smallest(module.memory_sizes(24, 3)).bytes
    program = f"""
import numpy as np, runtime
given = np.load("in.npz")
module = runtime.load("m.so")
y, state, tape = module.forward_train(given["x"], max_bytes={budget})
np.savez("out.npz", **module.backward(tape, given["gy"])[2])
try:
    module.forward_train(given["x"], max_bytes=1)
except runtime.InputError as error:
    print(error)
"""
    assert "no plan for 24 steps" in without_the_package(program, tmp_path)
    _, _, tape = module.forward_train(case.x)
    expected = module.backward(tape, case.gy)[2]
    with np.load(tmp_path / "out.npz") as found:
        assert_close(dict(found), expected, net.dtype, 24)


@pytest.mark.slow
def test_a_hundred_thousand_steps() -> None:
    """In a fiftieth of the memory that one tape takes, by two ways of cutting time."""
    net = network("lstm", 8, 16, dtype="float64")
    module: Any = rnn.compile(net, training=True)
    steps = 100_000
    case = draw(net, steps, 1)
    whole = module.plan_memory(steps, 1)
    found = []
    for share in (50, 20):
        plan = module.plan_memory(steps, 1, whole.bytes // share)
        assert len(plan.spans) > share // 2 and plan.bytes <= whole.bytes // share
        found.append(gradients(module, case, plan.bytes))
    assert all(np.isfinite(value).all() for value in found[0].values())
    assert_close(found[0], found[1], "float64", steps)
    assert_close(found[0], gradients(module, case, None), "float64", steps)

"""runtime_training: tapes, kinds of arrays, files, chunks of time, and what is refused.

In: one compiled stack of two layers with two states. What its gradients are is in test_training.py.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import gc
import operator
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from derivatives import Case, draw, named, oracle
from networks import flags, network
from tiny_module import without_the_package

import tvm_rnn as rnn
from tvm_rnn import InputError, WeightError, cell, sigmoid, tanh
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.runtime import runtime_training
from tvm_rnn.runtime.runtime_training import TrainingModule

T, B, H = 6, 3, 4


@cell(states="h c")
def small(x: "H", h: "H", c: "H", u: "", *, W: "H H", R: "H H"):
    """Two states, two inputs, one product of each: little to compile."""
    c = sigmoid(c) + tanh(W @ x + R @ h) * u
    return tanh(c), c


NET = network(small, H, H, num_layers=2)


@pytest.fixture(scope="module")
def without_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bare") / "m.so"
    rnn.compile(rnn.RNN(small, H, H, num_layers=2), training=True).export(path)
    return path


@pytest.fixture(scope="module")
def module(without_weights: Path) -> TrainingModule:
    loaded = rnn.load(without_weights)
    assert isinstance(loaded, TrainingModule)
    loaded.load_weights(NET.weights)
    return loaded


def gradients(module: TrainingModule, case: Case) -> dict[str, Any]:
    _, _, tape = module.forward_train(case.x, case.state, **case.rows)
    return named(*module.backward(tape, case.gy, case.gstate))


@pytest.mark.broad
def test_forms_and_dtypes(module: TrainingModule) -> None:
    case = draw(NET, T, B)
    y, state, tape = module.forward_train(case.x, case.state)
    gx, gstate, gweights = module.backward(tape, case.gy, case.gstate)
    assert y.shape == (T, B, H) and list(gx) == ["x", "u"] and gx["u"].shape == (T, B)
    assert {n: g.shape for n, g in gstate.items()} == {n: s.shape for n, s in state.items()}
    assert {n: g.shape for n, g in gweights.items()} == NET.weight_shapes
    assert {a.dtype for a in (y, *gx.values(), *gstate.values(), *gweights.values())} == {np.dtype("f4")}
    assert_close((y, state), module(case.x, case.state), "float32", T)


@pytest.mark.broad
def test_with_the_batch_first(module: TrainingModule) -> None:
    case, own = draw(NET, T, B, **flags(T, B)), copy.copy(module)
    own.batch_first = True
    x = {name: value.swapaxes(0, 1) for name, value in case.x.items()}
    rows = {**case.rows, "reset": case.rows["reset"].T}
    y, _, tape = own.forward_train(x, case.state, **rows)
    gx, gstate, gweights = own.backward(tape, case.gy.swapaxes(0, 1), case.gstate)
    found = named({name: value.swapaxes(0, 1) for name, value in gx.items()}, gstate, gweights)
    assert_close(found, oracle(NET, case), "float32", T)
    assert_close(y.swapaxes(0, 1), module(case.x, case.state, **case.rows)[0], "float32", T)
    with pytest.raises(InputError, match=r"the gradient of y has the wrong shape[\s\S]*\[B, T, D\*H\]"):
        own.backward(tape, case.gy)
    with pytest.raises(InputError, match=r"u has the wrong shape[\s\S]*\[B, T, \.\.\.\]"):
        own.forward_train({**x, "u": x["u"][:, 1:]}, case.state)


@pytest.mark.broad
def test_a_tape_may_be_read_often_and_says_what_it_holds(module: TrainingModule) -> None:
    case = draw(NET, T, B, **flags(T, B))
    _, _, tape = module.forward_train(case.x, case.state, **case.rows)
    sizes = module.manifest.training.tape
    elements = sizes.fixed + B * sizes.per_row + T * B * sizes.per_sequence_row
    assert tape.nbytes == 4 * elements and repr(tape).startswith(f"<Tape of small, {T} steps of {B} rows")
    first, second = (named(*module.backward(tape, case.gy, case.gstate)) for _ in range(2))
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    assert_close(first, oracle(NET, case), "float32", T)


def test_a_large_tape_leaves_its_memory_to_the_next(
    without_weights: Path, module: TrainingModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_training, "SPARE_BYTES", 1)
    case, own = draw(NET, T, B), rnn.load(without_weights)
    own.load_weights(NET.weights)
    first, second = own.forward_train(case.x, case.state)[2], own.forward_train(case.x, case.state)[2]
    view, places = first.array[1:], [tape.array.ctypes.data for tape in (first, second)]
    assert places[0] != places[1]
    del first
    third = own.forward_train(case.x, case.state)[2]
    assert third.array.ctypes.data not in places  # a view of the first one's lives on
    view[:] = np.nan
    del view
    fourth = own.forward_train(case.x, case.state)[2]
    assert fourth.array.ctypes.data == places[0]
    expected = gradients(module, case)
    for tape in (second, third, fourth):
        for name, value in named(*own.backward(tape, case.gy, case.gstate)).items():
            np.testing.assert_array_equal(value, expected[name])
    del fourth
    one_step = own.forward_train({name: array[:1] for name, array in case.x.items()})[2]
    assert one_step.array.ctypes.data != places[0]  # of a size of its own


def test_arrays_that_change_after_the_call_do_not_matter(module: TrainingModule) -> None:
    case = draw(NET, T, B, **flags(T, B))
    expected = oracle(NET, case)
    _, _, tape = module.forward_train(case.x, case.state, **case.rows)
    for array in (*case.x.values(), *case.state.values(), *case.rows.values()):
        array[:] = 0
    assert_close(named(*module.backward(tape, case.gy, case.gstate)), expected, "float32", T)


def test_no_gradient_is_one_of_zeros(module: TrainingModule) -> None:
    case = draw(NET, T, B)
    _, _, tape = module.forward_train(case.x, case.state)
    assert all(not g.any() for g in named(*module.backward(tape)).values())
    zero = {n: np.zeros_like(v) for n, v in case.gstate.items()}
    for given, same in (((case.gy, None), (case.gy, zero)), ((None, case.gstate), (0 * case.gy, case.gstate))):
        first, second = (named(*module.backward(tape, *pair)) for pair in (given, same))
        for name in first:
            np.testing.assert_array_equal(first[name], second[name])


def test_chunks_of_time_with_carried_states(module: TrainingModule) -> None:
    """Truncated back-propagation that truncates nothing is back-propagation."""
    case = draw(NET, T, B)
    early, late = ({n: v[part] for n, v in case.x.items()} for part in (slice(0, 2), slice(2, T)))
    _, middle, first = module.forward_train(early, case.state)
    _, _, second = module.forward_train(late, middle)
    gx_late, carried, g_late = module.backward(second, case.gy[2:], case.gstate)
    gx_early, gstate, g_early = module.backward(first, case.gy[:2], carried)
    gx = {n: np.concatenate([gx_early[n], gx_late[n]]) for n in gx_early}
    found = named(gx, gstate, {n: g_early[n] + g_late[n] for n in g_early})
    assert_close(found, oracle(NET, case), "float32", T)


class Interrupted(Exception):
    """What a signal's handler raises."""


def test_a_signal_whose_handler_raises_ends_each_kind_of_call(module: TrainingModule, tmp_path: Path) -> None:
    """It comes as compiled code begins, which looks before its second tile; the module then gives what it gave."""
    module.export(tmp_path / "again.so")
    case, again = draw(NET, 400, B), rnn.load(tmp_path / "again.so")  # it has looked for no signal yet
    assert isinstance(again, TrainingModule)
    expected = module(case.x, case.state)[0], gradients(module, case)
    _, _, tape = module.forward_train(case.x, case.state)
    tape.module, tape.given = again, again._given
    calls = (
        ("sequence", lambda: again(case.x, case.state)),
        ("forward_train", lambda: again.forward_train(case.x, case.state)),
        ("backward", lambda: again.backward(tape, case.gy, case.gstate)),
    )
    for name, call in calls:
        done: list[bool] = []
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr(again, "_library", Signalling(again._library, name, done))
            patch.setattr(again, "_sequence", again._library.get_function("sequence"))
            call()
        assert done == [False]
        time.sleep(0.15)  # code looks once in 0.1 s
    np.testing.assert_array_equal(again(case.x, case.state)[0], expected[0])
    found = gradients(again, case)
    assert all(np.array_equal(found[name], expected[1][name]) for name in found)


class Signalling:
    """A library whose function `name` begins with a signal. done: whether it came to its end."""

    def __init__(self, library: Any, name: str, done: list[bool]) -> None:
        self.library, self.name, self.done = library, name, done

    def get_function(self, name: str) -> Any:
        function = self.library.get_function(name)
        return functools.partial(self.call, function) if name == self.name else function

    def call(self, function: Any, *arguments: Any) -> None:
        """Both without Python's loop between them, which would run the handler itself."""
        self.done.append(False)
        raise_signal = functools.partial(ctypes.CDLL(None)["raise"], signal.SIGUSR1)
        both = [raise_signal, functools.partial(function, *arguments)]
        before = signal.signal(signal.SIGUSR1, self.handler)
        try:
            list(map(operator.methodcaller("__call__"), both))
            self.done[-1] = True
        finally:
            signal.signal(signal.SIGUSR1, before)

    def handler(self, *_: object) -> None:
        raise Interrupted


@pytest.mark.parametrize(("steps", "batch"), [(0, B), (T, 0), (0, 0)])
def test_empty_sequences_and_batches(module: TrainingModule, steps: int, batch: int) -> None:
    case = draw(NET, steps, batch)
    y, state, tape = module.forward_train(case.x, case.state)
    gx, gstate, gweights = module.backward(tape, case.gy, case.gstate)
    assert y.shape == (steps, batch, H) and tape.nbytes == 0 and gx["x"].shape == (steps, batch, H)
    assert all((gstate[n] == case.gstate[n]).all() and (state[n] == case.state[n]).all() for n in state)
    assert all(not g.any() for g in gweights.values())


def test_threads_of_the_program(module: TrainingModule) -> None:
    """Each has a workspace of its own; one tape may be read by several at once."""
    case = draw(NET, 40, 5)
    expected, found = gradients(module, case), []
    _, _, shared = module.forward_train(case.x, case.state)

    def work() -> None:
        for _ in range(10):
            found.append(gradients(module, case))
            found.append(named(*module.backward(shared, case.gy, case.gstate)))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 80
    for own in found:
        for name, value in expected.items():
            np.testing.assert_array_equal(own[name], value)


def test_tensors_go_in_and_come_out(module: TrainingModule) -> None:
    torch = pytest.importorskip("torch")
    case = draw(NET, T, B)
    x = {n: torch.tensor(v, requires_grad=True) for n, v in case.x.items()}
    with torch.no_grad():  # else it says that results have no gradients of torch's
        y, state, tape = module.forward_train(x, {n: torch.tensor(v) for n, v in case.state.items()})
    found = module.backward(tape, torch.tensor(case.gy), {n: torch.tensor(v) for n, v in case.gstate.items()})
    everything = [y, *state.values(), *named(*found).values()]
    assert all(isinstance(v, torch.Tensor) for v in everything)
    expected = gradients(module, case)
    for name, value in named(*found).items():
        np.testing.assert_array_equal(value.numpy(), expected[name])


def test_a_file_keeps_what_training_needs(module: TrainingModule, tmp_path: Path) -> None:
    module.export(tmp_path / "m.so")
    case = draw(NET, T, B)
    again = rnn.load(tmp_path / "m.so")
    assert isinstance(again, TrainingModule)
    for name, value in gradients(module, case).items():
        np.testing.assert_array_equal(gradients(again, case)[name], value)


def test_three_files_train_without_the_package(module: TrainingModule, tmp_path: Path) -> None:
    module.export(tmp_path / "m.so")
    for name in ("runtime.py", "runtime_training.py"):
        shutil.copy(Path(runtime_training.__file__).parent / name, tmp_path)
    case = draw(NET, T, B)
    np.savez(tmp_path / "in.npz", gy=case.gy, **case.x)
    program = """
import numpy as np, runtime
given = np.load("in.npz")
module = runtime.load("m.so")
y, state, tape = module.forward_train((given["x"], given["u"]))
gx, gstate, gweights = module.backward(tape, given["gy"])
np.savez("out.npz", **gweights)
try:
    module.backward(None)
except runtime.InputError as error:
    print(error)
"""
    assert "this is not a tape" in without_the_package(program, tmp_path)
    _, _, tape = module.forward_train(case.x)
    expected = module.backward(tape, case.gy)[2]
    with np.load(tmp_path / "out.npz") as found:
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.slow
def test_four_files_train_with_regularisers(tmp_path: Path) -> None:
    net = network(small, H, H, num_layers=2, dropout=0.5, zoneout=0.2, weight_drop=0.3)
    module = rnn.compile(net, training=True)
    module.export(tmp_path / "m.so")
    for name in ("runtime.py", "runtime_training.py", "runtime_random.py"):
        shutil.copy(Path(runtime_training.__file__).parent / name, tmp_path)
    case = draw(net, T, B)
    np.savez(tmp_path / "in.npz", **case.x)
    program = """
import numpy as np, runtime
given = np.load("in.npz")
y, state, tape = runtime.load("m.so").forward_train((given["x"], given["u"]), seed=4)
np.save("y.npy", y)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env={"PATH": ""})
    assert done.returncode == 0, done.stderr
    expected = rnn.reference(net, seed=4)(case.x)[0]
    assert_close(np.load(tmp_path / "y.npy"), expected, "float32", T)


@pytest.mark.broad
def test_a_budget_from_the_beginning(tmp_path: Path) -> None:
    net = network("elman", 3, 5)
    free: Any = rnn.compile(net, training=True)
    whole = free.plan_memory(40, 2).bytes
    wrong: Any
    for wrong in (-1, 1.5, "40", None, True):
        for call in ((wrong, 2), (40, wrong)):
            with pytest.raises(InputError, match="plan_memory: "):
                free.plan_memory(*call)
    assert free.max_bytes is None
    made: Any = rnn.compile(net, training=True, max_bytes=whole // 2)
    made.export(tmp_path / "m.so")
    loaded: Any = rnn.load(tmp_path / "m.so")
    for module in (made, loaded):
        assert module.max_bytes == whole // 2 >= module.plan_memory(40, 2).bytes
    case = draw(net, 40, 2)
    tapes = [module.forward_train(case.x, case.state)[2] for module in (free, loaded)]
    assert tapes[1].nbytes < tapes[0].nbytes
    assert_close(gradients(loaded, case), oracle(net, case), "float32", 40)
    with pytest.raises(InputError, match=rf"no plan for 4000 steps of 30 rows[\s\S]*max_bytes={whole // 2}"):
        loaded.forward_train(draw(net, 4000, 30).x)
    loaded.max_bytes = None
    assert loaded.forward_train(case.x, case.state)[2].nbytes == tapes[0].nbytes


def test_weights_that_come_later(without_weights: Path) -> None:
    bare: Any = rnn.load(without_weights)
    case = draw(NET, T, B)
    with pytest.raises(WeightError, match=r"no weights[\s\S]*load_weights first"):
        bare.forward_train(case.x)
    bare.load_weights(NET.weights)
    assert_close(gradients(bare, case), oracle(NET, case), "float32", T)
    other = {name: value * 0.5 for name, value in NET.weights.items()}
    bare.load_weights(other)
    half = rnn.RNN(small, H, H, num_layers=2).load(other)
    assert_close(gradients(bare, case), oracle(half, case), "float32", T)


def test_refused(module: TrainingModule) -> None:
    case = draw(NET, T, B)
    _, _, tape = module.forward_train(case.x, case.state)
    h, c = case.gstate.values()
    wrong: list[tuple[str, tuple[Any, ...]]] = [
        (r"this is not a tape[\s\S]*got: +ndarray[\s\S]*call forward_train", (case.gy,)),
        (r"the gradient of y has the wrong shape[\s\S]*\(6, 3, 3\)[\s\S]*\(6, 3, 4\)", (tape, case.gy[..., :3])),
        (r"the gradient of y has the wrong dtype[\s\S]*float64[\s\S]*float32", (tape, case.gy.astype("f8"))),
        (r"the gradient of y is not an array", (tape, "text")),
        (r"gradient of the state is not the module's[\s\S]*\['h'\][\s\S]*\['h', 'c'\]", (tape, None, {"h": h})),
        (r"gradient of the state is not the module's[\s\S]*got: +tuple", (tape, None, (h, c))),
        (r"the gradient of state c has the wrong shape", (tape, None, {"h": h, "c": c[:1]})),
    ]
    for pattern, arguments in wrong:
        with pytest.raises(InputError, match=pattern):
            module.backward(*arguments)
    with pytest.raises(InputError, match=r"lengths does not fit x"):
        module.forward_train(case.x, lengths=[1])
    with pytest.raises(InputError, match=r"state h has the wrong shape|h has the wrong shape"):
        module.forward_train(case.x, {"h": h[:1], "c": c})


def test_a_tape_of_another_module_or_of_other_weights(module: TrainingModule, tmp_path: Path) -> None:
    module.export(tmp_path / "m.so")
    other = rnn.load(tmp_path / "m.so")
    case = draw(NET, T, B)
    _, _, tape = other.forward_train(case.x)
    with pytest.raises(InputError, match=r"the tape is another module's"):
        module.backward(tape, case.gy)
    other.load_weights(NET.weights)
    with pytest.raises(InputError, match=r"the tape was written with other weights[\s\S]*call forward_train"):
        other.backward(tape, case.gy)
    alive = weakref.ref(other)
    del other
    gc.collect()
    assert alive() is not None  # the tape needs it
    del tape
    gc.collect()
    assert alive() is None

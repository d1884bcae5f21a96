"""Module.generate: tokens are those of the oracle, calls go on where others ended, and wrong calls are told."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import ConfigError, InputError
from tvm_rnn.runtime import runtime, runtime_generate

V = 13


@rnn.cell(states="h", output="token")
def drawing(x: "1", h: "H", *, E: "V H", R: "H H", Q: "V H") -> Any:
    h = rnn.tanh(3.0 * E[x[0]] + R @ h)
    return h, rnn.sample(9.0 * Q @ h, keepdims=True)


@rnn.cell(states="h", output="y")
def plain(x: "I", u: "2", h: "H", *, W: "H I", U: "H 2", R: "H H", Q: "O H") -> Any:
    h = rnn.tanh(W @ x + U @ u + R @ h)
    return h, Q @ h


NET = rnn.RNN(drawing, 1, 6, V=V).init(seed=1)
PROMPT = np.array([[1, 2, 3], [4, 5, 12]])


@rnn.cell(output="y")
def means(x: "I Y Y", h: "I", *, a: "I") -> Any:
    h = 0.5 * h + a * rnn.mean(x, (-2, -1))
    return h, rnn.tanh(h)


@pytest.fixture(scope="module")
def module() -> rnn.Module:
    return rnn.compile(NET, generate=True)


@pytest.fixture(scope="module")
def reals() -> tuple[rnn.RNN, rnn.Module]:
    net = rnn.RNN(plain, 3, [5, 4], num_layers=2, O=3, dtype="float64").init(seed=2)
    return net, rnn.compile(net, generate=True)


@pytest.mark.broad
def test_tokens_are_those_of_the_oracle(module: rnn.Module) -> None:
    for stop in (None, 7):
        found = module.generate(40, prompt=PROMPT, seed=5, stop=stop)
        wanted = rnn.reference(NET).generate(40, prompt=PROMPT, seed=5, stop=stop)
        np.testing.assert_array_equal(found[0], wanted[0])
        np.testing.assert_array_equal(found[2], wanted[2])
        np.testing.assert_allclose(found[1]["h"], wanted[1]["h"], rtol=0, atol=1e-6)
        assert found[0].dtype == np.int32 and found[0].shape == (40, 3)


@pytest.mark.broad
def test_a_row_that_ended_stays_as_it_is(module: rnn.Module) -> None:
    tokens, state, lengths = module.generate(40, prompt=PROMPT, seed=5, stop=7)
    assert lengths.min() < 40
    for row, count in enumerate(lengths):
        assert 7 not in tokens[: count - 1, row] and (tokens[count:, row] == 7).all()
        shorter = module.generate(int(count), prompt=PROMPT, seed=5)
        np.testing.assert_array_equal(state["h"][:, row], shorter[1]["h"][:, row])
        np.testing.assert_array_equal(tokens[:count, row], shorter[0][:, row])


@pytest.mark.broad
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_call_goes_on_where_another_ended(module: rnn.Module, steps: int) -> None:
    whole, last, _ = module.generate(9, prompt=PROMPT, seed=2**63)
    first, state, _ = module.generate(steps, prompt=PROMPT, seed=2**63)
    start = len(PROMPT) + steps - 1
    second, state, _ = module.generate(9 - steps, state, prompt=first[-1:], seed=2**63, first_step=start)
    np.testing.assert_array_equal(np.concatenate([first, second]), whole)
    np.testing.assert_array_equal(state["h"], last["h"])


@pytest.mark.broad
def test_without_a_prompt_the_first_input_is_zero(module: rnn.Module) -> None:
    state = module.init_state(4)
    found = module.generate(3, state, seed=1)[0]
    np.testing.assert_array_equal(found, module.generate(3, prompt=np.zeros((1, 4), int), seed=1)[0])
    assert module.generate(3, seed=1)[0].shape == (3, 1)
    assert module.generate(3, prompt=np.zeros((1, 0), np.int64), seed=1)[0].shape == (3, 0)


@pytest.mark.broad
def test_numbers_and_further_inputs(reals: tuple[rnn.RNN, rnn.Module]) -> None:
    net, module = reals
    rng = np.random.default_rng(0)
    prompt, u = rng.normal(size=(2, 4, 3)), rng.normal(size=(7, 4, 2))
    found, wanted = (m.generate(6, prompt=prompt, u=u) for m in (module, rnn.reference(net)))
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-12)
    x, state = list(prompt), module.init_state(4)
    for t in range(7):  # the loop that it replaces
        y, state = module.step(x[t], state, u=u[t])
        x += [y] if t >= 1 else []
    np.testing.assert_allclose(found[0], x[2:], rtol=1e-12)
    for name, parts in state.items():
        for own, other in zip(found[1][name], parts, strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-12)


@pytest.mark.broad
def test_with_the_batch_first(module: rnn.Module, reals: tuple[rnn.RNN, rnn.Module]) -> None:
    rng = np.random.default_rng(0)
    prompt, u = rng.normal(size=(2, 4, 3)), rng.normal(size=(7, 4, 2))
    wanted = reals[1].generate(6, prompt=prompt, u=u)
    net, own = copy.copy(reals[0]), copy.copy(reals[1])
    net.batch_first = own.batch_first = True
    for made in (own, rnn.reference(net)):
        y, _, ends = made.generate(6, prompt=prompt.swapaxes(0, 1), u=u.swapaxes(0, 1))
        np.testing.assert_allclose(y.swapaxes(0, 1), wanted[0], rtol=1e-12)
        np.testing.assert_array_equal(ends, wanted[2])
    with pytest.raises(InputError, match=r"u has the wrong shape[\s\S]*\[B, T, \.\.\.\]"):
        own.generate(6, prompt=prompt.swapaxes(0, 1), u=u)
    tokens, first = np.array([[1, 2], [0, 1], [2, 2]]), copy.copy(module)
    first.batch_first = True
    found, expected = first.generate(5, prompt=tokens.T, seed=3)[0], module.generate(5, prompt=tokens, seed=3)[0]
    np.testing.assert_array_equal(found.T, expected)
    with pytest.raises(InputError, match=r"integers \[B, P\]"):
        first.generate(5, prompt=tokens[0], seed=3)


@pytest.mark.broad
def test_constants_are_given_once() -> None:
    @rnn.cell(constants="m")
    def reading(x: "H", m: "S H", h: "H", *, W: "H H") -> Any:
        return rnn.tanh(W @ x + rnn.softmax(m @ h) @ m + h)

    net = rnn.RNN(reading, 3, 3, S=2, dtype="float64").init(0)
    module, m = rnn.compile(net, generate=True), np.random.default_rng(0).normal(size=(4, 2, 3))
    prompt = np.random.default_rng(1).normal(size=(2, 4, 3))
    found, wanted = (own.generate(5, prompt=prompt, m=m) for own in (module, rnn.reference(net)))
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-12)
    np.testing.assert_allclose(found[1]["h"], wanted[1]["h"], rtol=1e-12)
    with pytest.raises(InputError, match="the constant m is not given"):
        module.generate(5, prompt=prompt)


@pytest.mark.broad
def test_frames_follow_frames() -> None:
    net = rnn.RNN(rnn.cells.conv_gru, 2, 2, Y=2, X=3, dtype="float64").init(seed=0)
    module, oracle = rnn.compile(net, generate=True), rnn.reference(net)
    prompt = np.random.default_rng(0).normal(size=(2, 1, 2, 2, 3))
    for given in (prompt, None):
        (found, *_), (wanted, *_) = (m.generate(3, prompt=given) for m in (module, oracle))
        assert found.shape == (3, 1, 2, 2, 3)
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(oracle.generate(1, prompt=prompt)[0][0], oracle(prompt)[0][-1])
    for m in (module, oracle):
        with pytest.raises(InputError, match=r"\[P, B, 2, 2, 3\]"):
            m.generate(3, prompt=prompt.reshape(2, 1, -1))


def test_numbers_may_stop_too() -> None:
    @rnn.cell
    def halving(h: "1", x: "1") -> Any:
        return 0.5 * x

    module = rnn.compile(rnn.RNN(halving, 1), generate=True)
    y, state, lengths = module.generate(6, prompt=np.float32([[[8], [4]]]), stop=1.0)
    assert lengths.tolist() == [3, 2] and y[..., 0].T.tolist() == [[4, 2, 1, 1, 1, 1], [2, 1, 1, 1, 1, 1]]
    assert state["h"].ravel().tolist() == [1.0, 1.0]


@pytest.mark.broad
def test_results_are_of_the_kind_of_the_prompt(module: rnn.Module) -> None:
    torch = pytest.importorskip("torch")
    tokens, state, lengths = module.generate(3, prompt=torch.from_numpy(PROMPT), seed=5)
    assert tokens.dtype == torch.int32 and isinstance(state["h"], torch.Tensor) and isinstance(lengths, torch.Tensor)


def calls(net: rnn.RNN, module: rnn.Module) -> list[tuple[Callable[[], object], str]]:
    return [
        (lambda: module(PROMPT[..., None].astype("f")), "draws random numbers"),
        (lambda: module.step(PROMPT[0, :, None].astype("f")), "draws random numbers"),
        (lambda: rnn.reference(net)(PROMPT[..., None]), "draws random numbers"),
    ]


@pytest.mark.broad
def test_a_call_without_a_seed_is_refused(module: rnn.Module) -> None:
    for call, reason in calls(NET, module):
        with pytest.raises(InputError, match=reason):
            call()


@pytest.mark.broad
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"seed": None}, "draws random numbers"),
        ({"seed": "1"}, "the seed is wrong"),
        ({"first_step": -1}, "first_step is wrong"),
        ({"steps": 0}, "number of steps"),
        ({"steps": True}, "number of steps"),
        ({"steps": 2.0}, "number of steps"),
        ({"prompt": PROMPT + 1}, "no such token"),
        ({"prompt": PROMPT - 2}, "no such token"),
        ({"prompt": PROMPT * 1.0}, "not one of tokens"),
        ({"prompt": PROMPT[0]}, "not one of tokens"),
        ({"prompt": PROMPT[:0]}, "not one of tokens"),
        ({"prompt": "text"}, "not one of tokens"),
        ({"stop": V}, "generate: stop"),
        ({"stop": "a"}, "generate: stop"),
        ({"stop": float("nan")}, "generate: stop"),
        ({"u": 1}, "inputs"),
        ({"state": {"h": np.zeros((1, 2, 6), "f")}}, "differ in rows"),
        ({"state": {"c": np.zeros((1, 3, 6), "f")}}, "not the "),
    ],
)
def test_wrong_calls_are_told(module: rnn.Module, arguments: dict[str, Any], reason: str) -> None:
    given = {"steps": 2, "prompt": PROMPT, "seed": 1} | arguments
    for call in (module.generate, rnn.reference(NET).generate):
        with pytest.raises(InputError, match=reason):
            call(**given)


@pytest.mark.broad
def test_wrong_numbers_are_told(reals: tuple[rnn.RNN, rnn.Module]) -> None:
    net, module = reals
    good = {"prompt": np.zeros((1, 2, 3)), "u": np.zeros((2, 2, 2))}
    assert module.generate(2, **good)[0].shape == (2, 2, 3)
    for wrong in (
        {"prompt": np.zeros((1, 2, 4))},
        {"prompt": np.zeros((0, 2, 3))},
        {"u": np.zeros((1, 2, 2))},
        {"stop": 1},
    ):
        for call in (module.generate, rnn.reference(net).generate):
            with pytest.raises(InputError):
                call(2, **(good | wrong))
    with pytest.raises(InputError, match="wrong dtype"):
        module.generate(2, **(good | {"prompt": np.zeros((1, 2, 3), "f")}))


def test_an_output_that_is_no_token_is_told() -> None:
    @rnn.cell(output="y")
    def odd(x: "1", h: "2", *, E: "4 2") -> Any:
        return E[x[0]], rnn.sum(h, keepdims=True) + 0.5

    net = rnn.RNN(odd, 1).init(seed=0)
    assert net.tokens == 4
    for call in (rnn.compile(net, generate=True).generate, rnn.reference(net).generate):
        with pytest.raises(InputError, match="no token"):
            call(3)


def test_what_cannot_generate_is_told() -> None:
    net = rnn.RNN(rnn.cells.elman, 3, 3).init(seed=0)
    with pytest.raises(InputError, match="cannot generate"):
        rnn.compile(net).generate(3)
    wrong = [
        (rnn.RNN(rnn.cells.elman, 3, 4), "next input"),
        (rnn.RNN(means, 4, Y=2), "outputs of 4, inputs of 4 x 2 x 2"),
        (rnn.RNN(rnn.cells.elman, 6, 3, bidirectional=True), "forward in time"),
        (rnn.RNN(rnn.cells.elman, 3, 3, reverse=True), "forward in time"),
    ]
    for other, reason in wrong:
        with pytest.raises(ConfigError, match=reason):
            rnn.compile(other, generate=True)
    with pytest.raises(ConfigError, match="need a seed"):
        rnn.compile(NET)
    with pytest.raises(ConfigError, match="need a seed"):
        rnn.compile(NET, "nvidia-h200")
    with pytest.raises(ConfigError, match="need a seed"):
        rnn.compile(NET, "nvidia-h200", generate=True, training=True)


@pytest.mark.broad
def test_a_file_generates_alone(module: rnn.Module, tmp_path: Path) -> None:
    """Beside copies of the runtime's files, without the package."""
    module.export(tmp_path / "m.so")
    for file in (runtime, runtime_generate):
        shutil.copy(str(file.__file__), tmp_path)
    shutil.copy(str(Path(str(runtime.__file__)).parent / "runtime_random.py"), tmp_path)
    text = "import sys; sys.modules.update(tvm_rnn=None, tvm=None, torch=None)\nimport runtime, numpy as np\n"
    text += f"m = runtime.load('m.so')\nprint(m.generate(5, prompt=np.array({PROMPT.tolist()}), seed=5)[0].tolist())"
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env={"PATH": ""})
    assert done.stdout.strip() == str(module.generate(5, prompt=PROMPT, seed=5)[0].tolist())

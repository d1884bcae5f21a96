"""NAME_generate of bundles: what it makes is what mod.generate makes, and wrong calls are told and write nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transducers
from programs import build, run
from test_engine import BAD_ARGUMENT, OK, Library

import tvm_rnn as rnn

FAILED = 4
HERE = Path(__file__).parent
V = 13
PROMPT = np.array([[1, 2, 3], [4, 5, 12]], np.int32)


@rnn.cell(states="h", output="token")
def drawing(x: "1", h: "H", *, E: "V H", R: "H H", Q: "V H") -> Any:
    h = rnn.tanh(3.0 * E[x[0]] + R @ h)
    return h, rnn.sample(9.0 * Q @ h, keepdims=True)


@rnn.cell(states="h", output="token")
def greedy(x: "1", h: "H", *, E: "V H", R: "H H", Q: "V H") -> Any:
    h = rnn.tanh(3.0 * E[x[0]] + R @ h)
    return h, rnn.argmax(Q @ h, keepdims=True)


@rnn.cell(states="h", output="y")
def plain(x: "I", ends: "2", h: "H", *, W: "H I", U: "H 2", R: "H H", Q: "O H") -> Any:
    h = rnn.tanh(W @ x + U @ ends + R @ h)
    return h, Q @ h


def bundled(net: rnn.RNN, folder: Path, **options: Any) -> tuple[rnn.Module, Path]:
    module = rnn.compile(net, generate=True, **options)
    module.export(bundle=folder)
    return module, folder


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[rnn.Module, Path]:
    return bundled(rnn.RNN(drawing, 1, 6, num_layers=1, V=V).init(seed=1), tmp_path_factory.mktemp("drawn") / "tok")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[rnn.Module, Path]:
    net = rnn.RNN(plain, 3, [5, 4], num_layers=2, O=3, dtype="float64").init(seed=2)
    return bundled(net, tmp_path_factory.mktemp("real") / "real")


def fresh(library: Library, B: int, shape: tuple[int, ...]) -> np.ndarray:
    h = np.zeros(shape, "f4")
    assert library.of("reserve", 1, B) == OK and library.of("init_state", B, h) == OK
    return h


def same(found: tuple[Any, ...], wanted: tuple[Any, ...]) -> None:
    for own, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(own, other)


@pytest.mark.parametrize("stop", [None, 7])
@pytest.mark.parametrize("steps", [1, 33, pytest.param(100, marks=pytest.mark.broad)])
def test_tokens_that_are_drawn(drawn: tuple[rnn.Module, Path], steps: int, stop: int | None) -> None:
    """Also over the ends of the parts in which the loop runs."""
    module, library = drawn[0], Library(drawn[1])
    y, lengths, end = np.empty((steps, 3), np.int32), np.empty(3, np.int64), np.int32([7])
    h = fresh(library, 3, (1, 3, 6))
    given = (PROMPT, 2, h, y, lengths, None if stop is None else end, 5, 0)
    assert library.of("generate", steps, 3, *given) == OK, library.error
    tokens, state, ends = module.generate(steps, prompt=PROMPT, seed=5, stop=stop)
    same((y, h, lengths), (tokens, state["h"], ends))


def test_calls_go_on_and_a_prompt_may_be_longer_than_a_part(drawn: tuple[rnn.Module, Path]) -> None:
    module, library = drawn[0], Library(drawn[1])
    prompt = np.random.default_rng(0).integers(0, V, (70, 2)).astype(np.int32)
    tokens, state, _ = module.generate(50, prompt=prompt, seed=2**64 - 1)
    h, first, more = fresh(library, 2, (1, 2, 6)), np.empty((20, 2), np.int32), np.empty((30, 2), np.int32)
    seed = np.uint64(2**64 - 1).astype(np.int64).item()
    assert library.of("generate", 20, 2, prompt, 70, h, first, None, None, seed, 0) == OK
    assert library.of("generate", 30, 2, first[-1:].copy(), 1, h, more, None, None, seed, 89) == OK
    same((first, more, h), (tokens[:20], tokens[20:], state["h"]))
    h, y = fresh(library, 1, (1, 1, 6)), np.empty((3, 1), np.int32)
    assert library.of("generate", 3, 1, None, 0, h, y, None, None, 1, 0) == OK
    same((y,), (module.generate(3, seed=1)[0],))
    assert library.of("generate", 3, 0, None, 0, None, None, None, None, 1, 0) == OK


@pytest.mark.broad
def test_numbers_layers_and_further_inputs(real: tuple[rnn.Module, Path]) -> None:
    module, library, rng = real[0], Library(real[1]), np.random.default_rng(0)
    prompt, more = rng.normal(size=(2, 4, 3)), rng.normal(size=(41, 4, 2))
    wanted, state, _ = module.generate(40, prompt=prompt, ends=more)
    h, y, lengths = np.zeros(4 * 9), np.empty((40, 4, 3)), np.empty(4, np.int64)
    given = (prompt, 2, more, h, y, lengths, None)
    assert library.of("generate", 40, 4, *given) == BAD_ARGUMENT and "reserve(1, 4) first" in library.error
    assert library.of("reserve", 1, 4) == OK and library.of("init_state", 4, h) == OK
    assert library.of("generate", 40, 4, *given) == OK, library.error
    same((y, h, lengths), (wanted, np.concatenate([part.ravel() for part in state["h"]]), [40] * 4))
    assert "const double *ends_, double *h" in (real[1] / "real.h").read_text()
    end = np.zeros(1)
    assert library.of("generate", 40, 4, *given[:-1], end) == BAD_ARGUMENT and "of outputs of 3" in library.error


@pytest.mark.broad
@pytest.mark.parametrize("stored", [None, "int8"])
def test_greedy_layers_and_sequences_beside_them(stored: str | None, tmp_path: Path) -> None:
    net = rnn.RNN(greedy, 1, 6, V=V).init(seed=4)
    module, path = bundled(net, tmp_path / "sure", weights=stored)
    library = Library(path)
    h, y = fresh(library, 3, (1, 3, 6)), np.empty((40, 3), np.int32)
    assert library.of("generate", 40, 3, PROMPT, 2, h, y, None, None) == OK, library.error
    tokens, state, _ = module.generate(40, prompt=PROMPT)
    same((y, h), (tokens, state["h"]))
    x, h, out = PROMPT[..., None].astype("f4"), fresh(library, 3, (1, 3, 6)), np.empty((2, 3, 1), "f4")
    assert library.of("sequence", 2, 3, x, h, out, None, None) == OK, library.error
    same((out,), (module(x)[0],))
    assert {"stream.c", "example.c", "generate.c"} <= {file.name for file in path.iterdir()}


@pytest.mark.broad
def test_numbers_may_stop_too(tmp_path: Path) -> None:
    @rnn.cell
    def halving(h: "1", x: "1") -> Any:
        return 0.5 * x

    _, path = bundled(rnn.RNN(halving, 1), tmp_path / "half")
    library = Library(path)
    h, y, lengths = fresh(library, 2, (1, 2, 1)), np.empty((50, 2), "f4"), np.empty(2, np.int64)
    given = (np.float32([8, 4]), 1, h, y, lengths, np.float32([2.0**-35]))
    assert library.of("generate", 50, 2, *given) == OK, library.error
    assert lengths.tolist() == [38, 37] and (y[37:] == 2.0**-35).all() and (y[:36, 0] > 2.0**-35).all()
    assert (h == 2.0**-35).all()


def test_an_output_that_is_no_token_is_told(tmp_path: Path) -> None:
    @rnn.cell(output="y")
    def odd(x: "1", h: "2", *, E: "4 2") -> Any:
        return E[x[0]], rnn.sum(h, keepdims=True) + 0.5

    library = Library(bundled(rnn.RNN(odd, 1).init(seed=0), tmp_path / "odd")[1])
    h, y = fresh(library, 1, (1, 1, 2)), np.empty((3, 1), np.int32)
    assert library.of("generate", 3, 1, None, 0, h, y, None, None) == FAILED and "no token" in library.error


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"steps": 0}, "0 steps"),
        ({"steps": (1 << 40) + 1}, "not 1 to 2^40"),
        ({"batch": 1 << 60}, "too large"),
        ({"batch": -1}, "-1 rows"),
        ({"batch": 4}, "reserve(1, 4) first"),
        ({"prompt_steps": -1}, "-1 steps of prompt"),
        ({"prompt": None}, "prompt is null"),
        ({"prompt": PROMPT + 1}, "no such token: 13, not 0 to 12"),
        ({"prompt": PROMPT - 2}, "no such token: -1"),
        ({"h": None}, "h is null"),
        ({"y": None}, "y is null"),
        ({"prompt": "y"}, "overlap"),
        ({"lengths": "h"}, "overlap"),
        ({"stop": np.int32([V])}, "stop is 13, not a token from 0 to 12"),
        ({"first_step": -1}, "first_step is -1"),
    ],
)
def test_wrong_calls_are_told_and_write_nothing(
    drawn: tuple[rnn.Module, Path], changed: dict[str, Any], reason: str
) -> None:
    library = Library(drawn[1])
    h, y = fresh(library, 3, (1, 3, 6)), np.full((6, 4), -1, np.int32)
    good = {"steps": 2, "batch": 3, "prompt": PROMPT, "prompt_steps": 2, "h": h, "y": y, "lengths": None}
    good |= {"stop": None, "seed": 1, "first_step": 0}
    given = good | {key: good[value] if isinstance(value, str) else value for key, value in changed.items()}
    if given["batch"] == 4:
        given |= {"prompt": np.zeros((2, 4), np.int32), "h": np.zeros((1, 4, 6), "f4")}
    assert library.of("generate", *given.values()) == BAD_ARGUMENT and reason in library.error, library.error
    assert (h == 0).all() and (y == -1).all()
    assert library("generate", None, *good.values()) == BAD_ARGUMENT and "no handle" in library.error


def test_a_network_that_draws_only_generates(drawn: tuple[rnn.Module, Path]) -> None:
    text = (drawn[1] / "tok.h").read_text()
    assert "tok_step" not in text and "tok_sequence" not in text and "tok_generate never does" in text
    assert {file.name for file in drawn[1].iterdir()} == {
        *("tok.h", "tok.so", "libtok.so", "README.md", "CMakeLists.txt", "generate.c"),
    }


def test_the_example_writes_what_the_module_does(drawn: tuple[rnn.Module, Path], tmp_path: Path) -> None:
    PROMPT.tofile(tmp_path / "p.raw")
    program = build(drawn[1] / "generate.c", tmp_path / "generate", drawn[1])
    words = ("--prompt", tmp_path / "p.raw", "--batch", 3, "--stop", 7, "--seed", 5, "--output", tmp_path / "y.raw", 40)
    printed = run(program, drawn[1], *words).decode()
    tokens, _, lengths = drawn[0].generate(40, prompt=PROMPT, seed=5, stop=7)
    rows = [[int(word) for word in line.split()] for line in printed.splitlines()]
    assert rows == [tokens[:length, row].tolist() for row, length in enumerate(lengths)]
    same((np.fromfile(tmp_path / "y.raw", np.int32),), (tokens.ravel(),))
    assert b"tok_generate: p50 " in run(program, drawn[1], "--time", 10, 40)
    assert b"does not hold [P][4][1] numbers" in run(program, drawn[1], *words[:2], "--batch", 4, 3, code=1)


@pytest.mark.broad
def test_the_example_of_numbers(real: tuple[rnn.Module, Path], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    prompt, more = rng.normal(size=(2, 2, 3)), rng.normal(size=(6, 2, 2))
    prompt.tofile(tmp_path / "p.raw")
    more.tofile(tmp_path / "u.raw")
    program = build(real[1] / "generate.c", tmp_path / "generate", real[1])
    words = ("--prompt", tmp_path / "p.raw", "--batch", 2, "--output", tmp_path / "y.raw")
    run(program, real[1], *words, 5, tmp_path / "u.raw")
    same((np.fromfile(tmp_path / "y.raw"),), (real[0].generate(5, prompt=prompt, ends=more)[0].ravel(),))
    assert b"does not fit" in run(program, real[1], *words, 6, tmp_path / "u.raw", code=1)


@pytest.mark.broad
def test_programs_are_given_constants(tmp_path: Path) -> None:
    """A file for each, as [batch][...], behind those of the inputs; of layers the array of all."""
    call, end = transducers.call(3), transducers.SIZES["V"] - 1
    module, bundle = bundled(transducers.network("float64"), tmp_path / "asr")
    files = [tmp_path / "frames.raw", tmp_path / "count.raw"]
    call["frames"].tofile(files[0])
    call["count"].tofile(files[1])
    program = build(bundle / "generate.c", tmp_path / "generate", bundle)
    words = ("--batch", 3, "--stop", end, 40, *files)
    printed = [[*map(int, line.split())] for line in run(program, bundle, *words).decode().splitlines()]
    labels, _, lengths = module.generate(40, stop=end, **call)
    assert printed == [labels[:length, row].tolist() for row, length in enumerate(lengths)]
    assert b"not a file of 60 double numbers" in run(program, bundle, "--batch", 2, 40, *files, code=1)

    x, held = np.array([[[2.0]], [[0.0]], [[3.0]]]), {"frames": call["frames"][1:2], "count": call["count"][1:2]}
    expected = module(x, **held)[0]
    held["frames"].tofile(files[0])
    held["count"].tofile(files[1])
    x.tofile(tmp_path / "x.raw")
    program = build(bundle / "stream.c", tmp_path / "stream", bundle)
    same((np.frombuffer(run(program, bundle, *files, given=x.tobytes())),), (expected.ravel(),))
    for source in ("example.c", "example.cpp"):
        program = build(bundle / source, tmp_path / source.replace(".", "_"), bundle)
        printed = run(program, bundle, tmp_path / "x.raw", *files).decode().splitlines()[-1]
        assert float(printed) == expected[-1, 0, 0]
    readme = (bundle / "README.md").read_text()
    assert "./example_c --time 1000 x.raw frames.raw count_.raw\n" in readme


def test_a_call_takes_no_memory_and_no_lock(drawn: tuple[rnn.Module, Path], tmp_path: Path) -> None:
    """realtime.c counts what is called in fresh threads."""
    program = build(
        HERE / "realtime.c", tmp_path / "realtime", drawn[1], "-lpthread", "-rdynamic", "-D_GNU_SOURCE", "-DGENERATES"
    )
    assert run(program, drawn[1]).decode().split("\n")[:2] == ["steps: 0", "control: 1"]

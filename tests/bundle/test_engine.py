"""The engine behind a bundle's library: results, sizes and files that are wrong, and calls that take no memory."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import build, run, tiny_bundle
from tiny_module import H, Tiny

import tvm_rnn as rnn
from tvm_rnn.runtime import runtime

OK, BAD_ARGUMENT, BAD_FILE = 0, 1, 2
TINY = Tiny()
HERE = Path(__file__).parent


def passed(value: Any) -> Any:
    """An argument as C takes it."""
    if isinstance(value, np.ndarray):
        return value.ctypes.data_as(ctypes.c_void_p)
    return ctypes.c_int64(value) if isinstance(value, int) else value


class Library:
    """A bundle's library, as ctypes has it. Arrays are numpy's; numbers are 64 bits."""

    def __init__(self, bundle: Path, path: Path | None = None) -> None:
        self.name = bundle.name
        self.functions = ctypes.CDLL(str(bundle / f"lib{self.name}.so"))
        self.handle = ctypes.c_void_p()
        self.status = self("open", None if path is None else str(path).encode(), ctypes.byref(self.handle))

    def __call__(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.functions, f"{self.name}_{name}")(*map(passed, arguments)))

    @property
    def error(self) -> str:
        function = getattr(self.functions, f"{self.name}_error")
        function.restype = ctypes.c_char_p
        return str(function().decode())

    def of(self, name: str, *arguments: Any) -> int:
        return self(name, self.handle, *arguments)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("engine"), TINY)


@pytest.fixture
def tiny(bundle: Path) -> Iterator[Library]:
    library = Library(bundle)
    assert library.status == OK, library.error
    yield library
    library.functions.tiny_close(library.handle)


def arrays(T: int = 6, B: int = 3, tiny: Tiny = TINY) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(T)
    rows, x = tiny.layers * tiny.directions, rng.uniform(-1, 1, (T, B, H)).astype(tiny.dtype)
    return x, np.zeros((rows, B, H), tiny.dtype), np.empty((T, B, tiny.directions * H), tiny.dtype)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("form", [(1, 1, "float32"), (2, 1, "float64"), (1, 2, "float32")], ids=str)
def test_sequences_are_the_modules(form: tuple[int, int, str], tmp_path: Path) -> None:
    own = Tiny(*form)
    library = Library(tiny_bundle(tmp_path, own))
    x, h, y = arrays(tiny=own)
    assert library.of("init_state", 3, h) == OK and (h == 0.5).all()
    assert library.of("sequence", 6, 3, x, h, y, None, None) == OK, library.error
    expected, last = own.expected(x)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(h, last)
    lengths, reset = np.array([6, 0, 4]), np.random.default_rng(0).integers(0, 2, (6, 3)).astype(np.uint8)
    library.of("init_state", 3, h)
    assert library.of("sequence", 6, 3, x, h, y, lengths, reset) == OK, library.error
    expected, last = own.expected(x, lengths=lengths, reset=reset)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(h, last)
    assert hasattr(library.functions, "tiny_step") == (own.directions == 1)


def test_several_inputs_and_states_of_layers_that_differ(tmp_path: Path) -> None:
    own = Tiny(2, extra=True)
    bundle = tiny_bundle(tmp_path, own)
    library, module = Library(bundle), runtime.load(bundle / "tiny.so")
    x, h, y = arrays(tiny=own)
    a, m = np.random.default_rng(1).normal(size=(6, 3)).astype("f4"), np.empty(3 * (2 + 3), "f4")
    assert library.of("init_state", 3, h, m) == OK and (m == 0).all()
    assert library.of("sequence", 6, 3, x, a, h, m, y, None, None) == OK, library.error
    expected, state = module((x, a))
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(m, np.concatenate([part.ravel() for part in state["m"]]))
    text = (bundle / "tiny.h").read_text()
    assert "const float *x, const float *a, float *h, float *m, float *y" in text
    assert "[1][batch][2] then [1][batch][3]" in text and "#define TINY_M_PER_ROW 5" in text


def test_a_constant_is_given_by_the_caller(tmp_path: Path) -> None:
    """The tiny cell, whose state counts as one here."""
    held = {"states": [{"name": "h", "shapes": [[H]], "initial": 0.5, "constant": True}]}
    module = runtime.load(TINY.write(tmp_path / "tiny.so", **held))
    module.export(bundle=tmp_path / "tiny")
    library, (x, h, y) = Library(tmp_path / "tiny"), arrays()
    assert library.of("init_state", 3, h) == OK and np.isnan(h).all()
    h[:] = given = np.random.default_rng(0).normal(size=h.shape).astype(h.dtype)
    assert library.of("sequence", 6, 3, x, h, y, None, None) == OK, library.error
    np.testing.assert_array_equal(y, module(x, h=given[0])[0])
    assert library.of("sequence", 6, 3, x, h, y, None, np.zeros((6, 3), np.uint8)) == BAD_ARGUMENT
    assert "reset does not go with the constant h" in library.error
    text = (tmp_path / "tiny" / "tiny.h").read_text()
    assert "read: a constant" in text and "h = NaN, until you write it" in text


def test_steps_are_the_sequence(tiny: Library) -> None:
    x, h, y = arrays(5, 1)
    expected, last = TINY.expected(x)
    tiny.of("init_state", 1, h)
    for t in range(5):
        assert tiny.of("step", 1, x[t].copy(), h, y[t]) == OK, tiny.error
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(h, last)


def test_a_step_takes_no_memory_for_more_rows(tiny: Library) -> None:
    x, h, y = arrays(1, 3)
    assert tiny.of("step", 3, x, h, y) == BAD_ARGUMENT and "reserve(1, 3) first" in tiny.error
    assert tiny.of("reserve", 1, 3) == OK
    assert tiny.of("step", 3, x, h, y) == OK


def test_handles_that_share(tiny: Library, bundle: Path) -> None:
    other = ctypes.c_void_p()
    assert tiny.of("set_threads", 2) == OK and tiny.of("share", ctypes.byref(other)) == OK
    x, h, y = arrays()
    assert tiny("sequence", other, 6, 3, x, h, y, None, None) == OK
    np.testing.assert_array_equal(y, TINY.expected(x, np.zeros_like(h))[0])
    tiny.functions.tiny_close(other)
    assert tiny.of("sequence", 6, 3, x, h, y, None, None) == OK


def test_nothing_to_do(tiny: Library) -> None:
    x, h, y = arrays()
    before = h.copy()
    for T, B in ((0, 3), (6, 0), (0, 0)):
        assert tiny.of("sequence", T, B, x, h, y, None, None) == OK
    assert tiny.of("step", 0, None, None, None) == OK and tiny.of("init_state", 0, None) == OK
    np.testing.assert_array_equal(h, before)


BIG = 1 << 62


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("sequence", (-1, 3, "x", "h", "y", None, None), "-1 steps"),
        ("sequence", (6, -3, "x", "h", "y", None, None), "-3 rows"),
        ("sequence", (BIG, 3, "x", "h", "y", None, None), "x would be too large"),
        ("sequence", (BIG, BIG, "x", "h", "y", None, None), "x would be too large"),
        ("sequence", (0, BIG, "x", "h", "y", None, None), "h would be too large"),
        ("sequence", (6, 3, None, "h", "y", None, None), "x is null"),
        ("sequence", (6, 3, "x", None, "y", None, None), "h is null"),
        ("sequence", (6, 3, "x", "h", None, None, None), "y is null"),
        ("sequence", (6, 3, "x", "h", "h", None, None), "h and y overlap"),
        ("sequence", (6, 3, "x", "h", "x", None, None), "x and y overlap"),
        ("sequence", (6, 3, "odd", "h", "y", None, None), "x is not aligned"),
        ("sequence", (6, 3, "x", "h", "y", "long", None), "lengths: 7 for row 1, not 0 to 6"),
        ("sequence", (6, 3, "x", "h", "y", "negative", None), "lengths: -1 for row 2"),
        ("step", (-1, "x", "h", "y"), "-1 rows"),
        ("step", (BIG, "x", "h", "y"), "too large"),
        ("step", (1, "x", "h", "h"), "overlap"),
        ("reserve", (0, 1), "at least 1"),
        ("reserve", (1, -1), "at least 1"),
        ("reserve", (BIG, 1), "too many"),
        ("reserve", (1 << 31, 1 << 31), "too many"),
        ("init_state", (-1, "h"), "-1 rows"),
        ("init_state", (BIG, "h"), "h would be too large"),
        ("init_state", (3, None), "h is null"),
        ("init_state", (3, "odd"), "h is not aligned"),
        ("sequence", (6, 3, "x", "h", "whole", "whole", None), "y and lengths overlap"),
        ("sequence", (6, 3, "x", "whole", "y", "whole", None), "h and lengths overlap"),
        ("sequence", (6, 3, "x", "h", "whole", None, "whole"), "y and reset overlap"),
        ("sequence", (6, 3, "x", "whole", "y", None, "whole"), "h and reset overlap"),
        ("sequence", (6, 3, "x", "h", "y", "odd", None), "lengths is not aligned"),
        ("set_threads", (-1,), "not 0 to 256"),
        ("set_threads", (257,), "not 0 to 256"),
        ("share", (None,), "no place"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_is_written(
    tiny: Library, name: str, arguments: tuple[Any, ...], text: str
) -> None:
    x, h, y = arrays()
    raw = np.zeros(x.nbytes + 1, np.uint8)
    known = {"x": x, "h": h, "y": y, "odd": raw[1:]}
    known |= {"long": np.array([6, 7, 0]), "negative": np.array([6, 0, -1]), "whole": np.zeros(len(raw) // 8, int)}
    before = [array.copy() for array in (x, h, y)]
    given = [known[a] if isinstance(a, str) else a for a in arguments]
    assert tiny.of(name, *given) == BAD_ARGUMENT and text in tiny.error, tiny.error
    for array, was in zip((x, h, y), before, strict=True):
        np.testing.assert_array_equal(array, was)


def test_no_handle(tiny: Library) -> None:
    x, h, y = arrays()
    calls = [("sequence", 6, 3, x, h, y, None, None), ("step", 1, x, h, y), ("reserve", 1, 1), ("init_state", 1, h)]
    for name, *arguments in [*calls, ("set_threads", 1)]:
        assert tiny(name, None, *arguments) == BAD_ARGUMENT and "no handle" in tiny.error
    tiny.functions.tiny_close(None)
    assert tiny("open", None, None) == BAD_ARGUMENT


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_files_that_are_not_the_module(tmp_path: Path, bundle: Path) -> None:
    data = (bundle / "tiny.so").read_bytes()
    other = Tiny(layers=2).write(tmp_path / "two.so").read_bytes()
    footer = len(data) - runtime.FOOTER.size
    start = runtime.FOOTER.unpack(data[footer:])[4]
    cases = {
        "is not a complete tvm_rnn module": [b"", b"x", data[:100], data[:-1], b"\x7fELF" + bytes(100)],
        "its checksum is wrong": [changed(data, 200), changed(data, start + 20), changed(data, footer - 5)],
        "another module": [other],
        "its parts do not fill it": [changed(data, at) for at in range(footer + 24, footer + 48, 8)],
        "container version": [changed(data, footer + 8)],
    }
    for text, files in cases.items():
        for file in files:
            (tmp_path / "m.so").write_bytes(file)
            library = Library(bundle, tmp_path / "m.so")
            assert library.status == BAD_FILE and not library.handle.value, text
            assert text in library.error, library.error
    os.mkfifo(tmp_path / "pipe")  # nobody writes into it
    for path in (tmp_path / "none.so", tmp_path, Path("a" * 5000), tmp_path / "pipe", Path("/dev/zero")):
        assert Library(bundle, path).status == BAD_FILE


def test_the_code_that_runs_is_the_code_that_was_checked(tmp_path: Path, bundle: Path) -> None:
    """dlopen finds what is open by its path, whatever lies there by now."""
    path = Tiny(layers=2).write(tmp_path / "m.so")
    older = ctypes.CDLL(str(path))
    os.replace(TINY.write(tmp_path / "new.so"), path)
    library = Library(bundle, path)
    assert library.status == OK, library.error
    x, h, y = arrays()
    library.of("init_state", 3, h)
    assert library.of("sequence", 6, 3, x, h, y, None, None) == OK
    np.testing.assert_array_equal(y, TINY.expected(x)[0])
    assert older


def test_a_file_that_is_replaced_while_it_is_opened(tmp_path: Path, bundle: Path) -> None:
    """replaced.c renames another module over the path, between the check of the file and dlopen."""
    shutil.copy(bundle / "tiny.so", tmp_path / "m.so")
    other = Tiny(layers=2).write(tmp_path / "other.so")
    program = build(HERE / "replaced.c", tmp_path / "replaced", bundle, "-rdynamic", "-D_GNU_SOURCE", "-ldl")
    y = run(program, bundle, tmp_path / "m.so", other).decode()
    assert not other.exists()
    np.testing.assert_allclose(np.array(y.split(), "f4"), TINY.expected(np.ones((1, 1, H), "f4"))[0].ravel())


def test_sizes_of_a_file_that_lie_with_a_checksum_that_fits(tmp_path: Path, bundle: Path) -> None:
    import zlib

    data = (bundle / "tiny.so").read_bytes()
    body, footer = data[: -runtime.FOOTER.size], list(runtime.FOOTER.unpack(data[-runtime.FOOTER.size :]))
    for cut in (1, 10, footer[6] + 3, len(body) - footer[4], len(body) - footer[3]):
        short = body[:-cut]
        row = [*footer]
        row[2] = zlib.crc32(short)
        row[6] = max(0, row[6] - cut)  # the manifest, then the weights become shorter
        row[5] = len(short) - row[4] - row[6]
        if row[5] < 0:
            continue
        path = tmp_path / f"{cut}.so"  # not one name for all: code that is loaded may not change
        path.write_bytes(short + runtime.FOOTER.pack(*row))
        library = Library(bundle, path)
        assert library.status in (OK, BAD_FILE)
        assert library.status == OK or "damaged" in library.error or "other weights" in library.error


def test_other_weights_of_the_same_network(tmp_path: Path, bundle: Path) -> None:
    weights = TINY.weights(seed=5)
    library = Library(bundle, TINY.write(tmp_path / "other.so", weights))
    assert library.status == OK, library.error
    x, h, y = arrays()
    library.of("init_state", 3, h)
    assert library.of("sequence", 6, 3, x, h, y, None, None) == OK
    np.testing.assert_array_equal(y, TINY.expected(x, weights=weights)[0])
    assert Library(bundle, TINY.write(tmp_path / "none.so", {})).status == BAD_FILE


def test_another_machine(tmp_path: Path) -> None:
    target = {**TINY.manifest()["target"], "features": ["avx9000"]}
    runtime_manifest = TINY.write(tmp_path / "m.so", target=target)
    module = runtime._open_container(runtime_manifest)
    holder = type("Module", (), {"export": lambda self, path: shutil.copy(runtime_manifest, path)})()
    holder.manifest, holder.path = module[2], str(runtime_manifest)
    from tvm_rnn.bundle import write_bundle

    write_bundle(holder, tmp_path / "far")
    library = Library(tmp_path / "far")
    assert library.status == BAD_FILE and "avx9000" in library.error


@pytest.fixture(scope="module")
def lstm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    net = rnn.RNN(rnn.cells.lstm, 8, 24, num_layers=2).init(seed=0)
    path = tmp_path_factory.mktemp("lstm") / "lstm"
    rnn.compile(net, batch=[1, 4]).export(bundle=path)
    return path


@pytest.mark.broad
def test_steps_of_a_real_time_thread(lstm: Path, tmp_path: Path) -> None:
    """realtime.c counts what is called in fresh threads: memory, locks, threads and whatever asks the system."""
    program = build(HERE / "realtime.c", tmp_path / "realtime", lstm, "-lpthread", "-rdynamic", "-D_GNU_SOURCE")
    assert run(program, lstm).decode().split("\n")[:2] == ["steps: 0", "control: 1"]


@pytest.mark.broad
def test_a_fork_and_two_threads_at_once(lstm: Path, tmp_path: Path) -> None:
    program = build(HERE / "threads.c", tmp_path / "threads", lstm, "-lpthread", "-D_GNU_SOURCE")
    assert run(program, lstm).decode() == "same\n"


@pytest.mark.broad
def test_a_library_knows_where_its_module_is(lstm: Path, tmp_path: Path) -> None:
    program = build(lstm / "example.c", tmp_path / "example", lstm)
    np.ones((3, 8), "f4").tofile(tmp_path / "x.raw")
    moved = tmp_path / "elsewhere"
    shutil.copytree(lstm, moved)
    assert b"lstm" in run(program, moved, tmp_path / "x.raw")
    os.unlink(moved / "lstm.so")
    assert b"cannot open" in run(program, moved, tmp_path / "x.raw", code=1)

"""Folders of plain C: compiled as strictly as can be, every cell is the oracle; fixed point errs by what it says.

What is not installed (clang, the compiler of bare ARM, QEMU) is skipped and named.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import arguments, constants, network
from plain_programs import HOST, STRICT, built, results

import tvm_rnn as rnn
from tvm_rnn import cells
from tvm_rnn.bench.peers import cortex_m
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.plain_c.fixed_point import quantised

STEPS = 20


def drawn(net: rnn.RNN, batch: int = 2) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs, and constants of zeros: what a stream begins with."""
    return arguments(net, STEPS, batch)[0], {n: np.zeros_like(v) for n, v in constants(net, batch).items()}


def in_fixed_point(net: rnn.RNN, folder: Path, bits: int) -> tuple[dict[str, np.ndarray], np.ndarray, float, float]:
    """A folder; its inputs as integers; y in float64; what y's integers are multiplied with; the error that is said."""
    x, held = drawn(net)
    said = rnn.write_c(net, folder, bits=bits, samples={**x, **held})
    scale = dict(re.findall(r"_(\w+)_EXPONENT = (-?\d+)", (folder / f"{folder.name}.h").read_text()))
    given = dict(zip(x, list(scale.values())[:-1], strict=True))
    integers = {n: quantised(value, int(given[n])).astype("i2") for n, value in x.items()}
    return integers, rnn.reference(net)(x, **held)[0], 2.0 ** -int(scale["Y"]), said.error


@pytest.mark.broad_after(2)
@pytest.mark.parametrize("name", ["gru", *cells.names()])
def test_every_cell_is_the_oracle(name: str, tmp_path: Path) -> None:
    net = network(name, 5, 7, num_layers=2)
    x, held = drawn(net)
    rnn.write_c(net, tmp_path / "far")
    expected, _ = rnn.reference(net)(x, **held)
    assert_close((results(built(tmp_path / "far"), x).reshape(expected.shape), {}), (expected, {}), net.dtype, STEPS)


@pytest.mark.broad_after(1)
@pytest.mark.slow_after(4)
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", ["lstm", "gru", *cells.names()])
def test_fixed_point_errs_by_what_it_says(name: str, bits: int, tmp_path: Path) -> None:
    """The error is that of what C computes, to the last digit."""
    net = network(name, 5, 7, num_layers=2)
    x, expected, scale, said = in_fixed_point(net, tmp_path / "far", bits)
    found = results(built(tmp_path / "far"), x).reshape(expected.shape) * scale
    assert np.abs(found - expected).max() == pytest.approx(said * np.abs(expected).max(), rel=1e-9)
    if name in ("lstm", "gru"):
        assert said < (1e-2 if bits == 8 else 5e-4)


@pytest.mark.broad
@pytest.mark.parametrize("compiler", [["gcc", *STRICT, "-O3"], ["clang", *STRICT], ["g++", "-x", "c++", "-std=c++11"]])
def test_compilers_and_cpp_take_it(compiler: list[str], tmp_path: Path) -> None:
    if not shutil.which(compiler[0]):
        pytest.skip(f"no {compiler[0]}")
    net = network("slstm", 3, 4)
    x, _ = drawn(net)
    for folder, options in (("floats", {}), ("integers", {"bits": 8, "samples": x})):
        rnn.write_c(net, tmp_path / folder, **options)
        if "-x" in compiler:  # the header alone is C++ too
            source = tmp_path / "user.cpp"
            source.write_text(f'#include "{folder}.h"\nint main() {{ {folder} s; {folder}_init(&s); }}\n')
            words = [*compiler, "-Wall", "-Werror", f"-I{tmp_path / folder}", "-c", str(source), "-o", "/dev/null"]
            subprocess.run(words, check=True)
        else:
            built(tmp_path / folder, compiler)


@pytest.mark.slow
@pytest.mark.parametrize("core", cortex_m.CORES)
@pytest.mark.parametrize("bits", [None, 8, 16])
@pytest.mark.parametrize("name", cells.names())
def test_every_cell_runs_on_a_cortex_m(name: str, bits: int | None, core: str, tmp_path: Path) -> None:
    """Bare metal under QEMU: floats are the oracle's, integers those of this machine, bit for bit."""
    if cortex_m.missing():
        pytest.skip(cortex_m.missing())
    net = network(name, 5, 7)
    x, held = drawn(net, 1)
    if bits is None:
        rnn.write_c(net, tmp_path / "far")
        expected, _ = rnn.reference(net)(x, **held)
        found, _ = cortex_m.results(tmp_path / "far", {n: v[:, 0] for n, v in x.items()}, core)
        assert_close((found.reshape(expected.shape), {}), (expected, {}), net.dtype, STEPS)
        return
    given, *_ = in_fixed_point(net, tmp_path / "far", bits)
    found, _ = cortex_m.results(tmp_path / "far", {n: v[:, 0] for n, v in given.items()}, core)
    np.testing.assert_array_equal(found, results(built(tmp_path / "far"), given)[:, 0])


def test_blocks_are_steps(tmp_path: Path) -> None:
    """64 samples a call, and two streams at once, give what steps give."""
    net = network("lstm", 1, 4)
    rnn.write_c(net, tmp_path / "amp")
    program = """\
#include <stdio.h>
#include "amp.h"
int main(void) {
  static float x[64], y[64][4], z[4];
  amp one, other;
  int wrong = 0;
  for (int i = 0; i < 64; ++i) x[i] = (float)(i % 7) - 3.0f;
  amp_init(&one), amp_init(&other);
  amp_block(&one, 64, x, y[0]);
  amp_block(&one, 0, x, z);
  for (int t = 0; t < 64; ++t) {
    amp_step(&other, x + t, z);
    for (int i = 0; i < AMP_Y; ++i) wrong += z[i] != y[t][i];
  }
  return wrong;
}
"""
    (tmp_path / "amp" / "example.c").write_text(program)
    subprocess.run([built(tmp_path / "amp", [*HOST, "-fsanitize=address,undefined"])], check=True)


@pytest.mark.parametrize(
    ("net", "options", "said"),
    [
        (lambda: rnn.RNN(rnn.cells.lstm, 2, 3), {}, "no weights"),
        (lambda: rnn.RNN(rnn.cells.lstm, 2, 3, bidirectional=True).init(0), {}, "plain C goes forwards"),
        (lambda: rnn.RNN(rnn.cells.lstm, 2, 3, dtype="float16").init(0), {}, "float32 or float64"),
        (lambda: rnn.RNN(rnn.cells.lstm, 2, 3).init(0), {"bits": 8}, "give samples=x"),
        (lambda: rnn.RNN(rnn.cells.lstm, 2, 3).init(0), {"bits": 7, "samples": 0}, "8 or 16"),
        (lambda: rnn.RNN(rnn.cells.lstm, 2, 3).init(0), {"bits": 8, "samples": np.zeros((4, 1, 5))}, r"\[T, B, 2\]"),
        (lambda: rnn.RNN(rnn.cells.lstm, 2, 3).init(0), {"bits": 8, "samples": np.full((4, 1, 2), np.nan)}, "finite"),
        (lambda: rnn.RNN(rnn.cells.lstm, 2, 3).init(0), {"bits": 8, "samples": {"z": 0}}, "--samples NAME=FILE"),
        (lambda: rnn.RNN(rnn.cells.lstm, 2, 3).init(0), {"name": "while"}, "not a name in C"),
        (lambda: "lstm", {}, "write_c needs an RNN"),
    ],
)
def test_what_cannot_be_written_is_said(net: Any, options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(rnn.TvmRnnError, match=said):
        rnn.write_c(net(), tmp_path / "far", **options)
    assert not (tmp_path / "far").exists()


def test_a_folder_of_something_else_stays(tmp_path: Path) -> None:
    net = rnn.RNN(rnn.cells.gru, 2, 3).init(0)
    (tmp_path / "amp").mkdir()
    rnn.write_c(net, tmp_path / "amp")
    rnn.write_c(net, tmp_path / "amp")
    (tmp_path / "amp" / "mine.c").write_text("")
    with pytest.raises(rnn.ConfigError, match=r"'mine.c' is in it"):
        rnn.write_c(net, tmp_path / "amp")

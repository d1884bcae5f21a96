"""Sizes as C++: what a C++ compiler computes of the text is what Python does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tvm import tirx

from tvm_rnn.cuda.surroundings.size_text import NoText, size_text
from tvm_rnn.tir.index import int64

HOST = Path(__file__).parents[3] / "tvm_rnn" / "cuda" / "codegen" / "host.h"


def test_division_is_pythons(tmp_path: Path) -> None:
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    below = tirx.Select(tirx.And(n < m, tirx.Not(n < int64(0))), tirx.Max(n, m), tirx.Min(n, m))
    text = size_text(tirx.floordiv(n - 1, m) * 7 + (n - 5) % m + tirx.Cast("int64", below), {n: "n", m: "m"})
    helpers = [line for line in HOST.read_text().splitlines() if line.startswith("inline int64_t floor")]
    lines = ["#include <algorithm>", "#include <cstdint>", "#include <cstdio>", "#include <cstdlib>"]
    lines += ["using std::max;", "using std::min;", *helpers, "int main(int, char** v) {"]
    lines += ["  int64_t n = atol(v[1]), m = atol(v[2]);", f'  printf("%ld", long({text}));', "}"]
    (tmp_path / "a.cc").write_text("\n".join(lines))
    subprocess.run(["g++", str(tmp_path / "a.cc"), "-o", str(tmp_path / "a")], check=True)
    for a, b in ((0, 3), (1, 3), (9, 4), (-7, 5), (3, 9)):
        expected = (a - 1) // b * 7 + (a - 5) % b + (max(a, b) if 0 <= a < b else min(a, b))
        done = subprocess.run([str(tmp_path / "a"), str(a), str(b)], capture_output=True, check=True)
        assert int(done.stdout) == expected


def test_what_is_no_size() -> None:
    with pytest.raises(NoText, match="a size that is a Call"):
        size_text(tirx.exp(tirx.const(1.0, "float32")), {})

"""The header: what it says of a model, and that C99, C++98 and C++17 take it, alone and twice."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from programs import STRICT, tiny_bundle
from tiny_module import Tiny

from tvm_rnn.bundle.facts import read_facts
from tvm_rnn.bundle.header import about_lines, header_text
from tvm_rnn.runtime import runtime


@pytest.mark.parametrize("words", [["gcc", "-std=c99"], ["g++", "-std=c++98"], ["g++", "-std=c++17"]], ids=str)
def test_compilers_take_it(words: list[str], tmp_path: Path) -> None:
    path = Tiny(2, extra=True).write(tmp_path / "m.so")
    (tmp_path / "tiny.h").write_text(header_text(read_facts(path.read_bytes(), runtime.load(path).manifest, "tiny")))
    source = tmp_path / ("main.c" if words[0] == "gcc" else "main.cpp")
    source.write_text('#include "tiny.h"\n#include "tiny.h"\nint main(void) { return TINY_OK + TINY_M_PER_ROW - 5; }\n')
    subprocess.run([*words, *STRICT, str(source), "-o", tmp_path / "main"], check=True)
    subprocess.run([tmp_path / "main"], check=True)


def test_what_it_says(tmp_path: Path) -> None:
    origin = {"framework": "onnx", "layer": "LSTM 'a*/'", "file": "m.onnx", "sha256": "12ab", "batch_first": False}
    path = Tiny().write(tmp_path / "m.so", origin=origin)
    facts = read_facts(path.read_bytes(), runtime.load(path).manifest, "tiny")
    text = header_text(facts)
    assert "tiny, 1 layer, forwards, float32" in text and "Made for batches of 1; any other is right too." in text
    assert "x  float [steps][batch][5]  read\n" in text and "h  float [1][batch][5]      read and overwritten" in text
    assert "m.onnx, sha256 12ab" in text and "a* /" in text and text.count("*/") == text.count("/*")
    assert (
        "h = 0.5" in text
        and "int32_t tiny_step(tiny *handle, int64_t batch,\n    const float *x, float *h, float *y);" in text
    )
    assert "m.onnx" in "\n".join(about_lines(facts))
    both = Tiny(directions=2).write(tmp_path / "b.so")
    text = header_text(read_facts(both.read_bytes(), runtime.load(both).manifest, "both"))
    assert "both_step" not in text and "no steps" in text and "#define BOTH_Y_PER_ROW 10" in text


def test_every_function_of_the_header_is_in_the_library(tmp_path: Path) -> None:
    bundle = tiny_bundle(tmp_path, Tiny())
    listed = subprocess.run(["nm", "-D", "--defined-only", bundle / "libtiny.so"], capture_output=True, check=True)
    exported = {line.split()[-1] for line in listed.stdout.decode().splitlines()}
    header = (bundle / "tiny.h").read_text()
    declared = {
        line.split("(")[0].split()[-1].lstrip("*") for line in header.splitlines() if line.startswith("TINY_API")
    }
    assert exported == declared and len(declared) == 10  # and nothing else
    needed = subprocess.run(["readelf", "-d", bundle / "libtiny.so"], capture_output=True, check=True).stdout.decode()
    libraries = {line.split("[")[1].rstrip("]") for line in needed.splitlines() if "(NEEDED)" in line}
    assert libraries <= {
        "libc.so.6",
        "ld-linux-x86-64.so.2",
        "libdl.so.2",
        "libm.so.6",
        "libgcc_s.so.1",
        "libstdc++.so.6",
    }

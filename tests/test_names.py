"""Names of users and of files, and every place that they reach: files, C, CUDA, HTML, Markdown, records."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from programs import STRICT, examples

import tvm_rnn as rnn
from tvm_rnn import CellError, cell
from tvm_rnn.bundle.facts import read_facts
from tvm_rnn.bundle.folder import readme_text
from tvm_rnn.bundle.header import header_text
from tvm_rnn.names import c_comment, c_string, file_name, identifier, identifiers, markdown
from tvm_rnn.schedule.record_files import file_name as of_records

HOSTILE = [
    "../../evil",
    "/etc/passwd",
    "..",
    "a\0b",
    "a" * 300,
    "a\nb",
    "a\"b'c",
    "*/ int x; /*",
    "*\\\n/",
    "??/",
    "<script>alert(1)</script>",
    "| `a` [b](c) *d* &lt;",
    "\u202eevil",
    "\udc80",
    "",
    "-rf",
]


def named(name: Any, **more: Any) -> rnn.Cell:
    def step(x: "I", h: "I"):
        return rnn.tanh(x + h)

    return cell(name=name, **more)(step)


@pytest.mark.parametrize("name", [*filter(None, HOSTILE), 3], ids=ascii)
def test_a_cell_has_a_name_that_is_safe_everywhere(name: Any) -> None:
    with pytest.raises(CellError, match="not a name for a cell"):
        named(name)


def test_names_that_a_cell_may_have() -> None:
    for name in ("int", "class", "zelle_\N{LATIN SMALL LETTER U WITH DIAERESIS}", "a" * 100):
        assert named(name).name == name


@pytest.mark.parametrize("name", ["a/b", "a b", "<b>"])
def test_an_output_has_such_a_name_too(name: str) -> None:
    with pytest.raises(CellError, match="not a name for a cell or its output"):
        named("mine", output=name)


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_file_names(name: str, tmp_path: Path) -> None:
    own = file_name(name)
    (tmp_path / f"{own}.jsonl").write_text("")
    assert os.listdir(tmp_path) == [f"{own}.jsonl"] and not own.startswith(".")
    assert of_records is file_name


def test_names_that_are_good_stay_and_long_ones_differ() -> None:
    assert file_name("x86-64+avx_2.1") == "x86-64+avx_2.1"
    assert file_name("a" * 300 + "b") != file_name("a" * 300 + "c")


def test_identifiers_of_c() -> None:
    assert identifiers(["x", "h", "c"]) == ["x", "h", "c"]
    taken = {"y", "batch"}
    assert identifiers(["y", "int", "batch", "x.0", "\N{GREEK SMALL LETTER LAMDA}", "2a"], taken) == [
        "y_",
        "int_",
        "batch_",
        "x_0",
        "v_",
        "v2a",
    ]
    assert identifiers(["h", "H", "h_"]) == ["h", "H_", "h__"]  # their macros differ too
    assert all(re.fullmatch(r"[A-Za-z]\w*", identifier(name), re.ASCII) for name in HOSTILE)


def test_strings_of_c() -> None:
    assert c_string("a b") == '"a b"' and c_string('"\n?') == '"\\042\\012\\077"'
    assert c_string("\N{LATIN SMALL LETTER E WITH ACUTE}") == '"\\303\\251"'


def test_comments_and_strings_of_c_compile_whatever_is_in_them(tmp_path: Path) -> None:
    lines = [f"/* {c_comment(name)} */" for name in HOSTILE]
    texts = "\n".join(f"const char *text_{i} = {c_string(name)};" for i, name in enumerate(HOSTILE))
    source = tmp_path / "main.c"
    source.write_text("\n".join([*lines, texts, ""]), encoding="utf-8")
    subprocess.run(["gcc", *STRICT, "-std=c99", "-c", source, "-o", tmp_path / "main.o"], check=True)


def test_markdown_means_nothing() -> None:
    assert markdown("lstm_2, 64 -> 32") == "lstm_2, 64 -\\> 32"
    assert markdown("a|b\n`c` _d_ <e>") == "a\\|b \\`c\\` \\_d\\_ \\<e\\>"


ODD = """
import tvm_rnn as rnn

@rnn.cell(states="double ü", name="register")
def register(x: "I", double: "H", ü: "H", *, int: "H I", threadIdx: "H H", ß: "H"):
    new = rnn.tanh(int @ x + threadIdx @ double + ß)
    return new, ü * 0.5 + new
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> rnn.RNN:
    """Words of C and CUDA, and letters that are not in ASCII, as names of everything that a cell has."""
    path = tmp_path_factory.mktemp("odd") / "odd.py"
    path.write_text(ODD, encoding="utf-8")
    from tvm_rnn.frontends.spec import find_cell

    return rnn.RNN(find_cell(f"{path}:register"), 3, 4).init(seed=0)


@pytest.mark.broad
def test_odd_names_reach_a_bundle(odd: rnn.RNN, tmp_path: Path) -> None:
    import numpy as np

    module = rnn.compile(odd, dump=tmp_path / "stages")
    assert module.path.endswith("/module.so") and (tmp_path / "stages").is_dir()
    module.export(bundle=tmp_path / "bundle")
    x = np.random.default_rng(0).normal(size=(3, 1, 3)).astype("f4")
    expected = module(x)[0]
    for found in examples(tmp_path / "bundle", tmp_path, {"x": x}):
        np.testing.assert_allclose(found.ravel()[-4:], expected[-1].ravel(), rtol=1e-4)


@pytest.mark.broad
def test_odd_names_reach_cuda(odd: rnn.RNN) -> None:
    from tvm_rnn.compiler.stage_texts import stages

    texts = dict(stages(odd, "nvidia-h200"))
    names = re.findall(r"(?:float|double|int)\s*\*?\s*(?:__restrict__\s*)?(\w+)", texts["cuda"] + texts["host"])
    assert names and not {"int", "double", "register", "threadIdx"} & {*names}
    assert texts["cuda"].isascii() and texts["host"].isascii()


def test_a_file_that_says_hostile_things_makes_a_header_and_a_page(tmp_path: Path) -> None:
    """What a manifest says of its cell and its origin comes from a file, not from @cell."""
    from tiny_module import Tiny

    from tvm_rnn.runtime import runtime

    for i, name in enumerate(HOSTILE[:-3]):
        tiny = Tiny()
        path = tiny.write(tmp_path / f"{i}.so", cell=name)
        facts = read_facts(path.read_bytes(), runtime.read_container(path)[0], "tiny")
        (tmp_path / "tiny.h").write_text(header_text(facts), encoding="utf-8")
        subprocess.run(["gcc", *STRICT, "-std=c99", "-fsyntax-only", "-x", "c", tmp_path / "tiny.h"], check=True)
        assert "<script>" not in readme_text(facts, {}).replace("\\<", "")


@pytest.mark.broad
def test_odd_names_reach_a_report(odd: rnn.RNN, tmp_path: Path) -> None:
    from tvm_rnn.explain import explain

    explain(odd).write_html(tmp_path / "odd.html", command="<script>alert(1)</script>\udc80")
    text = (tmp_path / "odd.html").read_text(encoding="utf-8")
    assert "register" in text and "<script>alert" not in text

"""The page of two explanations: sound HTML, values escaped, rows that differ marked, a roofline for each."""

from __future__ import annotations

from pathlib import Path

import pytest

import tvm_rnn as rnn
from tests.cli.test_commands import call
from tests.explain.html.test_page import Structure
from tvm_rnn.explain.beside import Beside

pytest.importorskip("vl_convert")


def test_the_page(tmp_path: Path) -> None:
    net = rnn.RNN(rnn.cells.min_gru, 5, 7)
    both = Beside(rnn.explain(net, "nvidia-h200"), rnn.explain(net, "nvidia-a100"), ("h200 <new>", "a100"))
    both.write_html(tmp_path / "both.html", command="tvm-rnn explain 'a & b'")
    text = (tmp_path / "both.html").read_text()
    found = Structure(text)
    assert not found.faults and not found.open
    assert "h200 &lt;new&gt; beside a100" in text and "a &amp; b" in text
    same, differ = text.index("B = 1: MFLOP"), text.index("What it is")
    assert text.rfind('class="differs"', 0, differ) == text.rfind("<tr", 0, differ) + 4
    assert text.rfind('class="differs"', 0, same) < text.rfind("<tr", 0, same)
    assert text.count("roofline, B = 1") >= 2


def test_the_command(tmp_path: Path) -> None:
    sizes = ("--input-size", "5", "--hidden-size", "7", "--target", "x86-64-v4")
    page = str(tmp_path / "both.html")
    assert "weights read in each step" in call("explain", "gru", "--beside", "elman", *sizes, "--html", page)
    assert "gru beside elman" in Path(page).read_text()
    assert "not with --beside" in call("explain", "gru", "--beside", "elman", "--ablation", "x", code=2)

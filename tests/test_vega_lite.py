"""vega_lite: specifications become SVG, and what cannot be drawn is said before anything is measured."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import tvm_rnn as rnn
from tvm_rnn.vega_lite import PAPER, check_plot, svg

SPEC = {"data": {"values": [{"x": 1, "y": 2}]}, "mark": "bar", "encoding": {"x": {"field": "x"}, "y": {"field": "y"}}}


def test_a_specification_becomes_an_element_with_a_role() -> None:
    pytest.importorskip("vl_convert")
    found = ElementTree.fromstring(svg(SPEC, "a title"))
    assert found.attrib["role"] == "img" and "white" not in svg(SPEC, "a title")
    assert 'fill="white"' in svg({**SPEC, **PAPER}, "a title")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(rnn.ConfigError, match=r"not installed[\s\S]*pip install .*vl-convert-python"):
        svg(SPEC, "a title")


def test_a_file_that_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    with pytest.raises(rnn.ConfigError, match=r"\.svg"):
        check_plot(str(tmp_path / "x.png"))
    with pytest.raises(rnn.ConfigError, match="no such folder"):
        check_plot(str(tmp_path / "none" / "x.svg"))
    check_plot(str(tmp_path / "x.svg"))
    assert not (tmp_path / "x.svg").exists()

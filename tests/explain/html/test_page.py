"""The report page: one file that needs nothing else, sound HTML, and in a browser a slider and a search that work."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tvm_rnn as rnn
from tests.cli.test_commands import call
from tvm_rnn import explain
from tvm_rnn.bench.run import cpu_suite
from tvm_rnn.explain.html.page import _time, work
from tvm_rnn.options import PASS_NAMES

for needed in ("grandalf", "vl_convert"):
    pytest.importorskip(needed)
VOID = {"meta", "br", "input", "link", "img", "hr"}


class Structure(HTMLParser):
    """Elements as they open and close, ids, and what they name."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.faults: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "lstm.html"
    found = explain(rnn.RNN(rnn.cells.lstm, 8, 16, 3), "x86-64-v4", batch=4, steps=60)
    rows = [{"without": "nothing", "us": 1.0}, {"without": "<fuse>", "us": 2.0}]
    found.write_html(path, command="tvm-rnn explain 'a & b'", ablation=rows, history=[0.9, None, 1.2])
    return path


@pytest.fixture(scope="module")
def structure(report: Path) -> Structure:
    return Structure(report.read_text())


@pytest.mark.broad
def test_elements_nest_and_ids_are_unique(structure: Structure) -> None:
    assert not structure.faults and not structure.open
    ids = [attrs["id"] for tag, attrs in structure.found if "id" in attrs and tag not in ("clippath", "clipPath")]
    assert len({*ids}) == len(ids)
    for tag, attrs in structure.found:
        if tag == "a":
            assert str(attrs["href"]).removeprefix("#") in ids
        if "data-of" in attrs:
            assert attrs["data-of"] in ids


def test_nothing_is_fetched(report: Path, structure: Structure) -> None:
    for tag, attrs in structure.found:
        assert not ({"src", "srcset", "xlink:href"} & attrs.keys()), (tag, attrs)
        assert tag not in ("link", "iframe", "img")
    assert "@import" not in report.read_text() and "url(http" not in report.read_text()


def test_it_can_be_used_without_seeing_it(structure: Structure) -> None:
    assert ("html", {"lang": "en"}) in structure.found
    labelled = {attrs.get("for") for tag, attrs in structure.found if tag == "label"}
    for tag, attrs in structure.found:
        if tag == "svg":
            assert attrs.get("role") == "img"
        if tag == "input" and attrs["type"] == "range":
            assert attrs["id"] in labelled
    levels = [int(tag[1]) for tag, _ in structure.found if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and all(b - a <= 1 for a, b in pairwise(levels))


def test_every_part_is_there(report: Path, structure: Structure) -> None:
    text = report.read_text()
    for at in ("decided", "equations", "graph", "time", "work", "ablation", "tuning", "code", "made"):
        assert f'id="{at}"' in text
    stages = [attrs["data-name"] for tag, attrs in structure.found if attrs.get("class") == "stage"]
    assert stages == ["trace", "normalise", *PASS_NAMES]
    assert "Who runs the steps" in text and "one call for all of T" in text and "[layers 1, 2]" in text
    assert "&lt;fuse&gt;" in text and "a &amp; b" in text and "<fuse>" not in text
    assert "prefers-reduced-motion" in text and "prefers-color-scheme: dark" in text
    assert "<math" in text and "R @ h (layer 0): reads h" in text and "vfmadd" in text


def test_the_least_tile_of_the_layers_counts(tmp_path: Path) -> None:
    """As in the manifest. Each layer asks for rows of its own: the first reads another number of features."""
    net = rnn.RNN(rnn.cells.lstm, 64, 256, 2)
    found = explain(net, "x86-64-v4", batch=1)
    rows = [
        row["facts"]["rows"]
        for row in found.facts["networks"][0]["passes"]["tile_layers_and_time"]["did"]
        if "rows" in row.get("facts", {})
    ]
    assert len({*rows}) == 2
    text = "".join(_time(found.facts["networks"][0], "turns"))
    assert f"tile of {min(rows)} steps" in text and f"tile of {max(rows)} steps" not in text
    assert "the least counts" in text


def test_points_on_the_roof_are_called_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    ceilings = {"memory_tb_s": 0.1, "float32_tflops": 0.2, "spread": 0.0, "load": 0.1}
    monkeypatch.setattr(cpu_suite, "ceilings_of", lambda *sizes: ceilings)
    text = "".join(work(explain(rnn.RNN(rnn.cells.lstm, 8, 16)).facts["networks"][0]))
    assert "a bound, not measured" in text and "load average 0.1 on" in text and "busy" not in text


def test_graphs_fit_or_scroll_for_the_keyboard_too(structure: Structure) -> None:
    assert ("div", {"class": "graph wide", "tabindex": "0"}) in structure.found
    styles = [attrs["style"] for tag, attrs in structure.found if tag == "svg" and attrs.get("class") == "graph"]
    assert styles and all("max-width" in str(style) and "min-width" in str(style) for style in styles)


@pytest.mark.broad
def test_a_module_has_a_page_of_what_its_file_says(tmp_path: Path) -> None:
    from networks import compiled

    compiled("gru", 4, 8)[1].export(tmp_path / "gru.so")
    call("explain", str(tmp_path / "gru.so"), "--html", str(tmp_path / "gru.html"))
    text = (tmp_path / "gru.html").read_text()
    of_net = tmp_path / "net.html"
    explain(rnn.RNN(rnn.cells.gru, 4, 8)).write_html(of_net)
    for part in (
        "<math.*?</math>",
        '<summary>As text</summary><pre tabindex="0">.*?</pre>',
        "<title>gru after .*?</title>",
    ):
        assert re.findall(part, text, re.S) == re.findall(part, of_net.read_text(), re.S) != []
    assert "tvm-rnn show gru --stage all" in text and "vfmadd" not in text
    assert not Structure(text).faults


def test_a_module_of_a_cell_that_is_not_here_says_why_it_has_no_pictures(tmp_path: Path) -> None:
    @rnn.cell(states="h")
    def mine(x: "I", h: "H", *, W: "H I", R: "H H"):
        return rnn.tanh(W @ x + R @ h)

    rnn.compile(rnn.RNN(mine, 3, 5)).export(tmp_path / "m.so")
    call("explain", str(tmp_path / "m.so"), "--html", str(tmp_path / "m.html"))
    text = (tmp_path / "m.html").read_text()
    assert "No equations and graphs" in text and "--cell FILE.py:FUNCTION" in text and "<math" not in text
    assert "What was decided" in text and not Structure(text).faults


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    sync = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    with sync.sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def opened(browser: Any, report: Path, **options: Any) -> tuple[Any, list[str]]:
    page, said = browser.new_context(**options).new_page(), list[str]()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if not request.url.startswith("file:") else None)
    page.goto(report.as_uri())
    return page, said


def test_graphs_zoom_and_go_back_in_a_browser(browser: Any, report: Path) -> None:
    page, said = opened(browser, report)
    picture = page.locator(".stage:not([hidden]) .graph.wide svg").first
    first = picture.bounding_box()["width"]
    larger, back = page.locator(".zoom button[data-by='1.25']").first, page.locator(".zoom button[data-by='0']").first
    larger.click()
    larger.click()
    assert picture.bounding_box()["width"] == pytest.approx(1.25**2 * first, rel=0.01)
    back.click()
    assert picture.bounding_box()["width"] == first and not said


def test_the_slider_the_search_and_the_animation_in_a_browser(browser: Any, report: Path) -> None:
    page, said = opened(browser, report)
    slider = page.locator("input.stages")
    assert page.locator(".stage:visible").count() == 1
    slider.focus()
    for name in reversed(["trace", "normalise", *PASS_NAMES[:-1]]):
        page.keyboard.press("ArrowLeft")
        assert page.locator(".stage:visible").get_attribute("data-name") == name
        assert page.locator("#stages0-name").inner_text() == slider.get_attribute("aria-valuetext") == name
    assert page.locator(".stage:visible svg.graph rect").first.is_visible()
    page.locator("input.search").fill("vfmadd")
    places = report.read_text().split('id="code-folds"')[1].lower().count("vfmadd")
    assert page.locator("mark").count() > 0 and page.locator("#code-folds-found").inner_text().startswith(f"{places} ")
    page.locator("button.play").click()
    assert page.evaluate("document.getAnimations().length") > 0
    assert not said


def test_it_fits_a_phone_and_keeps_still_where_that_is_wanted(browser: Any, report: Path) -> None:
    size = {"width": 360, "height": 740}
    page, said = opened(browser, report, viewport=size, color_scheme="dark", reduced_motion="reduce")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator("button.play").click()
    assert page.evaluate("document.getAnimations().length") == 0
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, re.findall(r"\d+", background))) < 150
    assert not said

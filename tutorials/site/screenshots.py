"""The pictures of pages in the documentation: reports, and the page of a folder for browsers.

In: networks; the amplifier of the how-to "Run in the browser". Out: `pages/images/report_*.png` and `browser_amp.png`,
made in Chromium: `python tutorials/site/screenshots.py [NAME ...]`. Needs playwright and a Chromium; reports need
the extra "report"; the amplifier needs torch and a compiler for WebAssembly.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import amplifier

import tvm_rnn as rnn

PAGES = Path(__file__).resolve().parent / "pages"
IMAGES = PAGES / "images"
FIRST = (
    rnn.RNN(rnn.cells.lstm, 256, 512, 4, dtype="bfloat16"),
    "nvidia-h200",
    64,
)  # from the top; others: equations on
REPORTS = {
    "report": FIRST,
    "report_lstm": (rnn.RNN(rnn.cells.lstm, 64, 256, 3), "x86-64-v4", 16),
    "report_wave": (rnn.RNN(rnn.cells.lstm, 256, 256, 3, dtype="bfloat16"), "nvidia-h200", 64),
    "report_mlstm": (rnn.RNN(rnn.cells.mlstm, 64, 64), "x86-64-v4", 1),
}


AMPLIFIER = "browser_amp"
SOUND = "--autoplay-policy=no-user-gesture-required"  # nobody clicks


def take(names: list[str]) -> None:
    """Write the pictures of these names; all, of none."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as p, tempfile.TemporaryDirectory() as folder:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", SOUND])
        for name in names or [*REPORTS, AMPLIFIER]:
            (_amplifier if name == AMPLIFIER else _report)(browser, Path(folder), name)
        browser.close()


def _report(browser: Any, folder: Path, name: str) -> None:
    """What a window shows of a network's report, from the equations on."""
    net, target, batch = REPORTS[name]
    path = folder / f"{name}.html"
    rnn.explain(net, target, batch=batch, records="none").write_html(path, command=f"tvm-rnn explain ... {name}")
    page = browser.new_page(viewport={"width": 1000, "height": 640 if name == "report" else 1300})
    page.goto(path.as_uri())
    if name != "report":
        page.evaluate("document.getElementById('equations').scrollIntoView()")
    page.screenshot(path=str(IMAGES / f"{name}.png"))


def _amplifier(browser: Any, folder: Path, name: str) -> None:
    """The page of the how-to's network, as it plays a note."""
    amplifier.write(folder)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder / "amp")
    server = http.server.ThreadingHTTPServer(("localhost", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_page(viewport={"width": 1000, "height": 580})
    page.goto(f"http://localhost:{server.server_port}/")
    page.wait_for_selector("html[data-ready=yes]")
    page.click("#play")
    page.wait_for_function("document.getElementById('load').textContent.endsWith('%')")
    page.screenshot(path=str(IMAGES / f"{name}.png"))
    server.shutdown()


if __name__ == "__main__":
    take(sys.argv[1:])

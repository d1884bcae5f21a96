"""The pictures of pages in the documentation: reports, and the page of a folder for browsers.

In: commands; the amplifier of the how-to "Run in the browser". Out: `pages/images/report_*.png` and `browser_amp.png`,
made in Chromium: `python tutorials/site/screenshots.py [NAME ...]`. Needs playwright and a Chromium; reports need
the extra "report"; the amplifier needs torch and a compiler for WebAssembly.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import amplifier

PAGES = Path(__file__).resolve().parent / "pages"
IMAGES = PAGES / "images"
# Commands of reports, which measure nothing: any machine draws the same. README has one from the top, pages from the
# equations on.
TOP, GPU = "report", "--target nvidia-h200 --dtype bfloat16"
REPORTS = {
    TOP: f"lstm {GPU} --input-size 512 --hidden-size 512 --layers 2 --batch 64",
    "report_lstm": "lstm --input-size 64 --hidden-size 256 --layers 3 --batch 16 --target x86-64-v4",
    "report_wave": f"lstm {GPU} --input-size 256 --hidden-size 256 --layers 3 --batch 64",
    "report_mlstm": "mlstm --input-size 64 --hidden-size 64 --batch 1 --target x86-64-v4",
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
    """What a window shows of a command's report."""
    cell, *options = REPORTS[name].split()
    command = [sys.executable, "-m", "tvm_rnn", "explain", cell, *options, "--html", f"{cell}.html"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    page = browser.new_page(viewport={"width": 1000, "height": 640 if name == TOP else 1300})
    page.goto((folder / f"{cell}.html").as_uri())
    if name != TOP:
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

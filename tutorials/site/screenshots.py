"""The pictures of reports in the documentation.

In: three networks. Out: `pages/images/report_*.png`, made in Chromium: `python tutorials/site/screenshots.py`. Needs
the extra "report", playwright, a Chromium on the PATH, and a font for mathematics (such as STIX).
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import tvm_rnn as rnn

IMAGES = Path(__file__).resolve().parent / "pages" / "images"
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


def take() -> None:
    """Write a page for each network, and what a window shows of it from the equations on."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as p, tempfile.TemporaryDirectory() as folder:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (net, target, batch) in REPORTS.items():
            path = Path(folder, f"{name}.html")
            rnn.explain(net, target, batch=batch, records="none").write_html(
                path, command=f"tvm-rnn explain ... {name}"
            )
            page = browser.new_page(viewport={"width": 1000, "height": 640 if name == "report" else 1300})
            page.goto(path.as_uri())
            if name != "report":
                page.evaluate("document.getElementById('equations').scrollIntoView()")
            page.screenshot(path=str(IMAGES / f"{name}.png"))
        browser.close()


if __name__ == "__main__":
    take()

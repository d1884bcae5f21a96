"""The amplifier of the how-to "Run in the browser", as the folder for browsers that the how-to makes.

In: the page's program, which trains it. Out: a folder: `python tutorials/site/amplifier.py build/amplifier`.
`generate.py` publishes it with the pages, `screenshots.py` takes its picture. Needs torch and a compiler for
WebAssembly; without one of them no folder is written, and what lacks is said.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import sys
import tempfile
from pathlib import Path

import tvm_rnn as rnn
from tvm_rnn.errors import BuildError

PAGE = Path(__file__).resolve().parent / "pages" / "howto" / "browser.md"


def write(folder: Path) -> rnn.RNN:
    """Train the network, write its folder, and return the network. Raises ImportError without torch, BuildError without
    a compiler."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    before, whole = Path.cwd(), folder.resolve()
    whole.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        Path(place, "amp.py").write_text(code)
        os.chdir(place)  # where it writes its weights
        try:
            net: rnn.RNN = runpy.run_path("amp.py")["net"]
            rnn.compile(net, "wasm32", batch=1).export(web=whole / "amp")
        finally:
            os.chdir(before)
    return net


if __name__ == "__main__":
    made = Path(sys.argv[1])
    shutil.rmtree(made, ignore_errors=True)
    try:
        write(made)
    except (ImportError, BuildError) as error:
        shutil.rmtree(made, ignore_errors=True)
        print(f"the documentation will not have the amplifier to play: {error}")

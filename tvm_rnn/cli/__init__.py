"""The command `tvm-rnn`: one file per command, each a thin layer over the package.

In: words of a command line. Out: text or JSON. `commands.py` has the app and compile, run, show; `options.py` what
commands share, `networks.py` how a network is named, `console.py` how results are printed; the other files are
commands.
"""

from .commands import app, main

__all__ = ["app", "main"]

"""The command `tvm-rnn`: one file per command, each a thin layer over the package.

In: words of a command line. Out: text or JSON. `commands.py` has the app and compile, run, show, inspect; `options.py`
what commands share, `usage.py` help and exit codes, `networks.py` how a network is named, `console.py` how results are
printed, `completion.py` what shells complete. A file per command: `explain.py`, `doctor.py`, `bench.py`, `tune.py`
(`tune_gpu.py`), `generate.py`, `write_c.py`, `records.py`, `fill_cache.py`.
"""

from .commands import app, main

__all__ = ["app", "main"]

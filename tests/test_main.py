"""`python -m tvm_rnn` is the command line."""

from __future__ import annotations

import subprocess
import sys

from tvm_rnn import __version__


def test_the_module_runs_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "tvm_rnn", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"tvm-rnn {__version__}\n"

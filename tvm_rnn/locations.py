"""Where this package lies on disk: for files that ship with it, and for processes that must import the same one.

In: nothing. Out: `PACKAGE`, its folder; `PYTHONPATH`, the entry of that variable that finds it.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
PYTHONPATH = str(PACKAGE.parent)

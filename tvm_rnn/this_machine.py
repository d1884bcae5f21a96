"""What this machine is: systems call the same one differently.

In: nothing. Out: its name as Linux has it, what compilers call its system, how many CPUs this process may use.
"""

from __future__ import annotations

import os
import platform
import sys


def machine() -> str:
    """As Linux calls it: "x86_64", "aarch64"."""
    return {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())


def system() -> str:
    """As compilers call it: "x86_64-linux-gnu", "aarch64-macos"."""
    return f"{machine()}-{'macos' if sys.platform == 'darwin' else 'linux-gnu'}"


def cpus() -> int:
    """How many this process may use; of a system that does not tell, all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

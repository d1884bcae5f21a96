"""How far a compilation is, in words: what is said to whoever waits, in terminals, notebooks and logs.

In: the name of each stage as it begins. Out: the name, the share that is done, about how long the rest takes.
"""

from __future__ import annotations

import time

# The part of a compilation's time that is over as a stage begins, roughly: it differs from cell to cell by a factor of
# two. For CPUs (LSTM, RWKV-7, 64 inputs, 128 units; Zen 4), for GPUs (LSTM in bfloat16; nvcc).
ON_CPU = {"passes": 0.0, "lowering": 0.03, "code generation": 0.15, "linking": 0.72, "loading": 0.99}
ON_GPU = {"passes": 0.0, "planning": 0.02, "code generation": 0.25, "compiling kernels": 0.4, "writing": 0.97}
LEAST_SECONDS, LEAST_PART = 1.0, 0.1  # before which nothing is said of how long it takes


class Stages:
    """What is to be said of a stage: its name, with the share that is done and the time that is left, where the time
    so far says something of it. While a stage lasts both go on, and the share ends before the next one's."""

    def __init__(self) -> None:
        self.begun, self.known, self.stage = time.monotonic(), ON_CPU, ""
        self.at = self.begun

    def text(self, stage: str) -> str:
        """Of a stage that begins. What precedes a compilation's first, such as to load the compiler, does not count."""
        self.stage, self.at = stage, time.monotonic()
        if stage == "passes":
            self.begun, self.known = self.at, ON_CPU
        elif stage == "planning":
            self.known = ON_GPU
        return self.now()

    def now(self) -> str:
        """Of the stage at hand, which began with `text`."""
        done, seconds, now = self.known.get(self.stage, 0.0), self.at - self.begun, time.monotonic()
        if done < LEAST_PART or seconds < LEAST_SECONDS:
            return self.stage
        whole = seconds / done  # as it looked when this stage began
        end = min((share for share in self.known.values() if share > done), default=1.0)
        share = max(done, min((now - self.begun) / whole, end - 0.01))
        left = self.begun + whole - now
        return f"{self.stage}, {share:.0%}" + (f", about {duration(left)} left" if left >= LEAST_SECONDS else "")


def duration(seconds: float) -> str:
    """Such as "1:05" or "12 s"."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60}:{whole % 60:02d}"

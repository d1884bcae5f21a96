"""What several tutorials draw. In: numbers. Out: a picture in the working directory, and in the notebook; without
matplotlib, a line that says so."""

from __future__ import annotations

from collections.abc import Sequence


def draw_loss(losses: Sequence[float], words: str = "loss") -> None:
    """Draw the loss of each step into loss.png.

    losses: one number a step. words: what they are, for the axis."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("no picture of the loss: pip install matplotlib")
        return
    plt.figure(figsize=(6, 2.5), layout="constrained")
    plt.plot(losses)
    plt.xlabel("step")
    plt.ylabel(words)
    plt.savefig("loss.png")

"""Products with parameters on NVIDIA GPUs: which kernel, which tile.

In: a gemm unit and a GPU. Out: knob values, from which `tvm_rnn.cuda.gemm` writes kernels. Two sets of tiles: `many_*`
for hoisted products over all of T and B, `few_*` for the rows of one step, where weights come from L2 and blocks must
be spread over all multiprocessors.

Rewrite: out[row, gate, unit] = sum_k x[row, k] w[gate, unit, k]  -->  tiles of rows x (units with all their gates)
"""

from typing import Any

from tvm_rnn.schedule import Config, Knobs, Unit, template
from tvm_rnn.target import Target

TENSOR = ("float16", "bfloat16", "tf32")
POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@template("gemm_cuda", kinds=("gemm",), targets=("cuda",))
class GemmCuda:
    """Knobs: span (tiles of 8 units side by side, which makes a thread's units consecutive), widest (what packed
    columns are padded to), few (up to so many rows the few_* tile is used), and for both tiles rows, columns, warps
    (down rows), along (warps along columns), split (parts of K), stages; without tensor cores units (of a thread),
    across (threads along units), high (rows of a thread)."""

    @staticmethod
    def configure(unit: Unit, target: Target, knob: Knobs) -> Config:
        """Hoisted products: the largest tile that fits registers. Steps: enough blocks for every multiprocessor."""
        if unit.dtype in TENSOR:
            return _tensor(unit, target, knob)
        return _lanes(unit, target, knob)

    @staticmethod
    def schedule(sch: Any, unit: Unit, config: Config) -> None:
        """Nothing: kernels are written for a configuration, not scheduled."""


def _power(value: int, least: int, most: int) -> int:
    """The smallest power of two that is not below the value, within bounds."""
    return next((p for p in POWERS if p >= max(value, least) or p == most), most)


def _tensor(unit: Unit, target: Target, knob: Knobs) -> Config:
    step = unit.region == "step"
    longest = 4 if unit.dtype != "tf32" else 2
    fitting = [s for s in (1, 2, 4) if s <= longest and 8 * s * unit.gates <= 128 and 8 * s < 2 * unit.width]
    span = 1 if step else max(fitting, default=1)
    block = 8 * span * unit.gates
    blocks = -(-unit.width // (8 * span))  # of units
    most = [n for n in (1, 2, 4, 8, 16, 32) if n < 2 * blocks]
    fit = max((n for n in most if n * block <= 128), default=1)
    wide = max((n for n in most if n * block <= 256), default=0)
    few = _power(max(unit.batches, default=64), 16, 128)
    sms = getattr(target, "sms", 132)
    some = max((n for n in most if n <= fit and blocks // n >= sms), default=1)
    hopper = str(getattr(target, "arch", "")) == "sm_90a" and wide > 0 and not step
    knobs = {
        "span": knob("span", (1, 2, 4), span),
        "widest": knob("widest", [block * n for n in POWERS], block * max(fit, wide if hopper else 1)),
        "few": knob("few", (0, *POWERS), few if step else 0),
        "wide": knob("wide", (0, *POWERS), 512),
        "wide_columns": knob("wide_columns", (0, *(block * n for n in POWERS)), block * wide if hopper else 0),
        "wide_stages": knob("wide_stages", (4, 5, 6, 7, 8), min(8, 232000 // ((128 + block * wide) * 128 + 16))),
        "wide_cluster": knob("wide_cluster", (1, 2), 2),
        "wide_blocks": sms,
    }
    high = 1 if fit * block > 128 else 2
    tiles = {"few": (few, some, 4 if few <= 32 else 2, 8 if few <= 32 else 6), "many": (64 * high, fit, 1, 3)}
    for size, (rows, broad, split, stages) in tiles.items():
        knobs |= {
            f"{size}_rows": knob(f"{size}_rows", POWERS, rows),
            f"{size}_columns": knob(f"{size}_columns", [block * n for n in POWERS], block * broad),
            f"{size}_warps": knob(f"{size}_warps", (1, 2, 4, 8), max(1, min(4, rows // 16))),
            f"{size}_along": knob(f"{size}_along", (1, 2, 4), 1),
            f"{size}_split": knob(f"{size}_split", (1, 2, 4), split),
            f"{size}_stages": knob(f"{size}_stages", (2, 3, 4, 5, 6, 8), stages),
        }
    return knobs


def _lanes(unit: Unit, target: Target, knob: Knobs) -> Config:
    step, double = unit.region == "step", unit.dtype == "float64"
    choices = (1, 2, 4, 8)
    units = next((u for u in choices if unit.gates * u % 4 == 0 and unit.gates * u >= 8), 4)
    slots = -(-unit.gates * units // 4) * 4
    high = 8 if slots * (2 if double else 1) <= 16 else 4 if slots <= 32 else 1
    knobs = {
        "units": knob("units", choices, units),
        "few": knob("few", (0, *POWERS), 128 if step else 0),
    }
    few = _power(max(unit.batches, default=64), 16, 32)
    for size, (rows, across, tall, split) in {"few": (few, 8, 4, 4), "many": (16 * high, 16, high, 1)}.items():
        knobs |= {
            f"{size}_rows": knob(f"{size}_rows", POWERS, rows),
            f"{size}_across": knob(f"{size}_across", (8, 16), across),
            f"{size}_high": knob(f"{size}_high", (1, 2, 4, 8), min(tall, high)),
            f"{size}_split": knob(f"{size}_split", (1, 2, 4, 8), split),
            f"{size}_stages": knob(f"{size}_stages", (2, 3, 4, 5, 6, 8), 3),
        }
    return knobs

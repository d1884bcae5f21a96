"""Steps without products: all of T in one launch, a thread per batch row and unit, for cells such as SRU and IndRNN.

In: a layer's pointwise step and a GPU. Out: knob values, from which `tvm_rnn.cuda.rowwise.scan_over_time` writes a
kernel. Everything that a step needs but the state is known beforehand, so its loads are sent out `ahead` steps early.

Rewrite: for t: pointwise  -->  one kernel; for t inside each thread

Source: Lei et al. 2018, "Simple Recurrent Units for Highly Parallelizable Recurrence", EMNLP, section 3.2.
"""

from typing import Any

from tvm_rnn.schedule.schedule_template import Config, Knobs, Unit, template
from tvm_rnn.target import Target

THREADS = (32, 64, 128, 256)
AHEAD = (1, 2, 4, 8, 12, 16, 24, 32)
REGISTERS = 96  # of a thread, for values on their way


@template("scan_cuda", kinds=("scan",), targets=("cuda",))
class ScanCuda:
    """Knobs: threads (of a block: few, so that small batches use many multiprocessors), ahead (steps between a value's
    load and its use)."""

    @staticmethod
    def configure(unit: Unit, target: Target, knob: Knobs) -> Config:
        """As many steps ahead as registers allow: `stages` values are read in each."""
        fitting = [a for a in AHEAD if a <= 16 and a * unit.stages <= REGISTERS]
        largest = max(unit.batches, default=64) * unit.width
        spread = [t for t in THREADS if t <= 128 and largest >= 2 * t * target.sms]
        return {
            "threads": knob("threads", THREADS, max(spread, default=THREADS[0])),
            "ahead": knob("ahead", AHEAD, max(fitting, default=1)),
        }

    @staticmethod
    def schedule(sch: Any, unit: Unit, config: Config) -> None:
        """Nothing: the kernel is written for a configuration, not scheduled."""

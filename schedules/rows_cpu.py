"""Pointwise groups and reductions on the CPU: one vector of lanes at a time.

In: a tile of one batch row and one vector, from `tvm_rnn.cpu.register_tile`. Out: the same tile with its lanes
vectorised. Reductions along the last axis keep one partial result per lane, and add the lanes up at the end.

Rewrite: for lane: y[lane] = f(x[lane])  -->  vector lane: y = f(x)
"""

from tvm_rnn.schedule.schedule_template import Config, Knobs, Unit, template
from tvm_rnn.target import Target


@template("rows_cpu", kinds=("pointwise", "reduce"), targets=("llvm",))
class RowsCpu:
    """No knobs yet: the work is bound by loads and stores."""

    @staticmethod
    def configure(unit: Unit, target: Target, knob: Knobs) -> Config:
        """Nothing to choose."""
        return {}

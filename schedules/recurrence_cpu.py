"""Recurrences on the CPU: a few vectors go through all steps of a tile together.

In: a group of kind "scan", and its width: of a matrix that of the value axis. Out: how many vectors. Steps of one
vector wait for one another, so several hide that time; what is read of a step is longer than a line of the cache.

Rewrite: for t: h = a[t] * h + b[t]  -->  for t: h0, h1 = a0[t] * h0 + b0[t], a1[t] * h1 + b1[t]
"""

from tvm_rnn.schedule.schedule_template import Config, Knobs, Unit, template
from tvm_rnn.target import Target

PANELS = (1, 2, 4, 8)
DEFAULT = 2


@template("recurrence_cpu", kinds=("scan",), targets=("llvm",))
class RecurrenceCpu:
    """Knob: panels (vectors of a loop over time)."""

    @staticmethod
    def configure(unit: Unit, target: Target, knob: Knobs) -> Config:
        """Those that leave no rest; by default the most up to DEFAULT."""
        vectors = -(-unit.width // target.lanes(unit.dtype))
        whole = [p for p in PANELS if vectors % p == 0]
        return {"panels": knob("panels", whole, max(p for p in whole if p <= DEFAULT))}

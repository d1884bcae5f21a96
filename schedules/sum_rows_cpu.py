"""Sums over rows on the CPU: a register tile that stays in place while all rows pass.

In: a tile of `rows` elements of one operand by `panels` vectors of the other, from
`tvm_rnn.cpu.training.weight_gradient_sums`. Out: the same tile with its sums in registers: rows of steps and batch
outside, the tile unrolled, lanes vectorised.

Rewrite: for m, panel, lane, row: acc += a[row, m] * b[row, panel, lane]
         -->  for row: (unrolled m, panel) (vector lane): acc += ...

Source: the register-blocked micro-kernel of Goto & van de Geijn 2008, "Anatomy of High-Performance Matrix
Multiplication".
"""

from tvm_rnn.schedule.schedule_template import Config, Knobs, Unit, template
from tvm_rnn.target import Target

ROWS = (1, 2, 3, 4, 6, 8, 12)
PANELS = (1, 2, 4, 8)
CHAINS = 8  # independent sums, where there is one element by vectors: two pipes with a latency of four cycles


@template("sum_rows_cpu", kinds=("sum_rows",), targets=("llvm",), version=1)
class SumRowsCpu:
    """Knobs: rows (elements of the operand that is broadcast), panels (vectors of the other)."""

    @staticmethod
    def configure(unit: Unit, target: Target, knob: Knobs) -> Config:
        """Two vectors by as many elements as leave registers for the vectors and one broadcast."""
        (height,), vectors = unit.depths, -(-unit.width // target.lanes(unit.dtype))
        sums = target.accumulators
        most = min(CHAINS, sums) if height == 1 else 2
        panels = max(p for p in PANELS if p == 1 or (p <= vectors and p <= most))
        rows = max(r for r in ROWS if r == 1 or (r <= height and r * panels <= sums))
        return {"rows": knob("rows", ROWS, rows), "panels": knob("panels", PANELS, panels)}

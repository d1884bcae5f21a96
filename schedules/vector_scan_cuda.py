"""Linear recurrences of vectors in chunks of time, for cells such as minGRU, RG-LRU and S5.

In: a recurrence and a GPU. Out: knob values, from which `tvm_rnn.cuda.linear.vector_scan` writes kernels. A block has
32 elements, whose time its warps share; chunks of time are as many as fill the GPU, whatever T and B are.

Rewrite: for t: h = a h + b  -->  for part: what it does to any h; for part: h from those before; for t: h = a h + b

Source: Blelloch 1990, "Prefix sums and their applications".
"""

from tvm_rnn.schedule.schedule_template import Config, Knobs, Unit, template
from tvm_rnn.target import Target

WARPS = (1, 2, 4, 8, 16)
AHEAD = (2, 4, 8, 16)
RESIDENT = (2, 3, 4, 6)
SIDE = (1, 2)
WIDE = 64  # elements: with fewer, threads that have two leave half of a warp without any
REGISTERS = 48  # of a thread, for values on their way
SHARED_BYTES = 48 << 10  # of a block, for what its warps do to states, twice


@template("vector_scan_cuda", kinds=("recurrence",), targets=("cuda",), version=3)
class VectorScanCuda:
    """Knobs: warps (of a block), ahead (steps of a warp in a round), resident (blocks that all chunks together have on
    each multiprocessor), side (elements of a thread, side by side: two share the instructions that find and move
    them)."""

    @staticmethod
    def configure(unit: Unit, target: Target, knob: Knobs) -> Config:
        """As many steps ahead as registers allow: `stages` values are read in each. As many warps as shared memory
        holds matrices and vectors of `gates` states for."""
        words = 2 if unit.dtype == "float64" else 1
        fitting = [a for a in AHEAD if a <= 8 and a * words * max(1, unit.stages) <= REGISTERS]
        both = unit.dtype != "float64" and unit.gates == 1 and unit.width >= WIDE and unit.width % 2 == 0
        side = knob("side", SIDE, 2 if both else 1)
        each = side * 2 * 32 * 4 * words * (1 + unit.gates * (unit.gates + 1))
        warps = [n for n in WARPS if n == 1 or n * each <= SHARED_BYTES]
        return {
            "warps": knob("warps", warps, max(n for n in warps if n <= 8)),
            "ahead": knob("ahead", AHEAD, max(fitting, default=AHEAD[0])),
            "resident": knob("resident", RESIDENT, 2 if side > 1 else 3),
            "side": side,
        }

    @staticmethod
    def schedule(sch: object, unit: Unit, config: Config) -> None:
        """Nothing: the kernels are written for a configuration, not scheduled."""

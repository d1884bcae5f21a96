"""Linear recurrences of vectors in chunks of time, for cells such as minGRU, RG-LRU and S5.

In: a recurrence and a GPU. Out: knob values, from which `tvm_rnn.cuda.linear.vector_scan` writes kernels. A thread has
one element in one chunk; chunks are as many as fill the GPU, whatever T and B are.

Rewrite: for t: h = a h + b  -->  for chunk: what it does to any h; for chunk: h from those before; for t: h = a h + b

Source: Blelloch 1990, "Prefix sums and their applications".
"""

from tvm_rnn.schedule.schedule_template import Config, Knobs, Unit, template
from tvm_rnn.target import Target

THREADS = (64, 128, 256)
AHEAD = (2, 4, 8, 16)
RESIDENT = (512, 1024, 2048)
REGISTERS = 48  # of a thread, for values on their way


@template("vector_scan_cuda", kinds=("recurrence",), targets=("cuda",))
class VectorScanCuda:
    """Knobs: threads (of a block), ahead (steps whose operands are loaded at once), resident (threads that all chunks
    together have on each multiprocessor).

    Measured on an H200, minGRU of 512 units in bfloat16, T 16384, with its product: B = 1 95, 92 us for 16 and 8 steps
    ahead, 94, 95, 95 for 512, 1024 and 2048 threads; B = 8 487, 472, and 625, 487, 497.
    """

    @staticmethod
    def configure(unit: Unit, target: Target, knob: Knobs) -> Config:
        """As many steps ahead as registers allow: `stages` values are read in each."""
        words = (2 if unit.dtype == "float64" else 1) * max(1, unit.stages)
        fitting = [a for a in AHEAD if a <= 8 and a * words <= REGISTERS]
        return {
            "threads": knob("threads", THREADS, 128),
            "ahead": knob("ahead", AHEAD, max(fitting, default=AHEAD[0])),
            "resident": knob("resident", RESIDENT, 1024),
        }

    @staticmethod
    def schedule(sch: object, unit: Unit, config: Config) -> None:
        """Nothing: the kernels are written for a configuration, not scheduled."""

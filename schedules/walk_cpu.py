"""How a CPU walks layers and time: how many rows of a tile go through all layers at once, and which comes first.

In: what a row of the network stores between the product with its inputs and its steps. Out: rows (steps x batch) of a
tile, and the order. Small tiles stay in a cache; in large ones the input's weights are read less often, which counts
where they are larger than a cache.

Rewrite: for layer: for t in T: step   -->   for tile in T/n: for layer: for t in n: step
"""

from tvm_rnn.decisions import tell
from tvm_rnn.schedule.schedule_template import Config, Knobs, Unit, template
from tvm_rnn.target import Target

MIN_ROWS, MAX_ROWS = 32, 512  # of the default: below, the product runs short of rows; above, little is gained
MOST_ROWS, MOST_BYTES = 8192, 64 << 20  # of any choice, and of what its tile stores
EVEN_ROWS = 48  # of tiles that threads share: for two of them whole vectors, and whole tiles of 2, 3 and 6 rows
# Backward graphs read and write the sums of weights' gradients once per tile: two LSTM layers, H = 512, B = 16, T = 96
# on one thread of Zen 5 took 266 ms with 32 rows, 183 with 128, 157 with 256, 156 with 512.
BACKWARD_ROWS = 256
# The input's weights are read once per tile. LSTM, H = 1024 (16 MB), B = 16, two threads of Zen 5: 1316 us per step
# with 32 rows, 927 with 256, 854 with 1024; with H = 512 (4 MB) all are the same. With a slower level-3 cache they
# count sooner: GRU, H = 786 (7 MB), B = 18, one thread of Ice Lake: 2446 with 33 rows, 1566 with 512; LSTM, I = 1350,
# H = 182 (4 MB), B = 16: 441 and 348.
BYTES = {"float32": 4, "float64": 8}


@template("walk_cpu", kinds=("walk",), targets=("llvm",))
class WalkCpu:
    """Knobs: rows (of a tile, at least one step); layers_first (each layer over all of T before the next one)."""

    @staticmethod
    def configure(unit: Unit, target: Target, knob: Knobs) -> Config:
        """Tiles that fit half of the level-2 cache, backwards BACKWARD_ROWS if that is more, MAX_ROWS where the input's
        weights are too large for caches; time outside, layers inside, where there is one direction. Without steps a
        tile fits two whole caches: threads share its rows, and wait for one another several times in each."""
        bytes_per_row = (unit.width + sum(unit.depths)) * BYTES[unit.dtype]
        heavy = unit.width * unit.depths[0] * BYTES[unit.dtype] > target.l2_bytes
        least = BACKWARD_ROWS if unit.region == "backward" else MAX_ROWS if heavy else 0
        least = min(least, MOST_BYTES // bytes_per_row)
        part, cache = ("twice ", target.l2_bytes * 2) if unit.stages else ("half of ", target.l2_bytes // 2)
        default = max(MIN_ROWS, least, min(MAX_ROWS, cache // bytes_per_row))
        if unit.stages:
            default = max(MIN_ROWS, default - default % EVEN_ROWS)
        size = f"a row is {bytes_per_row} bytes"
        why = f"{part}the level-2 cache, {cache} bytes, holds {cache // bytes_per_row} rows: {size}"
        if default == least:
            what = "weights larger than caches" if heavy else "sums of gradients"
            why = f"{what} are read once per tile, so {least} at least; {size}"
        elif default == MIN_ROWS:
            why = f"{why}; {MIN_ROWS} is the least: below, products run short of rows"
        tell(True, f"by default {default} rows per tile", why, bytes_per_row=bytes_per_row, cache_bytes=cache)
        most = max(default, min(MOST_ROWS, MOST_BYTES // bytes_per_row))
        # Below two steps of the largest batch all sizes are one step; what the default is, is always a choice.
        sizes = [r for r in (1 << i for i in range(14)) if max(16, 2 * max(unit.batches, default=1)) <= r <= most]
        several, both = unit.region == "layers", unit.gates > 1
        return {
            "rows": knob("rows", [default, *sizes], default),
            "layers_first": knob("layers_first", (1,) if both else (0, 1) if several else (0,), int(both)),
        }

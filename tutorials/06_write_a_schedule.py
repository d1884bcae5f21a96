# %% [markdown]
# # 6. Write a schedule template
#
# In this tutorial you will write a template: one file that says how a product becomes machine code on a CPU, with a
# knob that tvm_rnn's own does not have. The compiler will find it, every cell will use it, `tune` will search its knob,
# and the result will stay right, because a template cannot change what is computed.

# %%
import os
import tempfile
from pathlib import Path

import numpy as np
from tvm import te
from tvm.s_tir import Schedule

import tvm_rnn as rnn
from tvm_rnn.passes import pipeline
from tvm_rnn.schedule import Knobs, Unit, space, templates
from tvm_rnn.target import resolve

# %% [markdown]
# ## A tile, and who does what
#
# The loops over time, batch rows and units are the compiler's. A template gets the sums of a tile inside of them, of
# fixed size: `rows` batch rows by `panels` vectors of units. They are a TVM schedule whose blocks have the same names
# for every cell: `product_0`, `product_1`, ... have the axes row, panel, gate, lane and k. Whatever legal
# transformation is made of them, the tile computes the same sums. The templates that come with tvm_rnn have no
# `schedule`: then k is the outer loop, lanes are a vector, and everything else is unrolled.
#
# ## A template in three parts
#
# A class with two static functions. `configure` asks for each knob by name, with the legal values and a default, and
# returns the configuration: the same function gives the defaults, the search space, and the replay of a record. What
# would not fit the machine is left out of the values. `schedule` transforms the tile. The decorator's name, kinds and
# targets say what the template is for; `version` is raised when a knob comes to mean something else.
#
# The knob here is `unroll`: how many k are taken in one round of the innermost loop. Values that do not divide every
# depth are no choices, so no tile needs code for what is left over.

# %%
SOURCE = '''
"""Products on the CPU with several k in each round of the loop.

Rewrite: for k in K: c += a[k] b[k]  -->  for k in K / unroll: c += a[k] b[k]; c += a[k + 1] b[k + 1]; ...
"""

from tvm_rnn.schedule import template


@template("gemm_unrolled_cpu", kinds=("gemm",), targets=("llvm",), version=1)
class GemmUnrolled:
    """Knobs: rows (batch rows of a tile); unroll (k per round)."""

    @staticmethod
    def configure(unit, target, knob):
        registers = target.vector_registers * 3 // 4  # the rest: weights, and a broadcast
        fitting = [rows for rows in (2, 3, 4, 6, 8) if rows * unit.gates <= registers] or [1]
        divisors = [u for u in (1, 2, 4, 8) if all(depth % u == 0 for depth in unit.depths)]
        return {
            "rows": knob("rows", fitting, max(fitting)),
            "panels": 1,
            "unroll": knob("unroll", divisors, max(divisors)),
        }

    @staticmethod
    def schedule(sch, unit, config):
        for number in range(len(unit.depths)):
            name = f"product_{number}"
            row, panel, gate, lane, k = sch.get_loops(name)
            outer, inner = sch.split(k, [None, config["unroll"]])
            sch.reorder(outer, inner, row, panel, gate, lane)
            sch.vectorize(lane)
            for loop in (inner, row, panel, gate):
                sch.unroll(loop)
            sch.decompose_reduction(name, outer)
'''
folder = Path(tempfile.mkdtemp())
(folder / "gemm_unrolled_cpu.py").write_text(SOURCE)

# %% [markdown]
# ## The compiler finds it
#
# Templates are found in the folders that TVM_RNN_SCHEDULES names, after tvm_rnn's own; of several that fit a unit, the
# last found gives the defaults, and records may name any of them. Nothing else has to be said anywhere.

# %%
os.environ["TVM_RNN_SCHEDULES"] = os.pathsep.join(filter(None, [os.environ.get("TVM_RNN_SCHEDULES"), str(folder)]))
machine = resolve("llvm")
print(*templates())
mine = templates()["gemm_unrolled_cpu"]
for depth in (96, 90, 7):
    unit = Unit("gemm", "step", "float32", gates=4, width=96, depths=(depth,), batches=(8,))
    asked = Knobs()
    defaults = mine.configure(unit, machine, asked)
    print(f"K={depth}: {defaults}, of {asked.space}: {len(list(space(mine, unit, machine)))} ways")

# %% [markdown]
# ## Every cell uses it
#
# The oracle does not know about templates: what it computes is what the equations say. Odd sizes are the ones to try.

# %%
rng = np.random.default_rng(0)
for cell, hidden in (("lstm", 96), ("gru_reset_before", 33), ("lstm_projection", 7)):
    sizes = {"P": 5} if cell == "lstm_projection" else {}
    net = rnn.RNN(rnn.cells.get(cell), 24, hidden, **sizes).init(seed=0)
    mod = rnn.compile(net, records="none")
    used = {row["template"] for row in mod.manifest.templates if " gemm " in row["unit"]}
    assert used == {"gemm_unrolled_cpu"}, used
    for batch in (1, 3, 16):
        x = rng.normal(size=(9, batch, 24)).astype(np.float32)
        error = np.abs(mod(x)[0] - rnn.reference(net)(x)[0]).max()
        assert error < 1e-5
        print(f"{cell:<18}H={hidden:<4}B={batch:<4}largest error {error:.1e}")

# %% [markdown]
# ## Look at what it makes
#
# The same transformations can be tried alone, on a product of the same shape, and printed: this is how a template is
# written in the first place. `tvm-rnn show CELL --stage tir` and `--stage asm` show them in a whole step.

# %%
a, b = te.placeholder((2, 8), name="a"), te.placeholder((1, 2, 16, 8), name="b")
k = te.reduce_axis((0, 8), "k")
c = te.compute((2, 1, 2, 16), lambda r, p, g, n: te.sum(a[r, k] * b[p, g, n, k], k), name="product_0")
sch = Schedule(te.create_prim_func([a, b, c]))
tile = Unit("gemm", "step", "float32", gates=2, width=16, depths=(8,))
mine.schedule(sch, tile, {"rows": 2, "panels": 1, "unroll": 4})
text = sch.mod.script()
print(*(line for line in text.splitlines() if "range" in line or "unroll" in line or "vectorized" in line), sep="\n")
assert text.count("T.unroll(") >= 4 and "T.vectorized(" in text

# %% [markdown]
# ## Tune its knob
#
# A template's knobs are searched like those that come with tvm_rnn, and a record names the template that won: `tune`
# tries ours and yours. Another function, `predict(unit, config, target)`, may say in microseconds what to try first;
# `every(unit, target)` enumerates configurations where combinations of all values would be too many.

# %%
net = rnn.RNN(rnn.cells.lstm, 24, 96).init(seed=0)
(record,) = rnn.tune(net, steps=30, batch=4, trials=16, seconds=20, records=folder / "records")
print(f"{record.name}: {record.gain:.2f} x the defaults")
for choice in record.choices:
    print(f"  {choice.template:<20}{choice.knobs}")

# %% [markdown]
# ## On a GPU
#
# There a template's unit is a whole loop over time, and its knobs are a geometry: blocks, warps, what is kept where.
# `pipeline.run(net, target)` gives the graph with its groups and phases, from which both kinds of units are made.

# %%
_, layers = pipeline.run(net, machine)[-1]
for group in layers.graphs[0].groups:
    print(f"  {group.region:<8}phase {group.phase}  {group.kind:<10}{len(group.nodes)} operations")

# %% [markdown]
# ## What to read next
#
# `schedules/gemm_cpu.py`: the template that you replaced; `schedules/persistent_cluster_cuda.py`: one for GPUs.
# `tvm_rnn/schedule/schedule_template.py` defines templates, knobs and units; `tvm_rnn/cpu/register_tile.py` makes the
# tile that a template gets.

# %% [markdown]
# # 5. Tune for your machine
#
# In this tutorial you will let this machine choose the parameters of a cell's compiled code: see what there is to
# choose, search it by measurement, read the record that comes out, compile with it, and let a cell with other equations
# profit from it. At the end are the commands for a GPU that is elsewhere.

# %%
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import tvm_rnn as rnn
from tvm_rnn import cli
from tvm_rnn.schedule import Unit, space
from tvm_rnn.target import resolve
from tvm_rnn.tune.workload import able

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## A workload
#
# Tuning is for one network, one number of steps and one batch size: what is fastest for one row is slow for sixty-four.
# The result is right for all others too; it is only not chosen for them.


# %%
@rnn.cell
def minimal(x: "I", h: "H", *, W: "2 H I", R: "2 H H", b: "2 H"):
    """A gate that says how much of the state is kept, and a candidate for the rest."""
    forget = rnn.sigmoid(W[0] @ x + R[0] @ h + b[0])
    return forget * h + (1 - forget) * rnn.tanh(W[1] @ x + R[1] @ h + b[1])


inputs, units, T, B = 64, 96, 40, 8
net = rnn.RNN(minimal, inputs, units).init(seed=0)
x = np.random.default_rng(0).normal(size=(T, B, inputs)).astype(np.float32)

# %% [markdown]
# ## What there is to choose
#
# A compiled network is made of units: the product with all of x, the product of a step, the walk over layers and time.
# A template schedules a unit, and asks for its knobs by name; each has a default and other legal values. The manifest
# says what each unit got. `space` enumerates what it could have got: what would not fit the registers is not in it.

# %%
mod = rnn.compile(net, batch=B, records="none")
for row in mod.manifest.templates:
    print(f"{row['unit']:<28}{row['template']:<10}{row['knobs']}  ({row['record']})")
machine = resolve("llvm")
step = Unit("gemm", "step", "float32", gates=2, width=units, depths=(units,), batches=(B,))
(template,) = able(step, machine)
choices = list(space(template, step, machine))
print(f"{template.name}: {len(choices)} ways to schedule the step's product; the first is the default")
assert choices[0] == mod.manifest.templates[1]["knobs"]

# %% [markdown]
# ## Search
#
# `tune` compiles candidates side by side, compares each with the float64 oracle, and times it in turns with the
# defaults; a candidate that crashes, hangs or computes something else is noted and never wins. The search is guided by
# what was measured so far. 24 trials suffice to see it work; 200, the default, or `seconds=120` are for real use.
# `tvm-rnn tune` is the same on the command line, with a live display and `--plot search.svg`.

# %%
(record,) = rnn.tune(net, steps=T, batch=B, trials=24, seconds=25, records=folder)
print(f"{record.name}: {record.median_us:.1f} us, by default {record.default_us:.1f}: {record.gain:.2f} x")
assert record.gain >= 1

# %% [markdown]
# What is not surely faster than the defaults is not recorded as if it were: then the gain is 1.00, and the record says
# that the defaults stay. Ctrl-C keeps what was found; after `kill -9` the same command goes on from the journal.
#
# ## The record
#
# One line of JSON per workload, in a folder per kind of machine: text to read, to check in, to send to a colleague.

# %%
for file in sorted(folder.glob("*/*.jsonl")):
    print(file.relative_to(folder), "-", len(file.read_text().splitlines()) - 1, "record")
for choice in record.choices:
    print(f"  {choice.unit['shape'][:2]}  {choice.template}: {choice.knobs}")

# %% [markdown]
# ## Compile with it
#
# `compile` looks for records in your own folder, where `tune` writes when it is given none, in those that ship with
# tvm_rnn, and in what `records=` or TVM_RNN_RECORDS name. The manifest says which record each unit used, and
# `tvm-rnn inspect FILE` prints it.

# %%
tuned = rnn.compile(net, batch=B, records=folder)
for row in tuned.manifest.templates:
    print(f"{row['unit']:<28}{row['knobs']}  ({row['record']})")
assert np.abs(tuned(x)[0] - rnn.reference(net)(x)[0]).max() < 1e-5
seconds: dict[str, list[float]] = {"defaults": [], "tuned": []}
for _ in range(30):
    for name, one in (("defaults", mod), ("tuned", tuned)):
        started = time.perf_counter()
        one(x)
        seconds[name].append(time.perf_counter() - started)
print({name: f"{statistics.median(all_of) * 1e6:.0f} us" for name, all_of in seconds.items()})

# %% [markdown]
# ## Another cell of the same shape
#
# Nothing in a record names the cell. The cell below has other equations and the same products, so it finds the same
# record. Where sizes differ by less than a factor of two, the nearest record serves; beyond that, the defaults.


# %%
@rnn.cell
def leaky_gate(x: "I", h: "H", *, W: "2 H I", R: "2 H H", b: "2 H"):
    """A bounded state that leaks at a learned rate."""
    rate = rnn.sigmoid(W[0] @ x + R[0] @ h + b[0])
    return rnn.tanh(h - rate * h + (W[1] @ x + R[1] @ h + b[1]))


for size in (units, 80, 400):
    other = rnn.compile(rnn.RNN(leaky_gate, inputs, size).init(seed=0), batch=B, records=folder)
    (found,) = (row["record"] for row in other.manifest.templates if row["unit"].startswith("step gemm"))
    print(f"leaky_gate H={size}: {found}")
    assert found.startswith({units: "record: minimal", 80: "nearest record: minimal", 400: "default"}[size])

# %% [markdown]
# ## What is in a folder
#
# `tvm-rnn records` lists, compares with the defaults, merges folders and drops what no longer applies: a record of
# another version of a template, or of TVM, is passed over with a line that says so.

# %%
cli.app(["records", "--records", str(folder)], standalone_mode=False)

# %% [markdown]
# ## A GPU that is elsewhere
#
# Candidates are built here and measured there, where only Python, NumPy, PyTorch and this package's runtime need be:
#
#     tvm-rnn tune --suite gpu-grid --only lstm,h512,bf16 --plan candidates
#     tvm-rnn tune --measure candidates        (on the machine with the GPU)
#     tvm-rnn tune --collect candidates --records records

# %% [markdown]
# ## What to read next
#
# `06_write_a_schedule.py`: a template of your own, with knobs of your own, that `tune` searches like ours.
# `tvm_rnn/tune/search.py` says how candidates are proposed, `tvm_rnn/tune/cpu_builders.py` how they are measured.

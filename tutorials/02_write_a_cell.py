# %% [markdown]
# # 2. Write a cell
#
# In this tutorial you will invent a recurrent cell in five lines, see how a wrong one is refused, give a cell a second
# input, a matrix for a state and a depth, and see that two spellings of an LSTM become the same machine code. Every
# cell is checked against the oracle, which you need not write: it comes from the same equations.

# %%
from typing import Any

import numpy as np

import tvm_rnn as rnn
from tvm_rnn.compiler.stage_texts import stages
from tvm_rnn.oracle.tolerance import assert_close

# %% [markdown]
# ## Five lines
#
# A cell is a function of one step. Annotations are dims: I and H are axes that get sizes later, numbers are fixed, ""
# is a scalar. Positional arguments are inputs and states, arguments after the `*` are learned. What is returned is the
# new state. This one is a leaky integrator in which every unit learns how fast it leaks.


# %%
@rnn.cell
def leaky(x: "I", h: "H", *, W: "H I", R: "H H", b: "H", rate: "H"):
    """Units that move towards tanh(W x + R h + b), each at its own rate."""
    a = rnn.sigmoid(rate)
    return h + a * (rnn.tanh(W @ x + R @ h + b) - h)


def compile_and_check(net: rnn.RNN, **inputs: Any) -> rnn.Module:
    """Compile `net`, and compare what it does with the oracle: y and every state, by the tolerance of the tests."""
    mod = rnn.compile(net)
    result, expected = mod(inputs), rnn.reference(net)(inputs)
    y, _ = result
    assert_close(result, expected, net.dtype, len(y))
    print(f"{net.cell.name}: y {y.shape} is the oracle's; states", {k: v.shape for k, v in result[1].items()})
    return mod


rng = np.random.default_rng(0)
x = rng.normal(size=(50, 4, 8)).astype(np.float32)
mod = compile_and_check(rnn.RNN(leaky, input_size=8, hidden_size=32).init(seed=0), x=x)

# %% [markdown]
# The function runs once, with values that record what is done to them. So Python's `for`, helper functions and local
# names are all at your service; `if` on a value is not, `rnn.where(condition, a, b)` is. The functions are NumPy's by
# name where NumPy has them: `rnn.exp`, `rnn.maximum`, `rnn.einsum`, `rnn.softmax`, `rnn.layer_norm`, and so on.
#
# ## A wrong cell
#
# An error names your file and line, what was found, and what would fit. Here a matrix meets a vector of another size.


# %%
@rnn.cell
def wrong(x: "I", h: "H", *, W: "H I", R: "H H"):
    return rnn.tanh(W @ x + R @ x)


try:
    rnn.RNN(wrong, input_size=8, hidden_size=32)
except rnn.CellError as error:
    print(error)
else:
    raise AssertionError("this cell must be refused")

# %% [markdown]
# ## A second input
#
# Any positional argument that is not a state is an input of every step. With the time that has passed since the last
# step, the leaky integrator fits measurements that come at uneven times.


# %%
@rnn.cell
def leaky_in_time(x: "I", dt: "1", h: "H", *, W: "H I", R: "H H", b: "H", rate: "H"):
    """As `leaky`, with the share that leaks in a time dt."""
    a = 1 - rnn.exp(-dt * rnn.softplus(rate))
    return h + a * (rnn.tanh(W @ x + R @ h + b) - h)


dt = rng.exponential(size=(50, 4, 1)).astype(np.float32)
mod = compile_and_check(rnn.RNN(leaky_in_time, input_size=8, hidden_size=32).init(seed=0), x=x, dt=dt)
y, state = mod((x, dt))  # the same call: a tuple in the order of the arguments; or mod(x, dt=dt)

# %% [markdown]
# ## A matrix for a state
#
# A state may have any shape, and the output need not be a state: `output` names a value that is returned after the
# states. This memory stores value-key pairs as a sum of outer products, and a query reads it.


# %%
@rnn.cell(states="M", output="y")
def memory(x: "I", M: "H H", *, W: "3 H I", decay: ""):
    """Linear attention with one decay, as a recurrence. Order of W: key, value, query."""
    k, v, q = W @ x
    M = rnn.sigmoid(decay) * M + rnn.outer(v, k)
    return M, M @ q


mod = compile_and_check(rnn.RNN(memory, input_size=8, hidden_size=16).init(seed=0), x=x)

# %% [markdown]
# ## Depth as a size
#
# An axis can have any name, and a Python loop can run over it. `depth` gets its number from `RNN`, as H does.


# %%
@rnn.cell
def deep(x: "I", h: "H", *, W: "H I", R: "depth H H", b: "depth H"):
    """A transition of several layers within one step."""
    h = h + W @ x
    for R_l, b_l in zip(R, b, strict=True):
        h = rnn.tanh(R_l @ h + b_l)
    return h


mod = compile_and_check(rnn.RNN(deep, input_size=8, hidden_size=32, depth=3).init(seed=0), x=x)

# %% [markdown]
# ## Write it as you like
#
# The zoo's LSTM has its gates on an axis of W, R and b. This one has a matrix per gate, as papers write it. You never
# need to pack matrices by hand: the pass `combine_gemms` finds the products that can be one. Of the shared object's
# function that runs a sequence, every instruction is the same.


# %%
@rnn.cell(states="h c")
def spelled_out(
    x: "I",
    h: "H",
    c: "H",
    *,
    W_i: "H I",
    R_i: "H H",
    b_i: "H",
    W_f: "H I",
    R_f: "H H",
    b_f: "H",
    W_g: "H I",
    R_g: "H H",
    b_g: "H",
    W_o: "H I",
    R_o: "H H",
    b_o: "H",
):
    i = rnn.sigmoid(W_i @ x + R_i @ h + b_i)
    f = rnn.sigmoid(W_f @ x + R_f @ h + b_f)
    g = rnn.tanh(W_g @ x + R_g @ h + b_g)
    o = rnn.sigmoid(W_o @ x + R_o @ h + b_o)
    c = f * c + i * g
    return o * rnn.tanh(c), c


def instructions(cell: rnn.Cell) -> list[str]:
    """The names of the instructions of the compiled sequence, in order."""
    assembly = dict(stages(rnn.RNN(cell, input_size=8, hidden_size=32)))["asm"]
    body = assembly.split("\nsequence_compute_:")[1].split(".Lfunc_end")[0]
    return [line.split()[0] for line in body.splitlines() if line.startswith("\t") and not line.startswith("\t.")]


packed, unpacked = instructions(rnn.cells.lstm), instructions(spelled_out)
assert packed == unpacked
print(f"both LSTMs: the same {len(packed)} instructions")

# %% [markdown]
# ## NaN
#
# What the equations say about NaN and infinity holds in compiled code too. A NaN in one row of a batch stays in that
# row, and the oracle agrees on where it is.

# %%
net = rnn.RNN(leaky, input_size=8, hidden_size=32).init(seed=0)
x[20, 1, 0] = np.nan
y, _ = compile_and_check(net, x=x)(x)
assert np.isnan(y[20:, 1]).all()
assert np.isfinite(y[:20]).all() and np.isfinite(y[:, [0, 2, 3]]).all()
print("NaN in row 1 from step 20 on, and nowhere else")

# %% [markdown]
# ## What to read next
#
# `03_watch_the_passes.py`: what the compiler makes of a cell, stage by stage. The zoo, `tvm_rnn/cells`, is more than
# forty cells written this way, each with its paper; `tvm-rnn cells` lists them. A cell in a file of your own compiles
# from a shell: `tvm-rnn compile mine.py:leaky -o leaky.so --input-size 8 --hidden-size 32 --seed 0`.

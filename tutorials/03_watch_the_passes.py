# %% [markdown]
# # 3. Watch the passes
#
# In this tutorial you will look at a cell on its way to machine code: the graph as traced, what each pass
# does to it, a second phase in a GRU, what a pass that is switched off costs, and the equations as TVM tensor
# expressions. Everything here is text that you can print at any point.

# %%
import statistics
import time

import numpy as np

import tvm_rnn as rnn
from tvm_rnn import cli
from tvm_rnn.compiler.stage_texts import stages as stages_of
from tvm_rnn.graph.tensor_expressions import text
from tvm_rnn.options import PASS_NAMES
from tvm_rnn.passes import pipeline
from tvm_rnn.target import resolve

# %% [markdown] ## One line, from the equations to the file  `tvm-rnn show SPEC --stage NAME` prints a stage; SPEC is a
# cell of the zoo or `file.py:function`. In Python, `tvm_rnn.compiler.stage_texts.stages` gives all of them. `trace` is
# the equations, `normalise` splits packed matrices into single products; then come the passes, then TVM: `te`, `tir`,
# `llvm` and `asm`.

# %%
net = rnn.RNN(rnn.cells.lstm, input_size=8, hidden_size=16)
stages = dict(stages_of(net))
for name, lines in stages.items():
    print(f"{name:<22}{len(lines.splitlines()):6} lines")


def show(*words: str) -> None:
    """Run `tvm-rnn show` here, as a shell would."""
    print("$ tvm-rnn show", *words)
    cli.app(["show", *words], standalone_mode=False)


# %% [markdown]
# ## The equations
#
# Everything is in the region `step`: inside the loop over time.

# %%
show("lstm", "--stage", "trace")

# %% [markdown]
# ## hoist_gemms
#
# What reads only inputs and parameters need not wait for the state. It moves to the region `before`, where all T steps
# are one product: a matrix times a matrix, in place of T times a matrix times a vector per row. Shapes there begin with
# T. It must come first: once two products are one, they can only move together.

# %%
show("lstm", "--stage", "hoist_gemms")
assert "before  -" in stages["trace"] and "before  -" not in stages["hoist_gemms"]

# %% [markdown]
# ## combine_gemms
#
# Products of one level that read the same vector become one, with a gate axis: four of x in `before`, four of h in
# `step`. Gates that feed gates are on another level and stay apart.

# %%
before, after = (stages[name].count("gemm(") for name in ("hoist_gemms", "combine_gemms"))
print(f"products: {before} before combine_gemms, {after} after it")
assert (before, after) == (8, 2)

# %% [markdown]
# ## fuse_pointwise, tile_layers_and_time
#
# What is left between products becomes groups: each product with the pointwise work that can run on its results while
# they are in registers. Only values with a `*` are ever stored. The last pass decides how time and layers are walked:
# a tile of steps goes through all layers while its values are in cache. This is what is compiled:

# %%
show("lstm", "--stage", "tile_layers_and_time")
assert "step 2" not in stages["tile_layers_and_time"]

# %% [markdown]
# ## Two phases
#
# In a GRU with the reset gate before the product, one product needs the result of another. The step has two phases, one
# after the other; the GRU of PyTorch, with the reset gate after the product, has one. `pipeline.run` gives the graphs
# themselves, without compiling anything.

# %%
show("gru_reset_before", "--stage", "tile_layers_and_time")
for cell in (rnn.cells.gru, rnn.cells.gru_reset_before):
    _, layers = pipeline.run(rnn.RNN(cell, 8, 16), resolve("llvm"))[-1]
    print(f"{cell.name}: {max(group.phase for group in layers.graphs[0].groups)} phase(s)")

# %% [markdown]
# ## What a pass is worth
#
# Each pass can be switched off by name: `without=` here, `--without` on the command line. The module stays correct.
# `fuse_pointwise` and `tile_layers_and_time` also decide what later stages need, so off means their plain form: a group
# per operation, all of T in one tile. The times are of one machine and one size: small layers and one row, where most
# passes show. With many rows or large layers most of the time is in the products of h, which no pass makes smaller.

# %%
net = rnn.RNN(rnn.cells.lstm, input_size=64, hidden_size=32, num_layers=3).init(seed=0)
x = np.random.default_rng(0).normal(size=(200, 1, 64)).astype(np.float32)
expected, _ = rnn.reference(net)(x)
modules = {"all passes": rnn.compile(net)}
for name in PASS_NAMES:
    modules[f"without {name}"] = rnn.compile(net, without=[name])
seconds: dict[str, list[float]] = {name: [] for name in modules}
for mod in modules.values():
    mod.threads = 1
    assert np.abs(mod(x)[0] - expected).max() < 1e-5
for _ in range(15):  # rounds in turn, so that a busy moment of the machine hits all alike
    for name, mod in modules.items():
        started = time.perf_counter()
        mod(x)
        seconds[name].append(time.perf_counter() - started)
base = statistics.median(seconds["all passes"])
for name, found in seconds.items():
    median = statistics.median(found)
    print(f"{name:<32}{median / len(x) * 1e6:7.2f} us per step   {median / base:4.2f} x")

# %% [markdown]
# ## As TVM tensor expressions
#
# `rnn.te` gives one step of a cell as `te.Tensor`s, one `te.compute` per operation, for everything else that TVM can do
# with them. `text` prints them as TVM does; `tvm-rnn show elman --stage te` is the same.

# %%
(h,) = rnn.te(rnn.cells.elman, {"I": 8, "H": 16}, batch=2)
assert tuple(h.shape) == (2, 16)
print(text([h]))

# %% [markdown]
# ## What to read next
#
# `04_compile_for_a_gpu.py`: the same cells on a GPU. `tvm_rnn/passes`: each pass is one file whose docstring says what
# it rewrites to what. `tvm_rnn/passes/pipeline.py` puts them in order and says why. `tvm-rnn compile ... --dump DIR`
# writes every stage of a compilation to a folder.

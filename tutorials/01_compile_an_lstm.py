# %% [markdown]
# # 1. Compile an LSTM
#
# In this tutorial you will compile an LSTM for this machine's CPU, call it on whole sequences and step by step, write
# it to a file, load that file in a process that has no compiler, run batches of unequal lengths, and take weights from
# PyTorch. You need nothing but tvm_rnn; the last part is skipped where PyTorch is not installed.

# %%
import subprocess
import sys
import tempfile

import numpy as np

import tvm_rnn as rnn

# %% [markdown]
# ## A network
#
# A *cell* holds the equations of one step. An `RNN` is a cell over time: it binds the axes of the equations to sizes,
# and it has layers, directions, a dtype and weights. `init` draws weights as PyTorch does; the same seed gives the
# same weights. Gates are always an axis: `W_l0` is [4, H, I], in the order i, f, g, o.

# %%
net = rnn.RNN(rnn.cells.lstm, input_size=64, hidden_size=256, num_layers=2)
net.init(seed=0)
print(net)
for name, shape in net.weight_shapes.items():
    print(f"  {name:<6} {list(shape)}")

# %% [markdown]
# ## Compile and call
#
# `compile` returns a `Module`, already loaded. Its input is time-major: [T, B, I], T steps of B rows, as PyTorch has it
# without `batch_first=True`, which `RNN` takes too. T and B are not compiled in. `batch` names the batch sizes to
# optimise for; all others work too.

# %%
mod = rnn.compile(net, batch=[1, 16])
x = np.random.default_rng(0).normal(size=(100, 16, 64)).astype(np.float32)
y, state = mod(x)
print("y", y.shape, "  state", {name: value.shape for name, value in state.items()})

# %% [markdown]
# Is it right? `reference` is the oracle: the same equations in NumPy float64, called the same way.

# %%
expected, expected_state = rnn.reference(net)(x)
error = np.abs(y - expected).max()
print(f"largest difference from the oracle: {error:.1e}")
assert error < 1e-5

# %% [markdown]
# ## State
#
# A state is a dict of arrays [L*D, B, width], in PyTorch's order of layers and directions, and unpacks as PyTorch's
# tuples do: `h, c = state`. Give it back to continue where a call ended: two halves are the same as the whole.

# %%
first, halfway = mod(x[:50])
second, end = mod(x[50:], halfway)
assert np.allclose(np.concatenate([first, second]), y, atol=1e-6)
assert np.allclose(end["c"], state["c"], atol=1e-6)
print("two halves are the whole")

# %% [markdown]
# ## One step at a time
#
# Where inputs arrive one by one, `step` takes [B, I] and gives [B, H]. It is the same compiled code with T = 1.

# %%
now = mod.init_state(batch=1)
for x_t in x[:, :1]:
    y_t, now = mod.step(x_t, now)
error = np.abs(y_t - expected[-1, :1]).max()
print(f"after {len(x)} single steps: {error:.1e} from the oracle")
assert error < 1e-5

# %% [markdown]
# ## Rows of unequal length, and restarts
#
# `lengths` gives each row its number of steps, in any order: after its last step a row's state stays as it is, and its
# output is 0. `reset` starts a row again from the initial state before the steps where it is true, which is how several
# short sequences share one long row.

# %%
lengths = np.full(16, 100)
lengths[3] = 40
y_ragged, state_ragged = mod(x, lengths=lengths)
assert not y_ragged[40:, 3].any()
assert np.allclose(state_ragged["h"][-1, 3], y[39, 3], atol=1e-5)

reset = np.zeros((100, 16), bool)
reset[50] = True
y_restarted, _ = mod(x, reset=reset)
assert np.allclose(y_restarted[50:], mod(x[50:])[0], atol=1e-5)
print("row 3 stops after 40 steps; a reset at step 50 forgets what was before")

# %% [markdown]
# ## A file, and a process without the compiler
#
# `export` writes one shared object: machine code, weights, and a manifest that says what is in it. To load it, a
# process needs numpy and tvm_ffi. The one file `tvm_rnn/runtime/runtime.py`, copied beside the .so, does the same where
# tvm_rnn is not installed; the demo does that. `load` refuses a file that is damaged or that needs another CPU, before
# any of its code runs.

# %%
program = """
import sys, numpy, tvm_rnn
mod = tvm_rnn.load("lstm.so")
y, state = mod(numpy.load("x.npy"))
print("a second process:", y.shape, "compiler imported:", "tvm" in sys.modules)
numpy.save("y.npy", y)
"""
with tempfile.TemporaryDirectory() as folder:
    mod.export(f"{folder}/lstm.so")
    np.save(f"{folder}/x.npy", x)
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True)
    assert np.allclose(np.load(f"{folder}/y.npy"), y, atol=1e-6)
print("made for", mod.manifest.target.mcpu, "with the passes", ", ".join(mod.manifest.passes))

# %% [markdown]
# ## Weights from PyTorch
#
# A module can be compiled before there are weights, and given new ones at any time: `load_weights` takes a dict or a
# .safetensors file. PyTorch keeps the gates of a matrix stacked, [4*H, I], and has two biases that are only ever added
# up. So the change is a reshape and a sum. `rnn.from_torch(layer)` makes it for you; here it is by hand.

# %%
try:
    import torch
except ImportError:
    torch = None
    print("PyTorch is not installed: its weights are skipped")

if torch is not None:
    layer = torch.nn.LSTM(64, 256, num_layers=2)
    tensors = {name: value.detach().numpy() for name, value in layer.named_parameters()}
    weights = {}
    for number in range(2):
        end = f"_l{number}"
        weights[f"W{end}"] = tensors[f"weight_ih{end}"].reshape(4, 256, -1)
        weights[f"R{end}"] = tensors[f"weight_hh{end}"].reshape(4, 256, -1)
        weights[f"b{end}"] = (tensors[f"bias_ih{end}"] + tensors[f"bias_hh{end}"]).reshape(4, 256)
    mod.load_weights(weights)
    tensor = torch.from_numpy(x)
    y_mod, state_mod = mod(tensor)  # arrays of any kind with DLPack; results are of the same kind
    with torch.no_grad():
        y_torch, (h_torch, c_torch) = layer(tensor)
    assert isinstance(y_mod, torch.Tensor)
    assert torch.allclose(y_mod, y_torch, atol=1e-5)
    assert torch.allclose(state_mod["c"], c_torch, atol=1e-5)
    print("with PyTorch's weights, the module's results are PyTorch's")

# %% [markdown]
# ## What to read next
#
# `02_write_a_cell.py`: a cell of your own, in five lines. `tvm-rnn compile --help` does this tutorial's work from a
# shell.

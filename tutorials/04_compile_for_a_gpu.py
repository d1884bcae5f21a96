# %% [markdown]
# # 4. Compile for a GPU
#
# In this tutorial you will compile an LSTM and a cell of your own for an NVIDIA H200, read what the compiler decided,
# look at the CUDA that it wrote, and, where there is such a GPU, run both on torch tensors without copies, in a CUDA
# graph, with rows of unequal length. Compiling needs a CUDA compiler (nvcc, or the package nvidia-cuda-nvrtc), but no
# GPU: everything up to "Run it" works on any machine.

# %%
import contextlib
import io
import tempfile
from typing import Any

import numpy as np

import tvm_rnn as rnn
from tvm_rnn import cli
from tvm_rnn.oracle.tolerance import assert_close

try:
    import torch
except ImportError:
    torch = None

# %% [markdown]
# ## A target
#
# `compile` takes the name of a GPU, or "cuda", which means the one at hand. The network's dtype says what x, y and the
# states are; float16 and bfloat16 use tensor cores, and keep the cell's state in float32 between steps. `batch` says
# for which batch sizes to choose a kernel; every other B and every T works too.

# %%
net = rnn.RNN(rnn.cells.lstm, input_size=64, hidden_size=256, dtype="bfloat16").init(seed=0)
mod = rnn.compile(net, target="nvidia-h200", batch=16)
print("made for", ", ".join(variant.arch for variant in mod.manifest.variants), "in", mod.manifest.precision)

# %% [markdown]
# ## What was decided
#
# The manifest says how each part of a step runs: the template, its knobs, and for the loop over time the predicted
# microseconds per step. `persistent_cluster_cuda` is one launch for all steps: the weights stay in the registers of a
# cluster of thread blocks, and the state goes from block to block through their shared memory. The gemm of region
# `before` is the product with all of x at once. The gemm of region `step` is what runs, one launch per step, where the
# persistent kernel cannot. `tvm-rnn inspect FILE` prints all of this.


# %%
def report(mod: Any) -> None:
    """The schedules of a module, and what its persistent kernels take of a multiprocessor."""
    (variant,) = mod.manifest.variants
    for row in variant.templates:
        time = f"   {row['predicted_us']} us per step, predicted" if "predicted_us" in row else ""
        print(f"  {row['unit']:<42}{row['template']}{time}")
    for kernel in variant.kernels:
        if kernel["kernel"].startswith("persistent"):
            print(f"  {kernel['kernel']:<42}{kernel['registers']} registers, {kernel['spill_bytes']} bytes spilled")


report(mod)
first = mod.manifest.variants[0].templates[0]
assert first["template"] == "persistent_cluster_cuda"
print("  one cluster:", first["knobs"]["ctas"], "blocks,", first["knobs"]["rows"], "rows of the batch")

# %% [markdown]
# ## A cell of your own
#
# No template knows an LSTM. This is the leaky integrator of tutorial 2, here in float32 with `precision="tf32"`:
# products on tensor cores with 10 bits of mantissa, everything else in float32. Without `precision` a float32 network
# is computed in float32 exactly, without tensor cores.


# %%
@rnn.cell
def leaky(x: "I", h: "H", *, W: "H I", R: "H H", b: "H", rate: "H"):
    """Units that move towards tanh(W x + R h + b), each at its own rate."""
    return h + rnn.sigmoid(rate) * (rnn.tanh(W @ x + R @ h + b) - h)


leaky_net = rnn.RNN(leaky, input_size=64, hidden_size=256).init(seed=0)
leaky_mod = rnn.compile(leaky_net, target="nvidia-h200", batch=16, precision="tf32")
report(leaky_mod)
assert any(row["template"].startswith("persistent") for row in leaky_mod.manifest.templates)

# %% [markdown]
# ## The CUDA
#
# GPUs have two stages of their own: `cuda`, the kernels, and `host`, the C++ that launches them. Both are generated:
# the kernels by TVM, from the graph that the passes of tutorial 3 leave.

# %%
words = ["lstm", "--stage", "cuda", "--target", "nvidia-h200", "--dtype", "bfloat16", "--batch", "16"]
print("$ tvm-rnn show", *words)
with contextlib.redirect_stdout(io.StringIO()) as shown:
    cli.app(["show", *words], standalone_mode=False)
lines = shown.getvalue().splitlines()
start = next(n for n, line in enumerate(lines) if "persistent" in line and line.endswith("{"))
print("...", *(line[:100] for line in lines[start : start + 6]), "...", sep="\n")
print(f"{len(lines)} lines, {shown.getvalue().count('__global__')} kernels, of which a call launches a few")

# %% [markdown]
# ## Run it
#
# A file for one arch runs on that kind of GPU; `load` refuses any other before it calls anything. One file can serve
# several: `arch=["sm_80", "sm_90a"]` compiles all kernels once for each, and the runtime takes what fits. The .so needs
# the GPU's driver and libtvm_ffi, and neither the CUDA toolkit nor TVM.

# %%
with tempfile.TemporaryDirectory() as folder:
    for name, module in (("lstm", mod), ("leaky", leaky_mod)):
        module.export(f"{folder}/{name}.so")
    try:
        mod, leaky_mod = (rnn.load(f"{folder}/{name}.so") for name in ("lstm", "leaky"))
        gpu = True
    except rnn.LoadError as reason:
        gpu = False
        print(reason)
        print("skipped: calls, torch without copies, CUDA graphs, lengths and resets")

# %% [markdown]
# NumPy in, NumPy out: the arrays are copied to the GPU and back. NumPy has no bfloat16; there float32 arrays are
# rounded on their way in.

# %%
T, B = 100, 16
x = np.random.default_rng(0).normal(size=(T, B, 64)).astype(np.float32)
if gpu:
    result = leaky_mod(x)
    assert_close(result, rnn.reference(leaky_net)(x), "tf32", T)
    print("leaky: y", result[0].shape, "is the oracle's within the tolerance of tf32")

# %% [markdown]
# ## torch, without copies
#
# A torch tensor on the GPU (or a cupy array, or anything with DLPack there) is read where it is, on the stream that is
# current. y, the new state and the workspace come from torch's own allocator. A call only enqueues work: it returns
# before the GPU is done.

# %%
cuda = gpu and torch is not None and torch.cuda.is_available()
if gpu and not cuda:
    print("skipped: torch with CUDA is not installed")


def plain(value: Any) -> np.ndarray:
    """A tensor as the oracle takes it."""
    return value.double().cpu().numpy()


if cuda:
    x_gpu = torch.from_numpy(x).to("cuda", torch.bfloat16)
    y, state = mod(x_gpu)
    assert y.device == x_gpu.device and y.dtype == torch.bfloat16
    expected, expected_state = rnn.reference(net)(plain(x_gpu))
    assert_close(plain(y), expected, "bfloat16", T)
    assert_close({name: plain(value) for name, value in state.items()}, expected_state, "bfloat16", T)
    y, state = mod(x_gpu, state)  # continue where it ended
    print("torch: y", tuple(y.shape), y.dtype, "on", y.device)

# %% [markdown]
# ## A CUDA graph
#
# After a first call outside, calls can be captured. A replay reads the same tensors again, with what is in them then;
# `load_weights` between replays counts too.

# %%
if cuda:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, state = mod(x_gpu)
    x_gpu.mul_(0.5)
    graph.replay()
    assert_close(plain(y), rnn.reference(net)(plain(x_gpu))[0], "bfloat16", T)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(10):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    print(f"graph: {begin.elapsed_time(end) * 1e3 / 10 / T:.2f} us per step, predicted {first['predicted_us']}")

# %% [markdown]
# ## Rows of unequal length, and restarts
#
# As on the CPU: after its last step a row's state stays as it is and its output is 0; where `reset` is true, a row
# begins again. Both may be tensors on the GPU. Lengths there are not checked, since that would wait for the GPU.

# %%
if cuda:
    lengths, reset = torch.full((B,), T, device="cuda"), torch.zeros((T, B), dtype=torch.bool, device="cuda")
    lengths[3], reset[50] = 40, True
    y, state = mod(x_gpu, lengths=lengths, reset=reset)
    assert not y[40:, 3].any()
    again = rnn.reference(net)(plain(x_gpu), lengths=lengths.cpu().numpy(), reset=reset.cpu().numpy())
    assert_close(plain(y), again[0], "bfloat16", T)
    print("row 3 stops after 40 steps, the others begin again at step 50")

# %% [markdown]
# ## What to read next
#
# `tvm_rnn/cuda/model/choose_regime.py` chooses how steps run, `tvm_rnn/cuda/model/persistent_step_time.py` says how
# long they will take, and `tvm_rnn/cuda/persistent/kernel.py` writes the kernel. `tvm-rnn bench --help` times modules
# beside torch on a GPU.

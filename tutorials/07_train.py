# %% [markdown]
# # 7. Train
#
# In this tutorial you will train compiled cells on three tasks: a Sobel filter, learned by looking at a picture column
# by column, and the differences between the frames of a film, both after the Halide RNN project of Uboweja and Han,
# beside their algorithm in NumPy; and a language model of characters through torch, beside `torch.nn.LSTM`.
#
# It needs `pip install scikit-learn pillow`, for the pictures; without torch it ends before the language model.

# %%
import math
import statistics
import time
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image

import tvm_rnn as rnn

try:
    import torch
except ImportError:  # no language model then
    torch = None

folder = Path.cwd()
rng = np.random.default_rng(0)

# %% [markdown]
# ## A picture as a sequence
#
# Walk over a picture from left to right: at step t the network sees column t, I pixels, and is to say by how much it
# differs from column t - 2: a Sobel filter [-1 0 1]. It has to remember two columns. The network is theirs: one layer
# of tanh units and a matrix that reads the answer off its state.


# %%
def pieces(picture: np.ndarray, size: int) -> np.ndarray:
    """All squares of a picture as sequences of columns: [T, B, I]."""
    rows, columns = (n // size for n in picture.shape)
    squares = picture[: rows * size, : columns * size].reshape(rows, size, columns, size)
    return np.ascontiguousarray(squares.transpose(3, 0, 2, 1).reshape(size, rows * columns, size))


def sobel(x: np.ndarray) -> np.ndarray:
    """Column t minus column t - 2; zeros before the first."""
    return x - np.concatenate([np.zeros_like(x[:2]), x[:-2]])


photo = load_sample_image("china.jpg").mean(axis=2).astype(np.float32) / 255 - 0.5
x = pieces(photo, 32)
target = sobel(x)
print("columns of squares:", x.shape)

# %% [markdown]
# ## Their algorithm in NumPy
#
# Back-propagation through time in one pass over the steps, forwards, and one back: the gradient of a step's state is
# what its own answer asks for and what the step behind it hands down.


# %%
def numpy_gradients(p: dict[str, np.ndarray], V: np.ndarray, x: np.ndarray, target: np.ndarray):
    """The loss, and its gradients of the layer's weights and of V."""
    W, R, b = p["W_l0"], p["R_l0"], p["b_l0"]
    h = np.zeros((len(x) + 1, x.shape[1], len(R)), np.float32)
    for t in range(len(x)):
        h[t] = np.tanh(x[t] @ W.T + h[t - 1] @ R.T + b)  # h[-1] is zero: the state before the first step
    error = h[:-1] @ V.T - target
    g, scale = {name: np.zeros_like(value) for name, value in p.items()}, np.float32(2 / target.size)
    gV, later = np.zeros_like(V), np.zeros_like(h[0])
    for t in reversed(range(len(x))):
        gy = scale * error[t]
        gV += gy.T @ h[t]
        inner = (gy @ V + later) * (1 - h[t] ** 2)
        g["W_l0"] += inner.T @ x[t]
        g["R_l0"] += inner.T @ h[t - 1]
        g["b_l0"] += inner.sum(axis=0)
        later = inner @ R
    return float((error**2).mean()), g, gV


# %% [markdown]
# ## The same, compiled
#
# `compile(training=True)` derives `backward` from the cell's equations. What the loop above sums step by step, the
# gradients of W and R, is one product over all steps here.


# %%
def compiled_gradients(mod, V: np.ndarray, x: np.ndarray, target: np.ndarray):
    """The loss, and its gradients of the layer's weights and of V."""
    h, _, tape = mod.forward_train(x)
    rows = h.reshape(-1, h.shape[-1])
    error = rows @ V.T - target.reshape(-1, target.shape[-1])
    gy = np.float32(2 / target.size) * error
    _, _, g = mod.backward(tape, (gy @ V).reshape(h.shape))
    return float((error**2).mean()), g, gy.T @ rows


units = 96
net = rnn.RNN(rnn.cells.elman, x.shape[-1], units).init(seed=0)
mod = rnn.compile(net, training=True, batch=x.shape[1])
V = (0.1 * rng.normal(size=(x.shape[-1], units))).astype(np.float32)
ours, theirs = compiled_gradients(mod, V, x, target), numpy_gradients(dict(net.weights), V, x, target)
for name in theirs[1]:
    assert np.abs(ours[1][name] - theirs[1][name]).max() < 1e-5 * max(1e-3, np.abs(theirs[1][name]).max()) + 1e-8, name
print(f"both find the same gradients; the loss is {ours[0]:.4f}")

# %% [markdown]
# ## Learn
#
# Adam (Kingma & Ba 2015), two hundred times over half of the squares; the others it never sees.


# %%
def train(mod, V: np.ndarray, x: np.ndarray, target: np.ndarray, epochs: int, rate: float = 3e-3):
    """Trains the module's weights and V in place; returns V and the last loss."""
    values = {**{name: np.array(value) for name, value in mod.weights.items()}, "V": V}
    first, second = ({name: np.zeros_like(value) for name, value in values.items()} for _ in range(2))
    for epoch in range(1, epochs + 1):
        loss, g, gV = compiled_gradients(mod, values["V"], x, target)
        step = rate * math.sqrt(1 - 0.999**epoch) / (1 - 0.9**epoch)
        for name, gradient in {**g, "V": gV}.items():
            first[name] += 0.1 * (gradient - first[name])
            second[name] += 0.001 * (gradient**2 - second[name])
            values[name] -= (step * first[name] / (np.sqrt(second[name]) + 1e-8)).astype(np.float32)
        mod.load_weights({name: value for name, value in values.items() if name != "V"})
    return values["V"], loss


V, _ = train(mod, V, *(np.ascontiguousarray(part[:, ::2]) for part in (x, target)), 200)
answer = (mod(x)[0].reshape(-1, units) @ V.T).reshape(x.shape)
unseen = float(((answer - target)[:, 1::2] ** 2).mean() / (target[:, 1::2] ** 2).mean())
print(f"Sobel: the error is {unseen:.1%} of the answer's power, where it was not trained")
assert unseen < 0.2

# %% [markdown]
# The result beside the target, over the whole photograph: `sobel.png` in this folder.
#
# ![The photograph, the filter, and what was learned](../images/sobel.png)


# %%
def picture_of(x: np.ndarray, like: np.ndarray, size: int) -> np.ndarray:
    """The inverse of `pieces`."""
    rows, columns = (n // size for n in like.shape)
    return x.reshape(size, rows, columns, size).transpose(1, 3, 2, 0).reshape(rows * size, columns * size)


both = [picture_of(part, photo, x.shape[-1]) for part in (x, target, answer)]
grey = np.concatenate([np.clip(128 + 127 * part, 0, 255) for part in both], axis=1)
Image.fromarray(grey.astype(np.uint8)).save(folder / "sobel.png")
print("sobel.png: the photograph, the filter, and what was learned")

# %% [markdown]
# ## How long an epoch takes
#
# The Halide project gives 366 s for an epoch of its first version, 8 s for its best and 5 s for NumPy, at 1024 x 1024.
# Here is an epoch of one picture at a time, forwards and backwards, for two sizes.


# %%
def medians_ms(*runs) -> list[float]:
    """Milliseconds of each call: the median of nine, after one to warm up. They take turns, so that what else this
    machine does slows all of them."""
    seconds = []
    for _ in range(10):
        row = []
        for run in runs:
            started = time.perf_counter()
            run()
            row.append(time.perf_counter() - started)
        seconds.append(row)
    return [1e3 * statistics.median(column) for column in zip(*seconds[1:], strict=True)]


def epoch_ms(size: int) -> list[float]:
    """Of NumPy and of compiled code, for a picture of size x size and as many units."""
    net = rnn.RNN(rnn.cells.elman, size, size).init(seed=0)
    mod, V = rnn.compile(net, training=True, batch=1), np.ones((size, size), np.float32) / size
    one = rng.normal(size=(size, 1, size)).astype(np.float32)
    weights = dict(net.weights)
    return medians_ms(lambda: numpy_gradients(weights, V, one, one), lambda: compiled_gradients(mod, V, one, one))


print(f"{'size':>6} {'NumPy, ms':>10} {'compiled, ms':>13} {'ratio':>6}")
for size in (32, 128):
    slow, fast = epoch_ms(size)
    print(f"{size:>6} {slow:>10.2f} {fast:>13.2f} {slow / fast:>6.1f}")

# %% [markdown]
# ## Differences between frames
#
# Their second task: a film, frame by frame; the answer is what changed since the last frame. Handwritten digits drift
# to the right, one pixel a frame.

# %%
digits = load_digits().images[:64].astype(np.float32) / 16
frames = np.stack([np.roll(digits, shift, axis=2) for shift in range(8)]).reshape(8, 64, 64)
change = frames - np.concatenate([np.zeros_like(frames[:1]), frames[:-1]])
film = rnn.compile(rnn.RNN(rnn.cells.elman, 64, 128).init(seed=1), training=True, batch=64)
U, loss = train(film, (0.1 * rng.normal(size=(64, 128))).astype(np.float32), frames, change, 200)
print(f"frames: the error is {loss / float((change**2).mean()):.1%} of the answer's power")
assert loss < 0.2 * float((change**2).mean())

# %% [markdown]
# ## A language model, through torch
#
# EcoRNN trains two layers of 650 units on 35 steps of 32 rows. The same here with 96 units, on characters of plays by
# Shakespeare (`data/README.md` says where they are from). `rnn.to_torch` makes the compiled network a torch module: all
# around it, embedding, loss, optimiser and clipping, is torch's. `names="torch"` gives its parameters torch's names, so
# that both models begin with the same weights.

# %%
if torch is None:
    print("torch is not installed: no language model")
    raise SystemExit

text = (Path(__file__).resolve().parent / "data" / "shakespeare.txt").read_text()
letters = sorted(set(text))
codes = torch.tensor([letters.index(c) for c in text])
T, B, H, steps = 35, 32, 96, 60
rows = codes[: len(codes) // B * B].reshape(B, -1).T  # [time, B]: each row a part of the text


class Model(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.embed, self.layer, self.read = torch.nn.Embedding(len(letters), H), layer, torch.nn.Linear(H, len(letters))

    def forward(self, x, state):
        y, state = self.layer(self.embed(x), state)
        return self.read(y), state


def detached(state):
    """The state without what it was computed from: back-propagation ends at a chunk's begin."""
    if isinstance(state, dict):
        return {name: value.detach() for name, value in state.items()}
    return tuple(value.detach() for value in state)


def fit(model):
    """Chunks of T steps one after the other, the state carried: after each its loss and seconds."""
    optimiser, state = torch.optim.Adam(model.parameters(), 4e-3), None
    for i in range(steps):
        x, wanted = rows[i * T : i * T + T], rows[i * T + 1 : i * T + T + 1]
        started = time.perf_counter()
        scores, state = model(x, None if state is None else detached(state))
        loss = torch.nn.functional.cross_entropy(scores.reshape(-1, len(letters)), wanted.reshape(-1))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        yield loss.item(), time.perf_counter() - started


torch.manual_seed(0)
torch.set_num_threads(1)
theirs = Model(torch.nn.LSTM(H, H, num_layers=2))
ours = Model(rnn.to_torch(rnn.from_torch(theirs.layer), names="torch", batch=B))
ours.load_state_dict(theirs.state_dict())
names, perplexities = ("compiled", "torch.nn.LSTM"), []
# In turns, a step of one and a step of the other: what else this machine does slows both.
for name, told in zip(names, zip(*zip(fit(ours), fit(theirs), strict=True), strict=True), strict=True):
    losses, seconds = zip(*told, strict=True)
    perplexities.append(math.exp(statistics.mean(losses[-steps // 5 :])))
    milliseconds = 1e3 * statistics.median(seconds)
    print(f"{name:<14} perplexity {perplexities[-1]:6.2f}   {milliseconds:6.1f} ms a step of training")
first, second = perplexities
assert abs(first - second) < 0.05 * second and second < 15

# %% [markdown]
# ## What to read next
#
# `tvm_rnn/passes/differentiate.py` derives the backward graph, `tvm_rnn/cpu/training/tape_layout.py` says what is kept
# for it, and `tvm_rnn/torch_layer/autograd.py` is the torch module. `02_write_a_cell.py` is for cells of your own: all
# of them train.

# %% [markdown]
# # 11. Predict frames that move
#
# In this tutorial you will train a convolutional LSTM to say what the next frame of a film looks like. Its states are
# images, and a convolution stands where a matrix is in other cells: what is learned in one corner holds in all others.
#
# It needs nothing but tvm_rnn; where torch is installed, its convolutions find the same gradients.

# %%
import time

import numpy as np

import tvm_rnn as rnn

try:
    import torch
    from torch.nn.functional import conv2d
except ImportError:  # no comparison then
    torch = None

rng = np.random.default_rng(0)

# %% [markdown]
# ## Films
#
# Two squares move over a field of 16 x 16 pixels and come back from its walls. One frame does not say which way they
# move: it takes a memory of the frames before.

# %%
T, SIZE, SIDE = 12, 16, 3


def films(count: int) -> np.ndarray:
    """Frames [T + 1, count, 1, SIZE, SIZE] of zeros and ones."""
    free = SIZE - SIDE
    speed = rng.choice([-1, 1], (2, count, 2))
    way = rng.integers(0, 2 * free, (2, count, 2)) + np.arange(T + 1)[:, None, None, None] * speed
    corner = free - np.abs(way % (2 * free) - free)  # there and back again
    pixel = np.arange(SIZE)
    inside = (pixel >= corner[..., None]) & (pixel < corner[..., None] + SIDE)
    squares = inside[..., 0, :, None] & inside[..., 1, None, :]
    return squares.any(axis=1)[:, :, None].astype(np.float32)


def draw(*frames: np.ndarray) -> None:
    """Frames side by side, in shades."""
    for rows in zip(*(np.clip(frame, 0, 0.999) for frame in frames), strict=True):
        print("   ".join("".join(" .:-=+*#%@"[int(10 * value)] * 2 for value in row) for row in rows))


film = films(1)
print("steps 0, 1 and 2:")
draw(*film[:3, 0, 0])

# %% [markdown]
# ## The cell
#
# `cells.conv_lstm` is the ConvLSTM of Shi et al. 2015. It becomes part of a cell of your own like any function; beside
# it, a convolution of 1 x 1 makes one channel of all. The axes of an annotation are those of the arrays: x is
# [T, B, 1, 16, 16] here, and so is y.


# %%
@rnn.cell(states="h c", output="y")
def predictor(
    x: "I Y X", h: "H Y X", c: "H Y X", *, W: "4 H I 3 3", R: "4 H H 3 3", b: "4 H", out: "I H 1 1", shift: "I"
):
    """A ConvLSTM, and the logit of each pixel of the next frame."""
    h, c = rnn.cells.conv_lstm(x, h, c, W=W, R=R, b=b)
    return h, c, rnn.conv(h, out) + shift[:, None, None]


net = rnn.RNN(predictor, input_size=1, hidden_size=16, Y=SIZE, X=SIZE).init(seed=0)
started = time.process_time()
mod = rnn.compile(net, training=True, batch=16)
print(f"{net}: compiled in {time.process_time() - started:.1f} s of CPU time")

# %% [markdown]
# ## Learn
#
# Each pixel is a question of yes or no: the loss is the cross-entropy of the logits, its gradient the difference
# between what is said and what comes. Adam (Kingma & Ba 2015) trains the weights, in steps that become smaller.


# %%
def loss_and_gradients(frames: np.ndarray):
    """The mean cross-entropy, and the gradients of the weights."""
    logits, _, tape = mod.forward_train(frames[:-1])
    error = 1 / (1 + np.exp(-logits)) - frames[1:]
    loss = np.mean(np.logaddexp(0, logits) - frames[1:] * logits)
    _, _, g = mod.backward(tape, error / np.float32(error.size))
    return loss, g


values = {name: np.array(value) for name, value in mod.weights.items()}
first, second = ({name: np.zeros_like(value) for name, value in values.items()} for _ in range(2))
steps, rate, losses = 400, 1e-2, []
started = time.perf_counter()
for step in range(1, steps + 1):
    loss, g = loss_and_gradients(films(16))
    losses.append(loss)
    size = rate * (1 - step / steps) * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    for name, gradient in g.items():
        first[name] += 0.1 * (gradient - first[name])
        second[name] += 0.001 * (gradient**2 - second[name])
        values[name] -= (size * first[name] / (np.sqrt(second[name]) + 1e-8)).astype(np.float32)
    mod.load_weights(values)
    if step % 100 == 0:
        print(f"step {step:4}   loss {np.mean(losses[-20:]):.4f}   {'#' * int(400 * np.mean(losses[-20:]))}")
print(f"{1e3 * (time.perf_counter() - started) / steps:.1f} ms a step of training, films included")

# %% [markdown]
# ## See
#
# How many of the pixels that will be white does it find, once it has seen half of a film? To say that everything stays
# where it is finds less than half of them.

# %%
film = films(200)
logits, _ = mod(film[:-1])
white = film[T // 2 + 1 :] > 0
found = ((logits[T // 2 :] > 0) & white).sum() / (((logits[T // 2 :] > 0) | white).sum())
still = ((film[T // 2 : -1] > 0) & white).sum() / (((film[T // 2 : -1] > 0) | white).sum())
print(f"overlap of what it says and what comes: {found:.0%}; of the frame before and what comes: {still:.0%}")
assert found > 0.6 > still
print("the last frame that it saw, what it says comes next, and what comes:")
draw(film[-2, 0, 0], 1 / (1 + np.exp(-logits[-1, 0, 0])), film[-1, 0, 0])

# %% [markdown]
# ## The gradients are torch's
#
# A loop over the steps, with torch's convolutions, finds the same in float64.

# %%
if torch is None:
    print("torch is not installed: no comparison")
    raise SystemExit

net = rnn.RNN(rnn.cells.conv_lstm, 1, 4, Y=8, dtype="float64").init(seed=1)
mod = rnn.compile(net, training=True)
x = rng.normal(size=(5, 2, 1, 8, 8))
W, R, b = (torch.tensor(net.weights[name], requires_grad=True) for name in ("W_l0", "R_l0", "b_l0"))
h = c = torch.zeros(2, 4, 8, 8, dtype=torch.float64)
total = 0.0
for now in torch.tensor(x):
    z = conv2d(now, W.flatten(0, 1), b.flatten(), padding=1) + conv2d(h, R.flatten(0, 1), padding=1)
    i, f, g, o = z.chunk(4, dim=1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    total = total + (h**2).sum() / 2
total.backward()
y, _, tape = mod.forward_train(x)
_, _, found = mod.backward(tape, y)
for name, theirs in (("W_l0", W.grad), ("R_l0", R.grad), ("b_l0", b.grad)):
    error = np.abs(found[name] - theirs.numpy()).max() / np.abs(theirs.numpy()).max()
    print(f"{name}: the gradients differ by {error:.0e} of the largest")
    assert error < 1e-9

# %% [markdown]
# ## What to read next
#
# `tvm_rnn/cells/convolution.py` has more such cells, with the papers they are from, and `tvm_rnn/cpu/convolution.py`
# how a convolution runs: no matrix of shifted images is written.

# %% [markdown]
# # 10. Train spikes
#
# In this tutorial you will train units that spike, on events as a camera for them sends: which way something moves, and
# how fast. A spike is a step, whose slope is 0 or infinite; a surrogate gradient stands in its place.
#
# It needs nothing but tvm_rnn; where torch is installed, its autograd finds the same gradients.

# %%
import time

import numpy as np

import tvm_rnn as rnn

try:
    import torch
except ImportError:  # no comparison then
    torch = None

rng = np.random.default_rng(0)

# %% [markdown]
# ## Events
#
# An event camera reports changes alone: here a ring of 32 sensors, each of which sends a 1 when the dot comes over it.
# The dot moves left or right, slowly or fast; a third of its events get lost, and one in fifty is noise. No single step
# says what moves, and over a whole turn the counts of all ways are equal: the order of events is what counts.

# %%
T, SENSORS, CLASSES = 60, 32, ("left, slowly", "left, fast", "right, slowly", "right, fast")
VELOCITIES = np.array([-0.4, -0.8, 0.4, 0.8])


def events(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Events [T, count, SENSORS] and their classes [count]."""
    classes = rng.integers(0, 4, count)
    places = rng.uniform(0, SENSORS, count) + np.arange(T + 1)[:, None] * VELOCITIES[classes]
    places = np.floor(places).astype(int) % SENSORS
    moved = (places[1:] != places[:-1]) & (rng.random((T, count)) > 1 / 3)
    seen = moved[:, :, None] & (places[1:, :, None] == np.arange(SENSORS))
    return (seen | (rng.random(seen.shape) < 0.02 / SENSORS)).astype(np.float32), classes


x, classes = events(4)
print(f"{x.shape} events, {x.mean():.1%} of them 1")

# %% [markdown]
# ## The unit
#
# `cells.lif` is the leaky integrate-and-fire unit: its voltage decays, what comes in adds to it, and above the
# threshold it spikes; spikes go back to all units. This is all of it:

# %%
print(rnn.cells.lif.doc)


# %% [markdown]
# You can write your own. `surrogate(forward, backward)` has the value of the first and the gradient of the second, and
# `stop_gradient` makes a constant of a value. Here units learn their thresholds, and the
# surrogate is written out: the gradient is that of v / (1 + 10 |v|).


# %%
@rnn.cell(states="s v")
def own(x: "I", s: "H", v: "H", *, W: "H I", R: "H H", b: "H", threshold: "H"):
    """Units that learn how much they wait for."""
    limit = 0.4 + rnn.softplus(threshold)
    v = 0.95 * v - s * limit + W @ x + R @ s + b
    above = v - limit
    return rnn.surrogate(rnn.where(above > 0, 1.0, 0.0), above / (1 + 10 * abs(above))), v


# %% [markdown]
# ## Learn
#
# The answer is read off how often each unit spiked: scores = V mean(s). Adam (Kingma & Ba 2015) trains V and
# the weights, in steps that become smaller.


# %%
def loss_and_gradients(mod, V: np.ndarray, x: np.ndarray, classes: np.ndarray):
    """The mean cross-entropy, the share of right answers, and the gradients of the weights and of V."""
    s, _, tape = mod.forward_train(x)
    rate = s.mean(axis=0)
    scores = rate @ V.T
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    rows = np.arange(len(classes))
    loss, right = -np.log(p[rows, classes] + 1e-9).mean(), (p.argmax(axis=1) == classes).mean()
    p[rows, classes] -= 1
    error = p / np.float32(len(classes))
    _, _, g = mod.backward(tape, np.broadcast_to(error @ V / np.float32(T), s.shape).copy())
    return loss, right, {**g, "V": error.T @ rate}


def train(cell: rnn.Cell, units: int = 64, rows: int = 64, steps: int = 300, rate: float = 1e-2):
    """The trained module, with V."""
    net = rnn.RNN(cell, SENSORS, units).init(seed=0)
    net.load({**net.weights, "W_l0": 6 * net.weights["W_l0"]})  # single events must be able to make units spike
    mod = rnn.compile(net, training=True, batch=rows)
    values = {name: np.array(value) for name, value in mod.weights.items()}
    values["V"] = rng.normal(size=(len(CLASSES), units)).astype(np.float32)
    first, second = ({name: np.zeros_like(value) for name, value in values.items()} for _ in range(2))
    started = time.perf_counter()
    for step in range(1, steps + 1):
        loss, right, g = loss_and_gradients(mod, values["V"], *events(rows))
        size = rate * (1 - step / steps) * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        for name, gradient in g.items():
            first[name] += 0.1 * (gradient - first[name])
            second[name] += 0.001 * (gradient**2 - second[name])
            values[name] -= (size * first[name] / (np.sqrt(second[name]) + 1e-8)).astype(np.float32)
        mod.load_weights({name: value for name, value in values.items() if name != "V"})
        if step % 100 == 0:
            print(f"{cell.name}: step {step}   loss {loss:.3f}   {right:.0%} right")
    print(f"{cell.name}: {1e3 * (time.perf_counter() - started) / steps:.1f} ms a step of training, events included")
    return mod, values["V"]


for cell in (rnn.cells.lif, own):
    mod, V = train(cell)
    x, classes = events(1000)
    s, _ = mod(x)
    right = (np.argmax(s.mean(axis=0) @ V.T, axis=1) == classes).mean()
    print(f"{cell.name}: {right:.1%} of 1000 new rows are right; a unit spikes in {s.mean():.1%} of the steps")
    assert right > 0.9

# %% [markdown]
# ## The gradients are torch's
#
# The usual way in torch is a class whose `backward` has the slope, and a loop over the steps. It finds the same.

# %%
if torch is None:
    print("torch is not installed: no comparison")
    raise SystemExit


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, above):
        return above / (1 + 10 * ctx.saved_tensors[0].abs()) ** 2


net = rnn.RNN(rnn.cells.lif, SENSORS, 64, dtype="float64").init(seed=1)
mod = rnn.compile(net, training=True)
x = 3 * events(16)[0].astype(np.float64)
W, R, b = (torch.tensor(net.weights[name], requires_grad=True) for name in ("W_l0", "R_l0", "b_l0"))
s = v = torch.zeros(16, 64, dtype=torch.float64)
total = 0.0
for now in torch.tensor(x):
    v = 0.95 * v - s + now @ W.T + s @ R.T + b
    s = Spike.apply(v - 1)
    total = total + (s**2).sum() / 2
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
# `tvm_rnn/cells/spiking.py` has three units with the papers they are from, `tvm_rnn/language/functions.py` their
# surrogate gradients; `07_train.py` is about training in general.

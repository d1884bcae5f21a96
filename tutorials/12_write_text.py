# %% [markdown]
# # 12. Write text
#
# In this tutorial you will train a small language model on characters, and let it write: embedding, LSTM, read-out and
# the choice of the next character are one cell, and a text is one call of compiled code.
#
# It needs nothing but tvm_rnn.

# %%
import time
from pathlib import Path

import numpy as np
from drawing import draw_loss

import tvm_rnn as rnn

# %% [markdown]
# ## The model
#
# A token is an input of one number, `x: "1"`. `E[x[0]]` is a row of the table E: it is read where it lies, and no
# one-hot vector is multiplied. A row has what the token adds to each gate: an embedding and its product with a matrix
# in one. Three cells share this function: one emits the logits of all characters, to train on, the others one of them.


# %%
def lstm(x, h, c, E, R):
    i, f, g, o = E[x[0]] + R @ h
    c = rnn.sigmoid(f + 1.0) * c + rnn.sigmoid(i) * rnn.tanh(g)
    return rnn.sigmoid(o) * rnn.tanh(c), c


@rnn.cell(states="h c", output="logits")
def reader(x: "1", h: "H", c: "H", *, E: "V 4 H", R: "4 H H", Q: "V H", b: "V"):
    """An LSTM that says how likely each character comes next."""
    h, c = lstm(x, h, c, E, R)
    return h, c, Q @ h + b


@rnn.cell(states="h c", output="token")
def writer(x: "1", h: "H", c: "H", *, E: "V 4 H", R: "4 H H", Q: "V H", b: "V", cold: "1"):
    """The same LSTM; it draws the next character. cold: logits are multiplied by it."""
    h, c = lstm(x, h, c, E, R)
    return h, c, rnn.sample(cold * (Q @ h + b), keepdims=True)


@rnn.cell(states="h c", output="token")
def surest(x: "1", h: "H", c: "H", *, E: "V 4 H", R: "4 H H", Q: "V H", b: "V"):
    """The same LSTM; it takes the most likely character."""
    h, c = lstm(x, h, c, E, R)
    return h, c, rnn.argmax(Q @ h + b, keepdims=True)


# %% [markdown]
# ## Train it
#
# On plays by Shakespeare (`data/README.md` says where they are from), in chunks of 64 characters; states are carried
# from chunk to chunk. The gradient of a table has the sum over all steps that read a row. Adam (Kingma & Ba 2015).

# %%
plays = (Path(__file__).resolve().parent / "data" / "shakespeare.txt").read_text()
letters = "".join(sorted(set(plays)))
codes = np.array([letters.index(character) for character in plays])
H, T, B, steps = 128, 64, 32, 600
rows = codes[: len(codes) // B * B].reshape(B, -1).T  # [time, B]
sizes = {"hidden_size": H, "V": len(letters)}
net = rnn.RNN(reader, 1, **sizes).init(seed=0)
net.load({**net.weights, "E_l0": 0.3 * net.weights["E_l0"]})
mod = rnn.compile(net, training=True, batch=B)

weights = {name: np.array(value) for name, value in mod.weights.items()}
mean, square = ({name: np.zeros_like(value) for name, value in weights.items()} for _ in range(2))
started, state, losses = time.perf_counter(), None, []
for step in range(1, steps + 1):
    at = (step - 1) * T % (len(rows) - T - 1)
    x, following = rows[at : at + T, :, None].astype(np.float32), rows[at + 1 : at + T + 1, :, None]
    logits, state, tape = mod.forward_train(x, state)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    losses.append(-np.log(np.take_along_axis(p, following, -1)).mean())
    np.put_along_axis(p, following, np.take_along_axis(p, following, -1) - 1, -1)
    gradients = mod.backward(tape, p / np.float32(T * B))[2]
    norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
    for name, g in gradients.items():
        g = g / max(1.0, norm)
        mean[name] += 0.1 * (g - mean[name])
        square[name] += 0.01 * (g * g - square[name])
        size = 0.01 * (1 - 0.9 * step / steps) * np.sqrt(1 - 0.99**step) / (1 - 0.9**step)
        weights[name] -= (size * mean[name] / (np.sqrt(square[name]) + 1e-8)).astype(np.float32)
    mod.load_weights(weights)
    if step % 150 == 0:
        print(f"step {step:>4}   perplexity {np.exp(np.mean(losses[-20:])):5.2f}")
print(f"{1e3 * (time.perf_counter() - started) / steps:.1f} ms a step of training")
assert np.mean(losses[-20:]) < 2.0

# %% [markdown]
# The loss of each step, in nats; its exponential is the perplexity.

# %%
draw_loss(losses, "loss, nats a letter")

# %% [markdown]
# ## Let it write
#
# With `generate=True` there is one more function in the module: all steps in one call, in which the output of a step is
# the input of the next. A prompt goes in first. The temperature is 1 / cold: it is a weight, so that it can be changed
# in the compiled module; `sample(logits, temperature)` with a number would fix it.

# %%
pen = rnn.compile(rnn.RNN(writer, 1, **sizes).load({**weights, "cold_l0": np.float32([1.0])}), generate=True)
prompt = np.array([[letters.index(character)] for character in "KING"])  # [P, B]
for temperature in (1.0, 0.5):
    pen.load_weights({**weights, "cold_l0": np.float32([1 / temperature])})
    tokens, state, _ = pen.generate(200, prompt=prompt, seed=1)
    print(f"--- temperature {temperature}\nKING" + "".join(letters[token] for token in tokens[:, 0]))

# %% [markdown]
# ## Rows that end
#
# `stop` ends a row: here a line. Several rows are written at once, each with random numbers of its own, and `lengths`
# says how long each became. A row that ended stays as it is, and the call returns when all have.

# %%
many = np.repeat(prompt, 4, axis=1)
tokens, _, lengths = pen.generate(200, prompt=many, seed=2, stop=letters.index("\n"))
for row, length in enumerate(lengths):
    print(repr("KING" + "".join(letters[token] for token in tokens[:length, row])))

# %% [markdown]
# ## Is it right?
#
# Random numbers are made of seed, step and row, so that the oracle draws the same ones. Without them, a loop in float64
# must come to the same characters, one by one.

# %%
drawn = pen.generate(50, prompt=prompt, seed=7)[0]
same = rnn.reference(rnn.RNN(writer, 1, **sizes).load(pen.weights)).generate(50, prompt=prompt, seed=7)[0]
print("drawn as the oracle draws:", bool((drawn == same).all()))

exact = {name.removesuffix("_l0"): value.astype(np.float64) for name, value in weights.items()}
h = c = np.zeros(H)
token, found = prompt[0, 0], []
for t in range(len(prompt) + 99):
    token = prompt[t, 0] if t < len(prompt) else token
    i, f, g, o = exact["E"][token] + exact["R"] @ h
    c = c / (1 + np.exp(-f - 1)) + np.tanh(g) / (1 + np.exp(-i))
    h = np.tanh(c) / (1 + np.exp(-o))
    token = np.argmax(exact["Q"] @ h + exact["b"])
    found.append(token)
sure = rnn.compile(rnn.RNN(surest, 1, **sizes).load(weights), generate=True)
tokens, _, _ = sure.generate(100, prompt=prompt)
print("greedy as a loop in float64:", tokens[:, 0].tolist() == found[len(prompt) - 1 :])
assert (drawn == same).all() and tokens[:, 0].tolist() == found[len(prompt) - 1 :]

# %% [markdown]
# ## What one call saves
#
# The same with a call for each character:

# %%


def per_token(run, count: int) -> float:
    """Microseconds; the best of five."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        run(count)
        times.append(time.perf_counter() - started)
    return 1e6 * min(times) / count


def call_by_call(count: int) -> None:
    x, state = prompt[:1].astype(np.float32), None
    for _ in range(count):
        x, state = sure.step(x, state)


print(f"one call: {per_token(lambda n: sure.generate(n, prompt=prompt[:1]), 1000):.1f} us a character")
print(f"a call for each: {per_token(call_by_call, 1000):.1f} us a character")

# %% [markdown]
# ## What to read next
#
# `tvm_rnn/cpu/lower_generation.py` makes the loop, `tvm_rnn/language/functions.py` has `sample`, and
# `tvm_rnn/runtime/runtime_generate.py` says what a call may ask for.

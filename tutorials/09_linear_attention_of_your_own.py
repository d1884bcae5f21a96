# %% [markdown]
# # 9. Linear attention of your own
#
# In this tutorial you will write a gated delta rule that no library has, look at what the compiler finds in its
# equations, train a small language model with it, and let it write. Its memory is a matrix; the compiler sees that each
# step is linear in it, and need not go step by step.
#
# It needs torch, for what is around the cell.

# %%
import math
import statistics
from pathlib import Path

import numpy as np
from drawing import draw_loss

import tvm_rnn as rnn
from tvm_rnn import cell, dot, outer, sigmoid, silu, sqrt, tanh
from tvm_rnn.compiler.stage_texts import stages
from tvm_rnn.decisions import recording

try:
    import torch
except ImportError:
    print("torch is not installed: no language model")
    raise SystemExit from None

# %% [markdown]
# ## The equations
#
# Gated DeltaNet (Yang, Kautz & Hatamizadeh 2025) forgets with one number a step, and writes `v` where the key `k`
# points to, in the place of what was there. Ours forgets each key channel at its own speed, and a gate decides what of
# the reading leaves the cell: two lines are different.


# %%
@cell(states="S", output="y")
def my_delta(x: "I", S: "H H", *, W: "5 H I", b: "5 H", w: "I"):
    q, k, v, forget, gate = W @ x + b
    k, q = silu(k), silu(q)
    k = k / sqrt(dot(k, k) + 1e-6)
    S = sigmoid(forget + 3.0) * S  # each key channel by itself
    S = S + outer(sigmoid(w @ x) * (v - S @ k), k)
    return S, tanh(gate) * (S @ q)


# %% [markdown]
# ## What the compiler finds
#
# `parallelise_time` writes the new S as a sum of products, as einsum does, and sees: S times a decay, one product of
# rank one, and something that is added. That is a row `scan_matrix`: its operands are made for all steps at once, by
# the products of the inputs, and what is read of S is a `read_out`. Nothing of it knows the name of the cell.

# %%
H = 32
net = rnn.RNN(my_delta, input_size=H, hidden_size=H)
text = dict(stages(net))["parallelise_time"]
print("\n".join(line for line in text.splitlines() if "scan" in line or "read" in line or "S" in line.split("[")[0]))

# %% [markdown]
# A cell whose gate reads the state is told what stands in the way, and runs step by step:


# %%
@cell(states="S", output="y")
def reads_itself(x: "I", S: "H H", *, W: "3 H I"):
    q, k, v = W @ x
    return sigmoid(S @ k + v) * S + outer(v, k), S @ q


with recording() as told:
    stages(rnn.RNN(reads_itself, H, H))
print([d.why for d in told if d.stage == "parallelise_time"])

# %% [markdown]
# ## A language model
#
# Characters of plays by Shakespeare (`data/README.md` says where they are from), in chunks of 64; the matrix is carried
# from chunk to chunk. `rnn.to_torch` makes the compiled cell a torch module.

# %%
plays = (Path(__file__).resolve().parent / "data" / "shakespeare.txt").read_text()
letters = sorted(set(plays))
codes = torch.tensor([letters.index(c) for c in plays])
T, B, steps = 64, 16, 140
rows = codes[: len(codes) // B * B].reshape(B, -1).T


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(len(letters), H)
        self.memory = rnn.to_torch(net.init(seed=0), batch=B)
        self.read = torch.nn.Linear(2 * H, len(letters))

    def forward(self, x, state=None):
        seen = self.embed(x)
        y, state = self.memory(seen, state)
        return self.read(torch.cat([seen, y], -1)), state


torch.manual_seed(0)
torch.set_num_threads(2)
model = Model()
optimiser, state, losses = torch.optim.Adam(model.parameters(), 1e-2), None, []
for i in range(steps):
    at = (i * T) % (len(rows) - T - 1)
    state = None if state is None or at < T else {name: value.detach() for name, value in state.items()}
    scores, state = model(rows[at : at + T], state)
    loss = torch.nn.functional.cross_entropy(scores.reshape(-1, len(letters)), rows[at + 1 : at + T + 1].reshape(-1))
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    losses.append(loss.item())
    if i % 20 == 0:
        print(f"step {i:>4}  perplexity {math.exp(losses[-1]):6.2f}")
first, last = math.exp(losses[0]), math.exp(statistics.mean(losses[-20:]))
print(f"perplexity {first:.1f} at first, {last:.1f} at last")
assert last < 14 < first

# %% [markdown]
# The loss of each step, in nats; its exponential is the perplexity.

# %%
draw_loss(losses, "loss, nats a letter")

# %% [markdown]
# ## Let it write
#
# One character a call: the module for it is compiled without training, for one row, and takes the trained weights.
# `step` hands the matrix on.

# %%
mod = rnn.compile(net.load({name: p.detach().numpy() for name, p in model.memory.named_parameters()}), batch=1)
embed, read = (p.detach().numpy() for p in (model.embed.weight, model.read.weight))
bias, rng = model.read.bias.detach().numpy(), np.random.default_rng(1)
written, memory = "KING", None
for i in range(300):
    seen = embed[[letters.index(written[min(i, len(written) - 1)])]]
    y, memory = mod.step(seen, memory)
    if i >= len(written) - 1:
        score = (np.concatenate([seen, y], axis=1) @ read.T + bias)[0] / 0.7
        chances = np.exp(score - score.max())
        written += letters[rng.choice(len(letters), p=chances / chances.sum())]
print(written)

# %% [markdown]
# ## What to read next
#
# `tvm_rnn/passes/parallelise_time.py` decides, `tvm_rnn/passes/affine.py` writes values as sums of products, and
# `tvm_rnn/graph/recurrences.py` says what the rows mean. `tvm-rnn explain my_cell.py:my_cell` tells it of any cell.

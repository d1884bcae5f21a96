# %% [markdown]
# # 14. Attend
#
# In this tutorial you will train an encoder and a decoder that looks back: at every step it reads from all that the
# encoder has said, and chooses where. Attention is part of the loop, and the whole loop is compiled code.
#
# It needs torch, which does what is around the loops, and trains.

# %%
import time

import numpy as np
from drawing import draw_loss

import tvm_rnn as rnn

try:
    import torch
except ImportError:
    print("torch is not installed: nothing to train")
    raise SystemExit from None

torch.manual_seed(0)
torch.set_num_threads(1)  # arrays are small: more threads would wait for one another
rng = np.random.default_rng(0)

# %% [markdown]
# ## The task
#
# A row of 4 to 7 letters with gaps between them, and before it `>` or `<`: the letters are to be written without the
# gaps, as they come, or from the last to the first. Where the next letter stands depends on all gaps before it.

# %%
WORDS, S, T = "_><.abcdefghij", 16, 8  # gap, the two orders, the end, letters; rows of the source; steps
GAP, END, FIRST = 0, 3, 4


def examples(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sources [S, count], what is to be written [T, count], and how long each source is."""
    source, target = np.full((count, S), GAP), np.full((count, T), END)
    lengths = rng.integers(12, S + 1, count)
    for row, length in enumerate(lengths):
        size, order = rng.integers(4, T), rng.integers(1, 3)
        letters = rng.integers(FIRST, len(WORDS), size)
        source[row, 0] = order
        source[row, np.sort(rng.choice(np.arange(1, length), size, replace=False))] = letters
        target[row, :size] = letters if order == 1 else letters[::-1]
    return torch.tensor(source.T), torch.tensor(target.T), torch.tensor(lengths)


def text(tokens: torch.Tensor) -> str:
    return "".join(WORDS[token] for token in tokens)


source, target, lengths = examples(4)
for row in range(4):
    print(f"{text(source[: lengths[row], row]):16} -> {text(target[:, row])}")

# %% [markdown]
# ## The decoder
#
# `constants=` names arguments that are given once per sequence, of any shape: here the encoder's memory [S, M], the
# keys that scores are made of, and a mask, which is -inf where a source has ended. Every step reads them. The zoo has
# this cell (`cells.gru_attention`, and Luong's `lstm_attention`); this one also emits where it looks, to see it later.


# %%
@rnn.cell(constants="memory keys mask", output="y")
def decoder(
    x: "I",
    memory: "S M",
    keys: "S A",
    mask: "S",
    h: "H",
    *,
    Q: "A H",
    v: "A",
    W: "3 H I+M",
    R: "3 H H",
    b: "3 H",
    b_R: "H",
):
    """A GRU that reads a memory by additive attention; y is its state, and the weights of the memory's rows."""
    where = rnn.softmax(rnn.tanh(keys + Q @ h) @ v + mask)
    h = rnn.cells.gru(rnn.concat([x, where @ memory]), h, W=W, R=R, b=b, b_R=b_R)
    return h, rnn.concat([h, where])


# %% [markdown]
# ## The model
#
# Two layers that torch trains, made by `to_torch`: a GRU in both directions for the source, and the decoder. Constants
# are keywords of the call, [batch, ...], and get gradients, which here go on into the encoder.

# %%
E, H = 24, 48


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(len(WORDS), E)
        self.encoder = rnn.to_torch(rnn.RNN(rnn.cells.gru, E, H // 2, bidirectional=True).init(seed=0))
        self.decoder = rnn.to_torch(rnn.RNN(decoder, E, H, S=S, M=H, A=H).init(seed=1))
        self.key = torch.nn.Linear(H, H)
        self.out = torch.nn.Linear(H, len(WORDS))

    def constants(self, source: torch.Tensor, lengths: torch.Tensor) -> dict[str, torch.Tensor]:
        memory = self.encoder(self.words(source), lengths=lengths)[0].transpose(0, 1)
        ended = torch.arange(S) >= lengths[:, None]
        return {"memory": memory, "keys": self.key(memory), "mask": torch.where(ended, -torch.inf, 0.0)}

    def forward(self, source: torch.Tensor, lengths: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        y, _ = self.decoder(self.words(before), **self.constants(source, lengths))
        return self.out(y[..., :H])


started = time.process_time()
model = Model()
print(f"compiled in {time.process_time() - started:.1f} s of CPU time")

# %% [markdown]
# ## Learn
#
# At each step the decoder is given the letter that it should have written before, and learns the next one.


# %%
def shifted(target: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.full_like(target[:1], END), target[:-1]])


steps, losses = 600, []
adam = torch.optim.Adam(model.parameters(), lr=6e-3)
slower = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.05, steps)
started = time.process_time()
for step in range(1, steps + 1):
    source, target, lengths = examples(64)
    scores = model(source, lengths, shifted(target))
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())
    adam.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adam.step()
    slower.step()
    losses.append(loss.item())
    if step % 50 == 0:
        print(f"step {step:4}   loss {np.mean(losses[-20:]):.4f}   {'#' * int(25 * np.mean(losses[-20:]))}")
print(f"{1e3 * (time.process_time() - started) / steps:.1f} ms of CPU time a step of training")

# %% [markdown]
# The loss of each step.

# %%
draw_loss(losses)

# %% [markdown]
# ## Write
#
# Now each letter is the one that it wrote itself. The state that a step returns has the constants too, so the next
# step need not be given them again.

# %%
source, target, lengths = examples(500)
with torch.no_grad():
    token, state, written, looks = torch.full((500,), END), None, [], []
    given = model.constants(source, lengths)
    for _ in range(T):
        y, state = model.decoder(model.words(token)[None], state, **given)
        token, given = model.out(y[0, :, :H]).argmax(-1), {}
        written.append(token)
        looks.append(y[0, :, H:])
right = (torch.stack(written) == target).all(0).float().mean().item()
print(f"{right:.1%} of 500 new rows are written without a fault")
assert right > 0.9

# %% [markdown]
# ## See
#
# Where it looks: a line for each letter that it writes, a column for each row of the source. The diagonal goes down for
# `>` and up for `<`, and jumps over gaps.

# %%
for order in (1, 2):
    row = int(torch.nonzero(source[0] == order)[0])
    print(f"\n    {' '.join(WORDS[token] for token in source[: lengths[row], row])}")
    for token, look in zip(torch.stack(written)[:, row], torch.stack(looks)[:, row], strict=True):
        print(f"{WORDS[token]}   {' '.join(' .:-=+*#%@'[min(int(10 * p), 9)] for p in look[: lengths[row]].tolist())}")
        if token == END:
            break

# %% [markdown]
# The same as a picture.

# %%
try:
    import matplotlib.pyplot as plt
except ImportError:
    print("no picture of the attention: pip install matplotlib")
else:
    figure, places = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained")
    for order, place in zip((1, 2), places, strict=True):
        row = int(torch.nonzero(source[0] == order)[0])
        letters = [WORDS[token] for token in torch.stack(written)[:, row]]
        ends = letters.index(WORDS[END]) + 1 if WORDS[END] in letters else T
        place.imshow(torch.stack(looks)[:ends, row, : lengths[row]], cmap="Blues", vmin=0, vmax=1)
        place.set_xticks(range(lengths[row]), [WORDS[token] for token in source[: lengths[row], row]])
        place.set_yticks(range(ends), letters[:ends])
        place.set(xlabel="source", ylabel="written")
    figure.savefig("attention.png")

# %% [markdown]
# ## What to read next
#
# * `12_write_text.py`: a loop that feeds itself, in one call.
# * `02_write_a_cell.py`: what else a cell can be.
# * `tvm_rnn/cells/attention.py`: Bahdanau's and Luong's attention, and a transducer's joint.

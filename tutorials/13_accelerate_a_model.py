# %% [markdown]
# # 13. Accelerate a model
#
# In this tutorial you will take a torch model that knows nothing of `tvm_rnn`, let compiled code run its LSTM with one
# line, train it, and see that checkpoints, optimisers and errors stay torch's.

# %%
import copy
import tempfile
from pathlib import Path

import torch

import tvm_rnn as rnn

torch.manual_seed(0)
torch.set_num_threads(1)  # steps this small are not worth a second one


class Tagger(torch.nn.Module):
    """Words in, a tag for each out; sentences of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(50, 16)
        self.lstm = torch.nn.LSTM(16, 32, batch_first=True, bidirectional=True)
        self.tags = torch.nn.Linear(64, 5)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = torch.nn.utils.rnn.pack_padded_sequence(self.words(words), lengths, True, enforce_sorted=False)
        y, _ = self.lstm(packed)
        return self.tags(torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=True)[0])


words, lengths = torch.randint(50, (8, 20)), torch.randint(5, 20, (8,))
lengths[0] = 20
wanted = words % 5

# %% [markdown]
# ## One line
#
# Every `torch.nn.LSTM`, `GRU` and `RNN` of the model is run by compiled code from now on: the same objects with the
# same parameters. What it did, and what it left alone, it says on stderr, or to `progress=`.

# %%
theirs = Tagger()
model = rnn.accelerate(copy.deepcopy(theirs), progress=print)
error = (model(words, lengths) - theirs(words, lengths)).abs().max().item()
print("the largest difference is below 1e-5:", error < 1e-5)

# %% [markdown]
# The first call compiled. The code is kept in `~/.cache/tvm_rnn` (`TVM_RNN_CACHE` is another folder, or `none`), named
# by equations, sizes, machine and versions: the next process loads it and imports no compiler.
#
# ## Train
#
# Gradients are those of the compiled backward pass. Both models learn the same.


# %%
def train(net: torch.nn.Module) -> float:
    """The loss after some steps."""
    optimiser = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(30):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(words, lengths).transpose(1, 2), wanted)
        loss.backward()
        optimiser.step()
    return loss.item()


ours, other = train(model), train(theirs)
print("both learn the same:", abs(ours - other) < 1e-3 * other)

# %% [markdown]
# ## All else is torch's
#
# A checkpoint of one is a checkpoint of the other, and a copy or a pickle is one of torch's. Where torch's own code
# must run, as in half precision on a CPU, it does, and the layer says so once.

# %%
theirs.load_state_dict(model.state_dict())
with tempfile.TemporaryDirectory() as folder:
    torch.save(model.state_dict(), Path(folder, "tagger.pt"))
    model.load_state_dict(torch.load(Path(folder, "tagger.pt")))
print("an LSTM of torch's:", isinstance(model.lstm, torch.nn.LSTM), model.lstm)

# %% [markdown]
# ## What to read next
#
# Layers of your own code can be compiled ones from the start: `rnn.nn.LSTM(16, 32)` takes what `torch.nn.LSTM` does.
# They are in `tvm_rnn/torch_layer/nn.py`, which says what compiled code does not serve; `07_train.py` trains cells that
# torch does not have.

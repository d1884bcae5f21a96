# %% [markdown]
# # 18. Train with Lightning
#
# In this tutorial you will train a compiled GRU in a `LightningModule`, which stays as it is, and compile the layer out
# of the checkpoint that Lightning writes. Needs PyTorch Lightning: `pip install pytorch-lightning`.

# %%
import logging
import tempfile
import warnings

import pytorch_lightning as lightning
import torch

import tvm_rnn as rnn

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="pytorch_lightning")
lightning.seed_everything(0)
torch.set_num_threads(1)  # steps this small are not worth a second one
ROWS, STEPS, H = 64, 20, 32

# %% [markdown]
# ## The model
#
# Of 20 numbers two are marked: their sum is asked for. `rnn.nn.GRU` has the arguments, parameters and checkpoints of
# `torch.nn.GRU`, so nothing else speaks of it. In a model that you have, `rnn.accelerate(model)` puts it in place.


# %%
class Adding(lightning.LightningModule):
    """x [B, T, 2]: numbers and marks; wanted [B]."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = rnn.nn.GRU(2, H, batch_first=True), torch.nn.Linear(H, 1)
        self.losses = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.memory(x)
        return self.head(y[:, -1])[:, 0]

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        x, wanted = batch
        loss = torch.nn.functional.mse_loss(self(x), wanted)
        self.losses.append(float(loss.detach()))
        if (number + 1) % 100 == 0:
            print(f"step {number + 1:4}   loss {sum(self.losses[-50:]) / 50:.4f}")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 5e-3)


def rows(_: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One batch."""
    numbers, marks = torch.rand(ROWS, STEPS), torch.zeros(ROWS, STEPS)
    marks.scatter_(1, torch.rand(ROWS, STEPS).topk(2).indices, 1.0)
    return torch.stack([numbers, marks], -1), (numbers * marks).sum(1)


# %% [markdown]
# ## Training
#
# The first step compiles. Who answers 1 whatever comes has a loss of 0.167.

# %%
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
model = Adding()
batches = torch.utils.data.DataLoader([rows(number) for number in range(600)], batch_size=None)
trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=1, gradient_clip_val=1.0, **quiet)
trainer.fit(model, batches)

# %% [markdown]
# ## Out of the checkpoint
#
# Lightning's checkpoint has the weights inside; `from_torch` finds them, and says where.

# %%
with tempfile.TemporaryDirectory() as folder:
    trainer.save_checkpoint(f"{folder}/adding.ckpt")
    checkpoint = torch.load(f"{folder}/adding.ckpt", weights_only=False)
net = rnn.from_torch(checkpoint, batch_first=True)
print("found at:", net.origin.layer)
x, _ = rows(0)
with torch.no_grad():
    y, _ = model.memory(x)
found, _ = rnn.compile(net)(x)
difference = (found - y).abs().max()
print("the compiled layer is the trained one:", bool(difference < 1e-5))

# %% [markdown]
# ## What to read next
#
# `13_accelerate_a_model.py` compiles the layers of a model that exists; `tvm_rnn/torch_layer/nn.py` is the layer.

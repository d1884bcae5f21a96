# %% [markdown]
# # 16. TorchRL
#
# In this tutorial you will write a TorchRL module around a compiled cell: tensordicts in and out, states that begin
# anew where `is_init` says so, one step at a time in the collector and whole sequences in the loss.
#
# It needs TorchRL: `pip install 'torchrl>=0.14'`.

# %%
import torch

import tvm_rnn as rnn

try:
    import torchrl  # noqa: F401
except ModuleNotFoundError:
    print("torchrl is not installed: nothing to train")
    raise SystemExit from None

from tensordict import TensorDict, TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
)
from torchrl.collectors import Collector
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.envs import Compose, EnvBase, InitTracker, TensorDictPrimer, TransformedEnv
from torchrl.modules import set_recurrent_mode
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.manual_seed(0)
torch.set_num_threads(1)
ENVS, STEPS, UPDATES, H = 64, 32, 12, 32

# %% [markdown]
# ## The module
#
# TorchRL's own `GRUModule` takes a GRU of torch's alone. This one takes any cell. A step has tensors [B, ...], a
# sequence [B, T, ...] (TorchRL's recurrent mode), and `is_init` [B, T, 1] is what `rnn.nn.Cell` calls `reset`. The
# state of a sequence is that of its first step, as the collector saw it.


# %%
class CellModule(TensorDictModuleBase):
    """A cell with one state: of `observation`, `state` [B, L, H] and `is_init`, `memory` and the next `state`."""

    def __init__(self, layer: rnn.nn.Cell, state: int) -> None:
        super().__init__()
        self.in_keys, self.out_keys = ["observation", "state", "is_init"], ["memory", ("next", "state")]
        self.layer, self.size = layer, state

    def primer(self) -> TensorDictPrimer:
        """For an environment: zeros in the state of each episode's first step."""
        return TensorDictPrimer(state=Unbounded((self.layer.net.num_layers, self.size)), expand_specs=True)

    def forward(self, td: TensorDictBase) -> TensorDictBase:
        x, state, begins = (td[key] for key in self.in_keys)
        single = x.dim() == 2
        if single:
            x, state, begins = x[:, None], state[:, None], begins[:, None]
        y, last = self.layer(x, state[:, 0].transpose(0, 1), reset=begins[..., 0])
        last = last.transpose(0, 1)
        td["memory"] = y[:, 0] if single else y
        td["next", "state"] = last if single else last[:, None].expand(-1, x.shape[1], *last.shape[1:])
        return td


# %% [markdown]
# ## An environment
#
# The corridor of `15_learn_by_reward.py`: a sign, some steps without anything, a turn where the sign pointed.


# %%
class Corridors(EnvBase):
    """Observations: left sign, right sign, the end. A turn at the end is right or wrong."""

    def __init__(self, rows: int) -> None:
        super().__init__(batch_size=[rows])
        self.observation_spec = Composite(observation=Unbounded((rows, 3)), shape=(rows,))
        self.action_spec = Categorical(2, shape=(rows,))
        self.reward_spec, self.done_spec = Unbounded((rows, 1)), Binary(1, (rows, 1), dtype=torch.bool)
        self.signs, self.left = (torch.zeros(rows, dtype=torch.long) for _ in range(2))

    def _set_seed(self, seed: int | None) -> None:
        torch.manual_seed(seed or 0)

    def _seen(self) -> torch.Tensor:
        return torch.stack([torch.zeros(len(self.left)), torch.zeros(len(self.left)), (self.left == 0).float()], 1)

    def _reset(self, td: TensorDictBase | None, **more: object) -> TensorDictBase:
        asked = None if td is None else td.get("_reset", None)
        rows = torch.ones_like(self.left, dtype=torch.bool) if asked is None else asked[..., 0]
        count = int(rows.sum())
        self.signs[rows], self.left[rows] = torch.randint(2, (count,)), torch.randint(2, 10, (count,))
        seen = self._seen()
        seen[rows, self.signs[rows]] = 1.0
        return TensorDict({"observation": seen, "done": torch.zeros(len(rows), 1, dtype=torch.bool)}, self.batch_size)

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        done = self.left == 0
        reward = torch.where(done, (td["action"] == self.signs).float(), 0.0)
        self.left -= 1
        found = {"observation": self._seen(), "reward": reward[:, None], "done": done[:, None]}
        return TensorDict(found, self.batch_size)


# %% [markdown]
# ## Train
#
# A collector, advantages and the clipped loss are TorchRL's, as for any other module.

# %%
memory = CellModule(rnn.nn.Cell(rnn.cells.gru, 3, H, batch_first=True), H)
actor = TensorDictModule(torch.nn.Linear(H, 2), ["memory"], ["logits"])
draw = ProbabilisticTensorDictModule(
    ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
)
policy = ProbabilisticTensorDictSequential(memory, actor, draw)
value = TensorDictSequential(memory, TensorDictModule(torch.nn.Linear(H, 1), ["memory"], ["state_value"]))
world = TransformedEnv(Corridors(ENVS), Compose(InitTracker(), memory.primer()))
collector = Collector(world, policy, frames_per_batch=ENVS * STEPS, total_frames=ENVS * STEPS * UPDATES)
advantage = GAE(gamma=0.97, lmbda=0.95, value_network=value, shifted=True)
loss = ClipPPOLoss(policy, value, entropy_coeff=0.01, normalize_advantage=True)
optimiser = torch.optim.Adam(loss.parameters(), 3e-3)
for number, batch in enumerate(collector, 1):
    with set_recurrent_mode(True):
        for _ in range(4):
            with torch.no_grad():
                advantage(batch)
            for rows in torch.randperm(ENVS).chunk(4):
                found = loss(batch[rows])
                optimiser.zero_grad()
                sum(v for name, v in found.items() if name.startswith("loss_")).backward()
                optimiser.step()
    if number % 4 == 0:
        right = batch["next", "reward"].sum() / batch["next", "done"].sum()
        print(f"update {number:3}   {100 * right:3.0f} % of the turns are right")
collector.shutdown()

# %% [markdown]
# ## What to read next
#
# `15_learn_by_reward.py` is the same in plain torch, with nothing hidden. `tvm_rnn/torch_layer/cell.py` is the layer.

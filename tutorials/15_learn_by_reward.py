# %% [markdown]
# # 15. Learn by reward
#
# In this tutorial you will train an agent that must remember: recurrent PPO as CleanRL writes it, one file of plain
# torch, with a compiled GRU that begins anew wherever an episode did.

# %%
import torch
from torch.distributions import Categorical

import tvm_rnn as rnn

torch.manual_seed(0)
torch.set_num_threads(1)  # steps this small are not worth a second one
ENVS, STEPS, UPDATES = 64, 32, 30


# %% [markdown]
# ## A corridor
#
# At the first step the agent sees a sign, left or right. Then it walks a corridor of 2 to 9 steps, seeing nothing, and
# at its end it must turn where the sign pointed. Who forgets is right half of the time. All corridors are walked at
# once; one that has ended begins anew, at another time than its neighbours.


# %%
class Corridors:
    """Observations [B, 3]: left sign, right sign, the end; actions: 0 goes left, 1 right, which counts at the end."""

    def __init__(self, rows: int) -> None:
        self.signs, self.left = torch.zeros(rows, dtype=torch.long), torch.zeros(rows, dtype=torch.long)

    def reset(self) -> torch.Tensor:
        """The first observations."""
        return self._begin(torch.ones(len(self.signs), dtype=torch.bool))

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The next observations, rewards, and which of the observations begin an episode."""
        done = self.left == 0
        reward = torch.where(done, (actions == self.signs).float(), 0.0)
        self.left -= 1
        return self._begin(done), reward, done

    def _begin(self, rows: torch.Tensor) -> torch.Tensor:
        count = int(rows.sum())
        self.signs[rows], self.left[rows] = torch.randint(2, (count,)), torch.randint(2, 10, (count,))
        seen = torch.zeros(len(rows), 3)
        seen[rows, self.signs[rows]] = 1.0
        seen[:, 2] = (self.left == 0).float()
        return seen


# %% [markdown]
# ## The agent
#
# `rnn.nn.Cell` is any cell over time, called as `torch.nn.GRU` is; besides, it takes `reset` [T, B]: before a step
# where that is 1, a row begins from the initial state. A rollout is a call of one step, an update one of all steps, and
# both have the same resets: no state has to be cleared by hand, and no loop over time is needed where episodes end.


# %%
class Agent(torch.nn.Module):
    """What to do, and what it is worth."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = rnn.nn.Cell(rnn.cells.gru, 3, 32)
        self.actor, self.critic = torch.nn.Linear(32, 2), torch.nn.Linear(32, 1)

    def forward(
        self, seen: torch.Tensor, begins: torch.Tensor, state: torch.Tensor
    ) -> tuple[Categorical, torch.Tensor, torch.Tensor]:
        """Of seen [T, B, 3] and begins [T, B]: actions' probabilities, values [T, B], the last state."""
        y, state = self.memory(seen, state, reset=begins)
        return Categorical(logits=self.actor(y)), self.critic(y)[..., 0], state


agent, world = Agent(), Corridors(ENVS)
optimiser = torch.optim.Adam(agent.parameters(), 3e-3)

# %% [markdown]
# ## PPO
#
# As in CleanRL's `ppo_atari_lstm.py`: generalised advantages, a clipped ratio, minibatches of whole rows, each from the
# state that its rollout began with.


# %%
def advantages(rewards: torch.Tensor, begins: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Generalised advantages [T, B] of rewards [T, B] and, one step longer, begins and values."""
    found, last = torch.zeros_like(rewards), torch.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        goes_on = 1.0 - begins[t + 1].float()
        last = rewards[t] + 0.97 * goes_on * values[t + 1] - values[t] + 0.97 * 0.95 * goes_on * last
        found[t] = last
    return found


def update(batch: dict[str, torch.Tensor], first: torch.Tensor) -> None:
    """Four times over all rows, in four parts. batch: [T, B, ...] each; first: the states [1, B, H] before it."""
    for _ in range(4):
        for rows in torch.randperm(ENVS).chunk(4):
            own = {name: value[:, rows] for name, value in batch.items()}
            policy, values, _ = agent(own["seen"], own["begins"], first[:, rows])
            ratio = (policy.log_prob(own["actions"]) - own["log_probs"]).exp()
            gain = (own["gains"] - own["gains"].mean()) / (own["gains"].std() + 1e-8)
            clipped = torch.min(gain * ratio, gain * ratio.clamp(0.8, 1.2)).mean()
            loss = 0.5 * (values - own["returns"]).square().mean() - clipped - 0.01 * policy.entropy().mean()
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimiser.step()


seen, begins, state = world.reset(), torch.ones(ENVS, dtype=torch.bool), torch.zeros(1, ENVS, 32)
for number in range(1, UPDATES + 1):
    first, kept = state, {name: [] for name in ("seen", "begins", "actions", "log_probs", "values", "rewards")}
    with torch.no_grad():
        for _ in range(STEPS):
            policy, values, state = agent(seen[None], begins[None], state)
            actions = policy.sample()
            row = (seen, begins, actions[0], policy.log_prob(actions)[0], values[0])
            for name, value in zip(kept, row, strict=False):
                kept[name].append(value)
            seen, rewards, begins = world.step(actions[0])
            kept["rewards"].append(rewards)
        ahead = agent(seen[None], begins[None], state)[1]
    batch = {name: torch.stack(values) for name, values in kept.items()}
    whole = torch.cat([batch["begins"], begins[None]]), torch.cat([batch["values"], ahead])
    batch["gains"] = advantages(batch["rewards"], *whole)
    batch["returns"] = batch["gains"] + batch["values"]
    update(batch, first)
    if number % 5 == 0:
        right = batch["rewards"].sum() / torch.cat([batch["begins"][1:], begins[None]]).sum()
        print(f"update {number:3}   {100 * right:3.0f} % of the turns are right")

# %% [markdown]
# ## Resets are the states' beginnings
#
# What an update computes in one call is what the rollout did step by step. Without `reset` it would be the memory of
# another episode.

# %%
with torch.no_grad():
    again = agent(batch["seen"], batch["begins"], first)[1]
    mixed = agent(batch["seen"], torch.zeros_like(batch["begins"]), first)[1]
    state, alone = first, []
    for one, flag in zip(batch["seen"], batch["begins"], strict=True):
        state = torch.where(flag[None, :, None], 0.0, state)  # by hand
        y, state = agent.memory(one[None], state)
        alone.append(agent.critic(y)[..., 0])
error = (again - torch.cat(alone)).abs().max().item()
print("as a loop with states cleared by hand:", error < 1e-5)
print("without resets it is another:", (mixed - again).abs().max().item() > 1e-2)

# %% [markdown]
# ## What to read next
#
# `16_torchrl.py` is the same with TorchRL's modules and tensordicts. `07_train.py` trains cells that torch does not
# have; any of them can be this agent's memory.

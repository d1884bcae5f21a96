# %% [markdown]
# # 19. Forecast within a budget
#
# In this tutorial you will train a GRU to forecast a series with days and weeks in it, hour by hour, on six weeks at
# once and with little memory; compare it with the usual rule of thumb; and draw what it expects of the next days. It
# needs PyTorch (`pip install torch`); with matplotlib it draws.

# %%
import numpy as np
import torch
from drawing import draw_loss

import tvm_rnn as rnn

torch.manual_seed(0)
torch.set_num_threads(1)
DAY, WEEK, B, H = 24, 168, 8, 24

# %% [markdown]
# ## A series
#
# The load of eight power grids, made up: mornings, evenings, week-ends, weather that lasts, and noise.


# %%
def load(hours: int, rows: int, seed: int) -> np.ndarray:
    """[hours, rows], of about one on average."""
    rng, hour = np.random.default_rng(seed), np.arange(hours)[:, None]
    phase, sizes = rng.uniform(0, 4, rows), rng.uniform(0.2, 0.4, (3, rows))
    daily = sizes[0] * np.sin(2 * np.pi * (hour - phase) / DAY) + sizes[1] * np.sin(4 * np.pi * (hour - phase) / DAY)
    week_end = np.where(hour // DAY % 7 >= 5, 0.6, 1.0)
    weather, noise = np.zeros((hours, rows)), rng.normal(0, 0.03, (hours, rows))
    for t in range(1, hours):
        weather[t] = 0.98 * weather[t - 1] + noise[t]
    return (week_end * (1 + daily) + sizes[2] * weather + rng.normal(0, 0.02, (hours, rows))).astype(np.float32)


series = load(60 * DAY, B, 0)
trained = 50 * DAY  # hours to learn from; those after them are never seen

# %% [markdown]
# What repeats every week need not be learned: the network sees by how much an hour differs from the same hour of last
# week, and what the clock says, and tells the difference of the next hour.

# %%
hour = np.arange(WEEK, len(series))
clock = np.stack([np.sin(2 * np.pi * hour / DAY), np.cos(2 * np.pi * hour / DAY), hour // DAY % 7 >= 5], 1)
change = series[WEEK:] - series[:-WEEK]
x = np.concatenate([change[:, :, None], np.repeat(clock[:, None].astype(np.float32), B, 1)], 2)  # [T, B, 4]

# %% [markdown]
# ## All hours in one call
#
# Back-propagation through all hours keeps what each step computed: the tape. `plan_memory` says what that takes, and
# what it takes in parts of the time, of which one is in memory and the others run forward again when `backward` gets
# there. Results are the same.

# %%
net = rnn.RNN(rnn.cells.gru, input_size=4, hidden_size=H).init(seed=0)
layer = rnn.to_torch(net, batch=B)
T = trained - WEEK - 1
whole = layer.compiled().plan_memory(T, B)
budget = whole.bytes // 4
parts = layer.compiled().plan_memory(T, B, max_bytes=budget)
print(f"all at once: {whole.bytes / 1e6:.1f} MB; within a quarter: {parts.bytes / 1e6:.1f} MB")
print("within the budget:", parts.bytes <= budget, "  steps that run again:", parts.again)
layer.max_bytes = budget

# %% [markdown]
# ## Train

# %%
inputs, wanted = torch.from_numpy(x[:T]), torch.from_numpy(change[1 : T + 1])
head = torch.nn.Linear(H, 1)
optimiser = torch.optim.Adam([*layer.parameters(), *head.parameters()], 1e-2)
losses = []
for step in range(1, 91):
    y, _ = layer(inputs)
    loss = (head(y)[..., 0] - wanted).square().mean()
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(optimiser.param_groups[0]["params"], 1.0)
    optimiser.step()
    losses.append(loss.item())
    if step % 30 == 0:
        print(f"step {step:4}   error {loss.item() ** 0.5:.3f}")
draw_loss(losses, "squared error")

# %% [markdown]
# ## Forecast
#
# On the hours that it has never seen: one hour ahead, beside the rule of thumb, the same hour of last week. The
# compiled module needs no torch.

# %%
mod = layer.compiled()
W, b = head.weight.detach().numpy()[0], head.bias.item()
y, _ = mod(x[:-1])
unseen = slice(T, None)
ours = np.sqrt(np.mean((y[unseen] @ W + b - change[1:][unseen]) ** 2))
rule = np.sqrt(np.mean(change[1:][unseen] ** 2))
print(f"error an hour ahead: {ours:.3f}, by the rule of thumb {rule:.3f}")
assert ours < 0.7 * rule

# %% [markdown]
# Two days ahead the network reads what it said itself. `step` goes on from the state where the known hours end.

# %%
y, state = mod(x[: T + 1])
y, told = y[-1], []
for t in range(trained, trained + 2 * DAY):
    ahead = y @ W + b
    told.append(series[t - WEEK] + ahead)
    said = np.concatenate([ahead[:, None], x[t - WEEK, :, 1:]], 1).astype(np.float32)
    y, state = mod.step(said, state)
error = np.sqrt(np.mean((np.array(told) - series[trained : trained + 2 * DAY]) ** 2))
print(f"error over two days: {error:.3f}")
try:
    import matplotlib.pyplot as plt

    plt.figure(figsize=(7, 2.5), layout="constrained")
    plt.plot(series[trained - 2 * DAY : trained + 2 * DAY, 0], label="the series")
    plt.plot(range(2 * DAY, 4 * DAY), [row[0] for row in told], label="forecast")
    plt.xlabel("hour")
    plt.legend()
    plt.savefig("forecast.png")
except ImportError:
    print("no picture of the forecast: pip install matplotlib")

# %% [markdown]
# ## What to read next
#
# `07_train.py` trains without torch; `tvm_rnn/runtime/runtime_memory.py` makes the plan for a budget.

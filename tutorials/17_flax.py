# %% [markdown]
# # 17. JAX and Flax
#
# In this tutorial you will put a compiled LSTM into a Flax NNX module, train it with optax inside of `nnx.jit`, and
# write the trained layer to a file that needs no JAX.
#
# It needs JAX, Flax and optax: `pip install ".[jax]" flax optax`, on Python 3.11 or later.

# %%
import tempfile
from pathlib import Path

import numpy as np

import tvm_rnn as rnn

try:
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx
except ModuleNotFoundError as reason:
    print(f"{reason.name} is not installed: nothing to train")
    raise SystemExit from None

T, B, H = 24, 32, 32
rng = np.random.default_rng(0)

# %% [markdown]
# ## A module of Flax's
#
# `rnn.to_jax` makes a pure function of weights and inputs. In a module its weights are `nnx.Param`s like all others, so
# that `nnx.grad`, optimisers and checkpoints see them.


# %%
class Recurrent(nnx.Module):
    """A compiled layer, and a linear one that reads its last step."""

    def __init__(self, net: rnn.RNN, classes: int, rngs: nnx.Rngs) -> None:
        self.layer = rnn.to_jax(net)
        self.weights = nnx.data({name: nnx.Param(value) for name, value in self.layer.weights.items()})
        self.readout = nnx.Linear(net.output_size, classes, rngs=rngs)

    def own(self) -> dict[str, jax.Array]:
        """The layer's weights as they are now."""
        return {name: value[...] for name, value in self.weights.items()}

    def __call__(self, x: jax.Array, lengths: jax.Array) -> jax.Array:
        """Logits [B, classes] of x [T, B, I], of which each row has its own length."""
        _, state = self.layer(self.own(), x, lengths=lengths)
        return self.readout(state["h"][-1])


model = Recurrent(rnn.RNN(rnn.cells.lstm, 2, H).init(seed=0), 2, nnx.Rngs(0))

# %% [markdown]
# ## Which comes first
#
# Rows of noise, in two steps of which a flag is up; the class says whether the number was larger at the first or at the
# second flag.


# %%
def examples() -> tuple[jax.Array, jax.Array, jax.Array]:
    """x [T, B, 2], lengths [B], classes [B]."""
    x, lengths = rng.uniform(-1, 1, (T, B, 2)).astype("float32"), rng.integers(8, T + 1, B)
    x[..., 1] = 0
    at = np.array([np.sort(rng.choice(n, 2, replace=False)) for n in lengths])
    x[at[:, 0], np.arange(B), 1] = x[at[:, 1], np.arange(B), 1] = 1
    first, second = (x[at[:, i], np.arange(B), 0] for i in (0, 1))
    return jnp.asarray(x), jnp.asarray(lengths), jnp.asarray((first > second).astype("int32"))


optimiser = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


@nnx.jit
def train(
    model: Recurrent, optimiser: nnx.Optimizer, batch: tuple[jax.Array, jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """One step of training: its loss, and the share of rows that were right."""

    def loss(model: Recurrent) -> tuple[jax.Array, jax.Array]:
        x, lengths, classes = batch
        logits = model(x, lengths)
        error = optax.softmax_cross_entropy_with_integer_labels(logits, classes).mean()
        return error, (logits.argmax(-1) == classes).mean()

    (error, right), d = nnx.value_and_grad(loss, has_aux=True)(model)
    optimiser.update(model, d)
    return error, right


total = 0.0
for number in range(1, 601):
    error, right = train(model, optimiser, examples())
    total += float(right) / 100
    if number % 100 == 0:
        print(f"step {number:4}   loss {float(error):.3f}   {100 * total:3.0f} % of the last 100 steps' rows are right")
        total = 0.0

# %% [markdown]
# ## Without JAX
#
# The trained layer as a module: a file for `rnn.load`, or a bundle for C.

# %%
x, lengths, _ = examples()
y, _ = model.layer(model.own(), x, lengths=lengths)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "lstm.so")
    model.layer.compiled(model.own()).export(path)
    same = rnn.load(path)(np.asarray(x), lengths=np.asarray(lengths))[0]
print("the file does what the model does:", np.abs(same - np.asarray(y)).max() < 1e-5)

# %% [markdown]
# ## What to read next
#
# `13_accelerate_a_model.py` is the same for a model of torch's. `tvm_rnn/jax_layer/to_jax.py` says what a layer takes.

"""to_jax: an RNN as a pure function of weights and inputs for JAX: jit, grad, vmap, scan.

In: an RNN with weights, and a target. Out: a function whose class needs JAX, and lives in `layer.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvm_rnn import this_machine
from tvm_rnn.errors import ConfigError, WeightError, message, not_installed
from tvm_rnn.network.rnn import RNN, no_network
from tvm_rnn.runtime.runtime_training import TrainingModule
from tvm_rnn.target import resolve

if TYPE_CHECKING:
    from tvm_rnn.target import Target

    from .layer import JaxLayer


def to_jax(
    net: RNN, target: str | Target = "llvm", batch: int | Sequence[int] = (), *, keep: str | None = None
) -> JaxLayer:
    """The network as a pure function for JAX on a CPU: `y, state = layer(weights, x, state)`, with x [T, B, I],
    or [B, T, I] of a net with batch_first.

    `layer.weights` is what the net has, {name: array}: begin with it, and train it with any optimiser. What y and the
    state depend on gets gradients by reverse mode, once: jax.grad, jax.vjp, jax.jacrev, inside of jit and scan too.

    jax.vmap over inputs and states is one call with more rows, also where jax.grad goes around it; over weights, and
    around jax.grad for gradients of each example, it is one call after the other. The net's regularisers act where a
    seed is given: `layer(weights, x, seed=jax.random.bits(key))`.

    Args:
        net: an RNN with weights.
        target: as for `compile`, of this machine's CPU.
        batch: as for `compile`: one or more batch sizes to optimise for.
        keep: as for `compile`: "states" takes less memory for gradients, and more time.

    Returns:
        The function, a `JaxLayer`.

    Raises:
        ConfigError: the target is another machine, or jax or jax-tvm-ffi is not installed.
        WeightError: the net has no weights.
    """
    if not isinstance(net, RNN):
        raise no_network("to_jax", net)
    if not net.weights and net.weight_shapes:
        raise WeightError(message("the RNN has no weights", do="call net.init(seed=0) or net.load(...) first"))
    net.check_weights()
    found = resolve(target)
    if found.kind != "llvm" or found.machine != this_machine.machine():
        do = 'leave out target; rnn.to_torch(net, "cuda") trains on a GPU'
        raise ConfigError(message("to_jax: code for JAX runs on this machine's CPU", got=found.name, do=do))
    try:
        from .layer import JaxLayer
    except ImportError as error:
        raise ConfigError(not_installed(str(error.name))) from None
    from tvm_rnn.compiler.compile import compile

    module = compile(net.time_first(), found, batch, training=True, keep=keep)
    assert isinstance(module, TrainingModule)
    return JaxLayer(net, module)

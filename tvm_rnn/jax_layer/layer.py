"""A compiled network as a pure function of weights and inputs. In: arrays of JAX. Out: such arrays.

Imported only by `to_jax.py`, because it imports JAX.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from tvm_rnn.errors import ConfigError, InputError, WeightError, message
from tvm_rnn.network.rnn import RNN
from tvm_rnn.runtime.runtime import Array, Shape, State
from tvm_rnn.runtime.runtime_training import TrainingModule

from .calls import Code, Form
from .primitives import steps_p

# A module's states are dicts to JAX, as a layer's are.
jax.tree_util.register_pytree_node(
    State,
    lambda state: ([*state.values()], (*state.keys(),)),
    lambda names, values: dict(zip(names, values, strict=True)),
)


class JaxLayer:
    """A network as a pure function; see `tvm_rnn.to_jax`.

    net: the network, whose weights the function does not use."""

    def __init__(self, net: RNN, module: TrainingModule) -> None:
        self.net, self._code = net, Code(module)

    def __repr__(self) -> str:
        return f"<JaxLayer of {self.net!r}>"

    @property
    def weights(self) -> dict[str, Array]:
        """The net's weights as arrays of JAX, to begin with."""
        self._check_dtype()
        return {name: jnp.asarray(value) for name, value in self.net.weights.items()}

    def __call__(
        self,
        weights: Mapping[str, Array],
        x: Array | Mapping[str, Array] | tuple[Array, ...],
        state: Mapping[str, Array] | None = None,
        *,
        lengths: Array | None = None,
        reset: Array | None = None,
        seed: Array | int | None = None,
        first_step: Array | int = 0,
        **inputs: Array,
    ) -> tuple[Array, dict[str, Array]]:
        """All steps: (y [T, B, D*H], {name: state after the last step}).

        weights: {name: array}, as `self.weights`. seed: an integer, of which all masks and random numbers are made;
        None: regularisers do not act. Other arguments as of a compiled Module's call, and of its `forward_train`.

        Raises InputError or WeightError for arrays that do not fit."""
        self._check_dtype()
        module, own = self._code.module, self._weights(weights)
        if module._held:
            x, state, inputs = module.hold(x, state, inputs, reset)
        first, *others = [*map(jnp.asarray, module._name_inputs(x, inputs))]
        module._check_lead(*module._inputs[0], first.shape, ("B", "T") if self.net.batch_first else ("T", "B"))
        first, *others = [self._ordered(value) for value in (first, *others)]
        reset = None if reset is None else self._ordered(reset)
        (T, B), arrays = first.shape[:2], []

        def take(what: str, value: Array, shape: Shape, axes: str) -> None:
            value = jnp.asarray(value)
            if value.shape != shape:
                expected = f"{shape} = {axes}"
                raise InputError(message(f"{what} has the wrong shape", got=value.shape, expected=expected))
            if value.dtype != module._dtype:
                do = f"cast it: .astype({str(module._dtype)!r})"
                raise InputError(message(f"{what} has the wrong dtype", got=value.dtype, expected=module._dtype, do=do))
            arrays.append(value)

        for (name, shape), value in zip(module._inputs, [first, *others], strict=True):
            take(name, value, (T, B, *shape), "[T, B, ...]")
        if state is not None:
            module._each_state(state, B, take, len)
        rows = self._rows((T, B), lengths, reset)
        seeded = seed is not None and "masks" in module.manifest
        if seeded:
            rows += [jnp.asarray(seed), jnp.asarray(first_step)]
        form = Form(self._code.number, state is not None, lengths is not None, reset is not None, seeded)
        y, *last = steps_p.bind(*arrays, *own.values(), *rows, form=form)
        return self._ordered(y), self._code.named(last)

    def _ordered(self, value: Array) -> Array:
        """[T, B, ...] of an array [B, T, ...], and the other way about, where the net has the batch first."""
        if not self.net.batch_first or np.ndim(value) < 2:
            return value
        return jnp.swapaxes(jnp.asarray(value), 0, 1)

    def compiled(self, weights: Mapping[str, Array]) -> TrainingModule:
        """A compiled module with these weights: to call without JAX, or to export."""
        module = copy.copy(self._code.module)
        module.load_weights({name: np.asarray(value) for name, value in self._weights(weights).items()})
        module.batch_first = self.net.batch_first
        return module

    def _check_dtype(self) -> None:
        if self.net.dtype == "float64" and not jax.config.read("jax_enable_x64"):
            do = 'jax.config.update("jax_enable_x64", True)'
            raise ConfigError(message("JAX has no float64 now", got=repr(self.net), do=do))

    def _weights(self, given: Mapping[str, Array]) -> dict[str, Array]:
        if not isinstance(given, Mapping):
            got, expected = type(given).__name__, "a dict of arrays"
            raise WeightError(
                message("these are not weights", got=got, expected=expected, do="layer(layer.weights, x)")
            )
        module = self._code.module
        module._check_names(given)
        found = {name: jnp.asarray(given[name]) for name in module._weight_shapes}
        module._check_shapes(found)
        return found

    def _rows(self, lead: tuple[int, int], lengths: Array | None, reset: Array | None) -> list[Array]:
        """lengths and reset, those that there are. Raises InputError where they do not fit."""
        traced = any(isinstance(value, jax.core.Tracer) for value in (lengths, reset))
        if not traced:
            own = [None if value is None else np.asarray(value) for value in (lengths, reset)]
            self._code.module._read_rows(own[0], own[1], lead)
        found = []
        for what, value, kinds, shape in (("lengths", lengths, "iu", lead[1:]), ("reset", reset, "bu", lead)):
            if value is None:
                continue
            array = jnp.asarray(value)
            if array.shape != shape or array.dtype.kind not in kinds:
                got, expected = f"{array.dtype} of shape {array.shape}", f"{shape}"
                raise InputError(message(f"{what} does not fit x", got=got, expected=expected, do="cast or reshape it"))
            found.append(array.astype(np.uint8) if what == "reset" else array)
        return found

"""Compiled steps as primitives of JAX's, with their rules for gradients and batches.

In: arrays, and a `Form` that says what they are. Out: arrays. `steps` becomes `recorded` and `tangents` where JAX
differentiates, and the transpose of `tangents` is `gradients`, so that forward runs once. With jax.custom_vjp each
example of a batch would have weight gradients of its own, even where only their sum is asked for: primitives learn
first whether jax.vmap or jax.grad is the inner one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

import jax
import jax.numpy as jnp
import jax_tvm_ffi
import tvm_ffi
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from tvm_rnn.errors import ConfigError, message
from tvm_rnn.runtime.runtime import Array

from . import calls
from .calls import Form


def _results(x: Array, form: Form, tape: bool = False) -> list[ShapedArray]:
    """What y and the last states look like, and the tape. x: the first input."""
    (T, B), own = x.shape[:2], form.own
    shapes = [(T, B, *own.module._output), *own.shapes(B), *([(own.tape(T, B),)] if tape else [])]
    return [ShapedArray(shape, own.module._dtype) for shape in shapes]


def _sources(form: Form, lead: tuple[int, int]) -> list[ShapedArray]:
    """What gradients look like: of inputs, first states, weights."""
    own, (T, B) = form.own, lead
    shapes = [(T, B, *inner) for _, inner in own.module._inputs] + own.shapes(B)
    return [ShapedArray(shape, own.module._dtype) for shape in [*shapes, *own.module._weight_shapes.values()]]


def _call(name: str, results: Sequence[ShapedArray], numbers: Sequence[int], arrays: Sequence[Array]) -> list[Array]:
    structs = [jax.ShapeDtypeStruct(result.shape, result.dtype) for result in results]
    attributes = {f"n{i}": int(number) for i, number in enumerate(numbers)}
    return jax.ffi.ffi_call(name, structs)(*arrays, **attributes)


def _steps(*arrays: Array, form: Form) -> list[Array]:
    return _call("tvm_rnn_steps", _results(arrays[0], form), form, arrays)


def _recorded(*arrays: Array, form: Form) -> list[Array]:
    return _call("tvm_rnn_recorded", _results(arrays[0], form, tape=True), form, arrays)


def _gradients(*arrays: Array, form: Form, lead: tuple[int, int], above: int) -> list[Array]:
    return _call("tvm_rnn_gradients", _sources(form, lead), [*form, *lead, above], arrays)


def _tangents(*arrays: Array, **_facts: object) -> NoReturn:
    do = "jax.grad, jax.vjp or jax.jacrev"
    raise ConfigError(message("compiled steps have gradients by reverse mode alone", got="forward mode", do=do))


def _once(*_arrays: object, **_facts: object) -> NoReturn:
    what, do = "compiled steps have first gradients in JAX", "rnn.to_torch(net) has gradients of gradients"
    raise ConfigError(message(what, got="a gradient of a gradient", do=do))


def _primitive(name: str, call: Callable[..., list[Array]], abstract: Callable[..., list[ShapedArray]]) -> Primitive:
    found = Primitive(f"tvm_rnn_{name}")
    found.multiple_results = True
    found.def_impl(jax.jit(call, static_argnames=("form", "lead", "above")[: 1 if name != "gradients" else 3]))
    found.def_abstract_eval(abstract)
    mlir.register_lowering(found, mlir.lower_fun(call, multiple_results=True), platform="cpu")
    batching.primitive_batchers[found] = partial(_one_after_the_other, found)
    ad.primitive_jvps[found] = _once
    return found


# --- batches ----------------------------------------------------------------------------------------------------------


def _one_after_the_other(
    primitive: Primitive, arrays: Sequence[Array], axes: Sequence[int | None], **facts: object
) -> tuple[list[Array], list[int]]:
    def one(batched: Sequence[Array]) -> list[Array]:
        rest = iter(batched)
        own = [array if axis is None else next(rest) for array, axis in zip(arrays, axes, strict=True)]
        return primitive.bind(*own, **facts)

    pairs = zip(arrays, axes, strict=True)
    found = jax.lax.map(one, [jnp.moveaxis(array, axis, 0) for array, axis in pairs if axis is not None])
    return found, [0] * len(found)


def _more_rows(arrays: Sequence[Array], axes: Sequence[int | None], form: Form) -> tuple[list[Array], list[int]]:
    """One call with the rows of all examples. Weights of each example need a call of its own, and so do masks, which
    depend on the row."""
    weights = form.leading + len(form.own.module._weight_shapes)
    if form.seed or any(axis is not None for axis in axes[form.leading : weights]):
        return _one_after_the_other(steps_p, arrays, axes, form=form)
    count = next(array.shape[axis] for array, axis in zip(arrays, axes, strict=True) if axis is not None)

    def rows(i: int, array: Array, axis: int | None) -> Array:
        if form.leading <= i < weights:
            return array
        at = 0 if form.lengths and i == weights else 1  # where the batch is
        if axis is None:
            array = jnp.broadcast_to(jnp.expand_dims(array, at), (*array.shape[:at], count, *array.shape[at:]))
        else:
            array = jnp.moveaxis(array, axis, at)
        return array.reshape(*array.shape[:at], -1, *array.shape[at + 2 :])

    given = [rows(i, *pair) for i, pair in enumerate(zip(arrays, axes, strict=True))]
    found = steps_p.bind(*given, form=form)
    return [y.reshape(y.shape[0], count, y.shape[1] // count, *y.shape[2:]) for y in found], [1] * len(found)


# --- gradients --------------------------------------------------------------------------------------------------------


def _jvp(primals: Sequence[Array], tangents: Sequence[Array], form: Form) -> tuple[list[Array], list[Array]]:
    if "masks" in form.own.module.manifest and not form.seed:
        what, do = "a network with regularisers has gradients in training", "give a seed: layer(weights, x, seed=n)"
        raise ConfigError(message(what, got="seed=None", do=do))
    *results, tape = recorded_p.bind(*primals, form=form)
    count = len(primals) - form.rows
    moved = tuple(type(tangent) is not ad.Zero for tangent in tangents[:count])
    given = [tangent for tangent, moves in zip(tangents, moved, strict=False) if moves]
    facts = {"form": form, "moved": moved, "lead": primals[0].shape[:2]}
    return results, tangents_p.bind(tape, *primals[form.leading :], *given, **facts)


def _transpose(
    above: Sequence[Array], *arrays: Array, form: Form, moved: tuple[bool, ...], lead: tuple[int, int]
) -> list[Array | None]:
    tape, *fixed = arrays[: len(arrays) - sum(moved)]
    given = [d for d in above if type(d) is not ad.Zero]
    bits = sum(1 << i for i, d in enumerate(above) if type(d) is not ad.Zero)
    found = gradients_p.bind(tape, *given, *fixed, form=form, lead=lead, above=bits)
    if not form.state:
        inputs = len(form.own.module._inputs)
        found = found[:inputs] + found[inputs + len(form.own.shapes(1)) :]
    return [None] * (1 + len(fixed)) + [d for d, moves in zip(found, moved, strict=True) if moves]


def _moved(*_arrays: Array, form: Form, moved: tuple[bool, ...], lead: tuple[int, int]) -> list[ShapedArray]:
    return _results(jax.ShapeDtypeStruct(lead, form.own.module._dtype), form)


steps_p = _primitive("steps", _steps, lambda *arrays, form: _results(arrays[0], form))
recorded_p = _primitive("recorded", _recorded, lambda *arrays, form: _results(arrays[0], form, tape=True))
gradients_p = _primitive("gradients", _gradients, lambda *arrays, form, lead, above: _sources(form, lead))
tangents_p = Primitive("tvm_rnn_tangents")
tangents_p.multiple_results = True
tangents_p.def_impl(_tangents)
tangents_p.def_abstract_eval(_moved)
mlir.register_lowering(tangents_p, _tangents)
batching.primitive_batchers[tangents_p] = _tangents
batching.primitive_batchers[steps_p] = _more_rows
ad.primitive_jvps[steps_p] = _jvp
ad.primitive_transposes[tangents_p] = _transpose

for _name, _function, _count in (
    ("steps", calls.steps, 0),
    ("recorded", calls.recorded, 0),
    ("gradients", calls.gradients, 3),
):
    jax_tvm_ffi.register_ffi_target(
        f"tvm_rnn_{_name}",
        tvm_ffi.convert(_function),
        [*(f"attrs.n{i}" for i in range(len(Form._fields) + _count)), "args", "rets"],
        pass_owned_tensor=True,
    )

"""Generation: the output of a step is the input of the next, in one call of compiled code.

In: a module with a function `generate`, how many steps, the first inputs. Out: the outputs, the last state, and how
many steps each row took. `Request`, what a call asks for, is checked here for the oracle too. Works alone beside a .so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypedDict

import numpy as np

from . import runtime, runtime_random
from .runtime import Array, InputError, Module, State

MOST_STEPS = 1 << 40


class Options(TypedDict):
    """Of a call: what has a name. inputs: the cell's others."""

    seed: object
    first_step: object
    stop: object
    inputs: Mapping[str, object]


class Network(NamedTuple):
    """What generation must know of a network. tokens: how many there are, where its input is one; shape: of its input
    and output; draws: the streams of its random numbers; batch_first: whether a call's arrays are [B, T, ...]."""

    tokens: int | None
    shape: tuple[int, ...]
    dtype: np.dtype
    draws: list[str]
    batch_first: bool = False

    def axes(self, steps: str) -> str:
        """Of arrays over time, as a call has them."""
        return f"B, {steps}" if self.batch_first else f"{steps}, B"

    def ordered(self, array: np.ndarray) -> np.ndarray:
        """[T, B, ...] of a call's array, and the other way about."""
        return np.ascontiguousarray(array.swapaxes(0, 1)) if self.batch_first else array


class Request(NamedTuple):
    """A call that was checked. prompt: [P, B, *shape], in the network's dtype; steps: after it; seed: None where
    nothing is drawn; stop: the output that ends a row, None: nothing does."""

    net: Network
    prompt: np.ndarray
    steps: int
    seed: int | None
    first_step: int
    stop: float | None

    @property
    def rows(self) -> int:
        return int(self.prompt.shape[1])

    @property
    def total(self) -> int:
        """The steps that are run: the prompt's last one makes the first output."""
        return len(self.prompt) - 1 + self.steps

    def results(self, y: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of all outputs [total, B, *shape] and the number of steps of each row: the new outputs as the caller has
        them, those of tokens as [steps, B] int32, with `stop` behind a row's end; and how many of them are a row's
        own."""
        before = len(self.prompt) - 1
        new, lengths = y[before:], np.maximum(ends - before, 0)
        over = np.arange(self.steps)[:, None] >= lengths
        if self.stop is not None:
            new[over] = self.stop
        if self.net.tokens is None:
            return self.net.ordered(new), lengths
        tokens = new[..., 0]
        wrong = tokens[~((tokens >= 0) & (tokens < self.net.tokens) & (tokens == np.floor(tokens)))]
        if wrong.size:
            do = "emit a place in the table, such as argmax(logits) or sample(logits)"
            expected = f"whole numbers from 0 to {self.net.tokens - 1}"
            raise _error("an output is no token", f"{wrong[0]}", expected, do)
        return self.net.ordered(tokens.astype(np.int32)), lengths


def _error(what: str, got: object, expected: object = None, do: object = None) -> Exception:
    return runtime._error(InputError, what, got, expected, do)


def requested(
    net: Network,
    steps: object,
    prompt: object,
    rows: int | None,
    options: Options,
) -> Request:
    """The request of a call. rows: of the state that was given, or None; options: seed, first_step, stop. Raises
    InputError."""
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or not 1 <= steps <= MOST_STEPS:
        raise _error("generate: the number of steps", repr(steps), "an integer of at least 1")
    first = (
        np.zeros((1, 1 if rows is None else rows, *net.shape), net.dtype) if prompt is None else _prompt(net, prompt)
    )
    if rows is not None and first.shape[1] != rows:
        raise _error("prompt and state differ in rows", f"{first.shape[1]} and {rows}", "one batch")
    stop = _stop(net, options["stop"])
    seed, start = options["seed"], options["first_step"]
    if net.draws and seed is None:
        raise _error("this network draws random numbers", "no seed", "an integer", "generate(steps, seed=1)")
    own, start = runtime_random.checked({}, 0 if seed is None else seed, start, _of_kind)
    return Request(net, first, int(steps), own if net.draws else None, start, stop)


def _stop(net: Network, stop: object) -> float | None:
    if stop is None:
        return None
    number = isinstance(stop, int | float | np.integer | np.floating) and not isinstance(stop, bool)
    value = float(stop) if isinstance(stop, int | float | np.integer | np.floating) else math.nan
    if not number or net.shape != (1,) or not math.isfinite(value) or (net.tokens and value not in range(net.tokens)):
        expected = f"a token from 0 to {net.tokens - 1}" if net.tokens else "a finite number, of outputs of 1"
        raise _error("generate: stop", f"{stop!r}, of outputs of {net.shape}", expected)
    return value


def _of_kind(what: str, got: object, expected: object, do: object = None) -> Exception:
    return _error(f"generate: {what}", got, expected, do)


def _prompt(net: Network, prompt: object) -> np.ndarray:
    array = runtime._numpy("prompt", prompt) if hasattr(prompt, "__dlpack__") else np.asarray(prompt)
    if net.tokens is None:
        if array.ndim < 2 or array.shape[2:] != net.shape or not array.shape[int(net.batch_first)]:
            expected = f"[{', '.join([net.axes('P'), *map(str, net.shape)])}], P of at least 1"
            raise _error("prompt has the wrong shape", array.shape, expected)
        if array.dtype != net.dtype:
            raise _error("prompt has the wrong dtype", array.dtype, net.dtype, "cast it")
        return np.ascontiguousarray(net.ordered(array))
    array = array[..., 0] if array.ndim == 3 and array.shape[2:] == (1,) else array
    if array.ndim != 2 or not array.shape[int(net.batch_first)] or array.dtype.kind not in "iu":
        got = f"{array.dtype} of shape {array.shape}"
        raise _error("prompt is not one of tokens", got, f"integers [{net.axes('P')}], P of at least 1")
    if array.size and not 0 <= array.min() <= array.max() < net.tokens:
        wrong = array[(array < 0) | (array >= net.tokens)][0]
        raise _error("prompt: no such token", wrong, f"0 to {net.tokens - 1}")
    return net.ordered(array)[..., None].astype(net.dtype)


def network(module: Module) -> Network:
    """Of a module. Raises InputError for one that was not compiled to generate."""
    manifest = module.manifest
    facts = manifest.get("generation")
    if facts is None:
        do = "rnn.compile(net, generate=True)"
        raise _error("this module cannot generate", "a module for given inputs", "one for generation", do)
    tokens, draws = facts.get("tokens"), manifest.get("draws") or []
    return Network(tokens, tuple(manifest.inputs[0].shape), module._dtype, [*draws], module.batch_first)


def others(module: Module, ask: Request, named: Mapping[str, object]) -> list[np.ndarray]:
    """The cell's inputs after the first, flat. Raises InputError where they are not all there, or do not fit."""
    wanted = [name for name, _ in module._inputs[1:]]
    if sorted(named) != sorted(wanted):
        axes = ask.net.axes(str(ask.total))
        do = f"give each other input once, [{axes}, ...]: the prompt's steps but the last, and {ask.steps} more"
        raise _error("the inputs are not the module's", [*named], wanted, do)
    lead = (ask.rows, ask.total) if ask.net.batch_first else (ask.total, ask.rows)
    text, found = f"[{ask.net.axes('T')}, ...]", []
    for name, shape in module._inputs[1:]:
        own = (*lead, *shape)
        found.append(ask.net.ordered(module._flat(name, named[name], own, text).reshape(own)).ravel())
    return found


def run(
    module: Module, steps: object, state: Mapping[str, object] | None, prompt: object, options: Options
) -> tuple[Array, State, Array]:
    """What `Module.generate` does. options: seed, first_step, stop, inputs."""
    m = module.manifest
    net = network(module)
    if module._packed is None:
        raise module._weightless()
    ask = requested(net, steps, prompt, _rows_of(state), options)
    T, B = ask.total, ask.rows
    x = np.zeros((T, B, *net.shape), net.dtype)
    x[: len(ask.prompt)] = ask.prompt[:T]
    like: Callable[[np.ndarray], Array] | None = None if prompt is None else runtime._like(type(prompt))
    given = others(module, ask, options["inputs"])
    before = module._read_states(state, B)
    after, y, ends = [a.copy() for a in before], np.zeros(x.shape, net.dtype), np.full(B, T, np.int64)
    if B:
        own, progress = m.generation.workspace, np.array([B, 0], np.int64)
        elements = own.fixed + B * (own.per_row + own.per_tile_row + T * own.per_sequence_row)
        work = runtime._aligned(max(1, elements), net.dtype)
        layers, directions = int(m.num_layers), int(m.num_directions)
        keys = runtime_random.keys(ask.seed or 0, net.draws, layers, directions).ravel()
        drawn = (ask.first_step, keys) if net.draws else ()
        numbers = (T, B, 1, module._threads_for(B), 1, 0)
        stop = (0, 0.0) if ask.stop is None else (1, ask.stop)
        rows = (ends, np.zeros(1, np.uint8), module._packed, work)
        function = module._library.get_function("generate")
        arrays = (x.ravel(), *given, y.ravel(), *before, *after)
        function(*numbers, *arrays, *rows, len(ask.prompt), *stop, progress, *drawn)
    new, lengths = ask.results(y, ends)
    made = new if like is None else like(new)
    return made, module._shape_states(after, B, like), lengths if like is None else like(lengths)


def _rows_of(state: object) -> int | None:
    """The rows of a state as far as it can be told; what is wrong with it is said later."""
    if not isinstance(state, Mapping) or not state:
        return None
    first = next(iter(state.values()))
    shape: tuple[int, ...] = tuple(
        getattr(first[0] if isinstance(first, list | tuple) and first else first, "shape", ())
    )
    return int(shape[1]) if len(shape) > 1 else None


__all__ = ["Network", "Request", "network", "others", "requested", "run"]

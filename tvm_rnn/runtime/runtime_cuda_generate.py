"""Generation on GPUs: the output of a step is the input of the next, and nothing leaves the GPU until all are done.

In: a module for GPUs with a program of the loop, how many steps, the first inputs. Out: as of `runtime_generate.py`,
which checks what was asked for; a prompt and results are copied once per call. Works alone beside a .so, together with
runtime_cuda.py, runtime_generate.py, runtime_random.py and gpu_arrays.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from . import gpu_arrays, runtime, runtime_generate
from .gpu_arrays import Arrays, HostArrays, Piece
from .runtime import Array, State
from .runtime_cuda import CudaModule
from .runtime_generate import Options, Request

CHUNK = 256  # steps after which it is asked whether all rows have ended, where anything ends them
HALVES = ("float16", "bfloat16")


def run(
    module: CudaModule, steps: object, state: Mapping[str, object] | None, prompt: object, options: Options
) -> tuple[Array, State, Array]:
    """What `Module.generate` does. options: seed, first_step, stop, inputs."""
    net, widens = runtime_generate.network(module), module._kind in HALVES
    given = gpu_arrays.to_numpy(prompt, widens)
    ask = runtime_generate.requested(net, steps, given, runtime_generate._rows_of(state), options)
    if not module.weights and module._weight_shapes:
        raise module._weightless()
    named = {name: gpu_arrays.to_numpy(value, widens) for name, value in options["inputs"].items()}
    others = runtime_generate.others(module, ask, named)
    before = module._read_states(_on_the_cpu(state, widens), ask.rows)
    loop = _Loop(module, ask, others, before)
    y, ends = loop.run() if ask.rows else (np.zeros(loop.shape, net.dtype), np.zeros(0, np.int64))
    new, lengths = ask.results(y, ends)
    like = _like(module, prompt)
    return like(new), module._shape_states(loop.states, ask.rows, like), like(lengths)


def _on_the_cpu(state: Mapping[str, object] | None, widens: bool) -> Mapping[str, object] | None:
    if not isinstance(state, Mapping):
        return state
    found = dict[str, object]()
    for name, value in state.items():
        if isinstance(value, list | tuple):
            found[name] = [gpu_arrays.to_numpy(layer, widens) for layer in value]
        else:
            found[name] = gpu_arrays.to_numpy(value, widens)
    return found


def _like(module: CudaModule, prompt: object) -> Callable[[np.ndarray], Array]:
    """What makes results of the kind and at the place of the prompt; of 16-bit networks in that dtype, where it has
    one: NumPy lacks bfloat16."""
    there: Callable[[np.ndarray], Array] | None = None
    if gpu_arrays.gpu_of(prompt) is not None:
        there = gpu_arrays.sender(prompt)
    elif prompt is not None:
        kind: type = type(prompt)
        there = runtime._like(kind)

    def like(array: np.ndarray) -> Array:
        halves = array.dtype == np.float32 and module._kind in HALVES
        array = array.astype(np.float16) if halves and module._kind == "float16" else array
        found = array if there is None else there(array)
        return found.bfloat16() if halves and module._kind == "bfloat16" and hasattr(found, "bfloat16") else found

    return like


class _Loop:
    """One call. states: the user's, flat, before it and then after it."""

    def __init__(
        self, module: CudaModule, ask: Request, others: Sequence[np.ndarray], states: list[np.ndarray]
    ) -> None:
        self.module, self.ask, self.states = module, ask, states
        self.shape = (ask.total, ask.rows, *ask.net.shape)
        width, dtype = prod(ask.net.shape), ask.net.dtype
        self.one = width == 1
        x = np.zeros((ask.total + 1, ask.rows, width), dtype)
        x[: len(ask.prompt)] = ask.prompt.reshape(len(ask.prompt), ask.rows, width)
        given = np.zeros((ask.total, ask.rows, 1), dtype)
        given[: len(ask.prompt) - 1] = 1
        self.inputs = [x[1:], given]
        if self.one:
            self.inputs.append(np.full(given.shape, np.nan if ask.stop is None else ask.stop, dtype))
        self.inputs += [array.reshape(ask.total, -1) for array in others]
        self.fed = [x[0], *([np.zeros((ask.rows, 1), dtype)] if self.one else [])]

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        """All outputs, and how many steps each row took."""
        ask, total = self.ask, self.ask.total
        y, ends = np.zeros((total, ask.rows, *ask.net.shape), ask.net.dtype), np.full(ask.rows, total, np.int64)
        # States of 16 bits are rounded between chunks.
        chunk = total if ask.stop is None or self.module._kind in HALVES else CHUNK
        for start in range(0, total, chunk):
            stop = min(start + chunk, total)
            y[start:stop] = self.module._on_device(self.states[0], partial(self._on, start, stop))
            if ask.stop is not None:
                new = np.arange(start, stop)[:, None] >= len(ask.prompt) - 1
                hit = new & (y[start:stop].reshape(stop - start, -1) == ask.stop)
                ends = np.where(hit.any(0) & (ends == total), start + hit.argmax(0) + 1, ends)
                if (ends <= stop).all():
                    break
        return y, ends

    def _on(self, start: int, stop: int, arrays: Arrays) -> np.ndarray:
        """The outputs of some steps; states are those after them."""
        assert isinstance(arrays, HostArrays)
        module, kind, rows = self.module, self.module._kind, self.ask.rows
        device, stream = module._device(arrays), arrays.stream()
        program = module._ready(device, "generate" if "generate" in device.parts else "sequence", stream)

        def piece(array: np.ndarray) -> Piece:
            return Piece(gpu_arrays.narrow(array, kind), kind)

        before = [piece(array) for array in (*self.states, *self.fed)]
        after = [arrays.empty(array.shape) for array in before]
        y = arrays.empty((stop - start, rows, *self.ask.net.shape))
        work = arrays.workspace(program.workspace(stop - start, rows, stream))
        inputs = [piece(array[start:stop]) for array in self.inputs]
        places = [address for own in (before, after) for address in self._by_layer(arrays, own)]
        sizes = (stop - start, rows)
        module._launch(program, arrays, sizes, [y, None, None], [work, *inputs, *self._drawn(start), *places])
        found = [self._floats(arrays, own) for own in after]
        self.states, self.fed = found[: len(self.states)], found[len(self.states) :]
        return self._floats(arrays, y)

    def _floats(self, arrays: HostArrays, piece: Piece) -> np.ndarray:
        """Results in the CPU's memory."""
        values = arrays.flat(piece).reshape(piece.shape)
        return gpu_arrays.widen(values) if self.module._kind == "bfloat16" else values.astype(self.ask.net.dtype)

    def _drawn(self, start: int) -> tuple[int, ...]:
        """What random numbers are made of."""
        if self.ask.seed is None:
            return ()
        return self.ask.seed - (1 << 64) if self.ask.seed >> 63 else self.ask.seed, 0, self.ask.first_step + start

    def _by_layer(self, arrays: HostArrays, pieces: Sequence[Piece]) -> Iterator[int]:
        """The address of each state of each layer: the loop has a state for each."""
        module, item = self.module, arrays.item.itemsize
        for state, own in zip(module.manifest.states, pieces, strict=False):
            at = arrays.address(own)
            for shape in state.shapes:
                yield at
                at += item * self.ask.rows * prod(shape)
        yield from map(arrays.address, pieces[len(module.manifest.states) :])

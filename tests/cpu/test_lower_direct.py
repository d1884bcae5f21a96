"""One row's step as a plain C function: of every cell what the oracle computes, called by a bundle's library."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from networks import arguments, network
from tvm import tirx

import tvm_rnn as rnn
from tvm_rnn.bundle.facts import LOCALS, TAKEN
from tvm_rnn.compiler.link import generate
from tvm_rnn.cpu.lower_direct import direct_of, narrowed
from tvm_rnn.names import identifiers
from tvm_rnn.options import Options
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import TABLE

STEPS = 5
CELLS = rnn.cells.names()


class Stepper:
    """The functions of a bundle that step one row, by ctypes."""

    def __init__(self, mod: rnn.Module, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        mod.export(bundle=folder / "net")
        self.functions, self.handle = ctypes.CDLL(str(folder / "net" / "libnet.so")), ctypes.c_void_p()
        self.functions.net_error.restype = ctypes.c_char_p
        self("open", None, ctypes.byref(self.handle))

    def __call__(self, name: str, *arguments: object) -> None:
        given = [a.ctypes.data_as(ctypes.c_void_p) if isinstance(a, np.ndarray) else a for a in arguments]
        given = [ctypes.c_int64(a) if isinstance(a, int) else a for a in given]
        status = getattr(self.functions, f"net_{name}")(*given)
        assert name == "close" or not status, self.functions.net_error()

    def step(self, batch: int, arrays: Iterable[np.ndarray | None]) -> str:
        """What a step says: nothing, or its error."""
        given = [a if a is None else a.ctypes.data_as(ctypes.c_void_p) for a in arrays]
        status = self.functions.net_step(self.handle, ctypes.c_int64(batch), *given)
        return self.functions.net_error().decode() if status else ""

    def unchecked(self, *arrays: np.ndarray) -> None:
        """As the header's inline function calls it. arrays: inputs, y, states."""
        entry = ctypes.cast(self.handle, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)))[0]
        step = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(arrays) + 1))(entry[0])
        step(*(array.ctypes.data_as(ctypes.c_void_p) for array in arrays), entry[1])


def flat(value: object) -> np.ndarray:
    """A state as C has it: the layers' parts one after the other."""
    return np.concatenate([np.ravel(part) for part in (value if isinstance(value, list) else [value])])


def check(net: rnn.RNN, folder: Path) -> None:
    mod = rnn.compile(net, batch=1)
    assert mod.manifest.get("direct"), "it has no such function"
    stepper = Stepper(mod, folder)
    x, state = arguments(net, STEPS, 1)
    expected, after = rnn.reference(net)(x, state)
    y = np.full((STEPS, *net.output_shape), np.nan, net.dtype)
    for called in ("step", "unchecked", "sequence"):
        states = [flat(value) for value in state.values()]
        if called == "sequence":
            stepper("sequence", stepper.handle, STEPS, 1, *x.values(), *states, y, None, None)
        for t in range(STEPS) if called != "sequence" else ():
            row = [np.ascontiguousarray(value[t]) for value in x.values()]
            if called == "step":
                stepper("step", stepper.handle, 1, *row, *states, y[t])
            else:
                stepper.unchecked(*row, y[t], *states)
        assert_close(y.reshape(expected.shape), expected, net.dtype, STEPS)
        for own, value in zip(states, after.values(), strict=True):
            assert_close(own, flat(value), net.dtype, STEPS)
    words = identifiers([*x, *state], TAKEN | LOCALS)
    row = [value[0].ravel() for value in x.values()] + [flat(value) for value in state.values()]
    check_looks(stepper, {**dict(zip(words, row, strict=True)), "y": y[0].ravel()}, set(words[: len(x)]))
    stepper("close", stepper.handle)


def check_looks(stepper: Stepper, arrays: dict[str, np.ndarray], read: set[str]) -> None:
    """A step says what is wrong, of every array and of every two that share one element; end to end they may lie."""
    bad = {name: np.zeros(a.nbytes + 1, np.uint8)[1:] for name, a in arrays.items()}
    for name in arrays:
        assert stepper.step(1, {**arrays, name: None}.values()) == f"{name} is null"
        assert stepper.step(1, {**arrays, name: bad[name]}.values()) == f"{name} is not aligned to its elements"
    assert "-1 rows" in stepper.step(-1, arrays.values()) and "reserve(1, 2)" in stepper.step(2, arrays.values())
    for first, second in itertools.permutations(arrays, 2):
        a, b = arrays[first], arrays[second]
        whole = np.zeros(a.size + b.size, a.dtype)
        assert not stepper.step(1, {**arrays, first: whole[: a.size], second: whole[a.size :]}.values())
        said = stepper.step(1, {**arrays, first: whole[: a.size], second: whole[a.size - 1 :]}.values())
        assert ("overlap" in said) == (not {first, second} <= read) and first in (said or first), (first, second, said)


@pytest.mark.parametrize(("cell", "sizes"), [("gru", (4, 5)), pytest.param("lstm", (3, 8), marks=pytest.mark.broad)])
def test_a_step_is_the_oracles(cell: str, sizes: tuple[int, int], tmp_path: Path) -> None:
    check(network(cell, *sizes), tmp_path)


@pytest.mark.broad
@pytest.mark.slow_after(8)
@pytest.mark.parametrize("cell", sorted(CELLS, key=lambda name: name[::-1]))
def test_of_every_cell(cell: str, tmp_path: Path) -> None:
    check(network(cell, 3, 5), tmp_path)


# Vectors of 16, 32 and 64 bytes, whole ones and what is left of them; states that are matrices, vectors, images.
@pytest.mark.broad
@pytest.mark.slow_after(3)
@pytest.mark.parametrize("sizes", [(7, 24), (2, 33), (4, 4), (8, 8), (16, 16)], ids=str)
@pytest.mark.parametrize("cell", ["lstm", "gru_reset_before", "mlstm", "rg_lru"])
def test_of_other_sizes(cell: str, sizes: tuple[int, int], tmp_path: Path) -> None:
    check(network(cell, *sizes), tmp_path)


@pytest.mark.broad
@pytest.mark.parametrize("options", [{"num_layers": 3}, {"num_layers": 2, "dtype": "float64"}], ids=str)
def test_of_layers(options: dict[str, Any], tmp_path: Path) -> None:
    check(network("lstm", 4, 8, **options), tmp_path)
    check(network("cornn", 3, [5, 8, 4][: options["num_layers"]], **options), tmp_path / "sizes")


def test_an_input_that_nothing_reads(tmp_path: Path) -> None:
    @rnn.cell(states="h")
    def tied(x: "I", u: "16", h: "16", *, W: "16 I"):
        return rnn.tanh(W @ x + h)

    check(network(tied, 16, None), tmp_path)
    check(network(rnn.cell(states="h")(_of_itself), 16, None), tmp_path / "first")


def _of_itself(x: "I", h: "16", *, b: "16"):
    return rnn.tanh(h + b)


def test_who_has_no_such_function() -> None:
    def has(net: rnn.RNN, **options: Any) -> bool:
        return direct_of(passed(net, Options(TABLE["x86-64-v3"], **options).of(net.dtype))) is not None

    small = network("gru", 3, 4)
    assert has(small, batches=(1,)) and has(small, batches=(1, 16))
    assert not has(small) and not has(small, batches=(2,)) and not has(small, batches=(1,), stored="int8")
    assert not has(network("gru", 3, 4, bidirectional=True), batches=(1,))
    assert not has(rnn.RNN(rnn.cells.gru, 300, 300), batches=(1,))


def functions_of(net: rnn.RNN) -> dict[str, tirx.PrimFunc]:
    own = direct_of(passed(net, Options(TABLE["x86-64-v4"], batches=(1,)).of(net.dtype)))
    assert own is not None
    return own.functions()


def test_products_stay_loops() -> None:
    """LLVM does not know how long they are, or it would unroll them."""
    known: list[bool] = []
    body = functions_of(network("lstm", 12, 16))["direct"].body
    tvm_ffi.structural_walk(body, (tirx.For, lambda loop: known.append(isinstance(loop.extent, tirx.IntImm))))
    assert known.count(False) >= 4


@pytest.mark.broad
def test_products_fit_the_registers() -> None:
    """Unrolled whole, they keep more than 30 values on the stack."""
    module = tvm.IRModule(functions_of(network("lstm", 16, 16)))
    asm = generate(module, TABLE["x86-64-v4"]).mod.inspect_source("asm")
    own = asm[asm.index("\ndirect:") : asm.index("\n.Lfunc_end", asm.index("\ndirect:"))]
    assert own.count("vfmadd") > 50 and len(re.findall(r"%zmm\d+, -?\d*\(%rsp\)", own)) < 4


@pytest.mark.parametrize(("sizes", "width"), [([4], 16), ([8], 32), ([5], 64), ([24], 32), ([16, 8], 32), ([64], 64)])
def test_vectors_fit_the_network(sizes: list[int], width: int) -> None:
    net = rnn.RNN(rnn.cells.lstm, 4, sizes if sizes[1:] else sizes[0], len(sizes))
    assert narrowed(TABLE["x86-64-v4"], net).vector_bytes == width

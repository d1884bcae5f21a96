"""Equations that cannot be traced: each message names the user's own file and line, what was got and what to do.

In: bodies of a cell, one line of which is marked `# here`. Out: failures where a message is missing or poor.
"""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tvm_rnn import CellError
from tvm_rnn.language import trace
from tvm_rnn.language.cell import Cell

HEADER = """\
import math
import numpy as np
import tvm_rnn as rnn
from tvm_rnn import cell, concat, einsum, exp, mean, sigmoid, split, stack, sum, tanh, where

KEPT = []

@cell(states="h c")
def mine(x: "I", h: "H", c: "H", *, W: "H I", R: "H H", b: "H", w: ""):
"""
SIZES = {"I": 3, "H": 4}

# name: (body, what the message says, what it says was got, what to do)
BODIES = {
    "if": ("if h > 0:  # here\n    h = -h\nreturn h, c", "no truth value", "Python's if", "where(condition, a, b)"),
    "while": ("while c < 1.0:  # here\n    c = c + 1\nreturn h, c", "no truth value", "while", "where("),
    "and": ("h = where(h > 0 and c > 0, h, c)  # here\nreturn h, c", "no truth value", "and, or, not", "logical_and"),
    "chained comparison": (
        "h = where(0 < h < 1, h, c)  # here\nreturn h, c",
        "no truth value",
        "a < b < c",
        "logical_and",
    ),
    "builtin max": ("h = max(h, c)  # here\nreturn h, c", "no truth value", "max", "maximum"),
    "in": ("h = h if c in (1, 2) else c  # here\nreturn h, c", "no truth value", "in,", "where("),
    "numpy ufunc": (
        "h = np.tanh(h)  # here\nreturn h, c",
        "numpy.tanh cannot be traced",
        "numpy.tanh of",
        "tvm_rnn.tanh",
    ),
    "numpy ufunc unknown": (
        "h = np.arctan(h)  # here\nreturn h, c",
        "numpy.arctan",
        "traced state h[4]",
        "functions of tvm_rnn",
    ),
    "numpy function": (
        "h = np.concatenate([h, c])  # here\nreturn h, c",
        "numpy.concatenate",
        "numpy.conc",
        "functions of tvm_rnn",
    ),
    "numpy reduction": (
        "h = np.add.reduce(h)  # here\nreturn h, c",
        "numpy.add",
        "numpy.add of",
        "functions of tvm_rnn",
    ),
    "numpy array": (
        "h = np.asarray(h)  # here\nreturn h, c",
        "NumPy array",
        "traced state h[4]",
        "tvm_rnn's functions",
    ),
    "in place into numpy": ("a = np.ones(4)\na += h  # here\nreturn a, c", "numpy.add", "traced state h[4]", "tvm_rnn"),
    "assignment": ("h[0] = 1.0  # here\nreturn h, c", "in place", "h[4]>[0] = ...", "concat, where"),
    "float": ("h = h * float(w)  # here\nreturn h, c", "Python float", "traced param w[]", "array expression"),
    "int": ("h = h * int(w)  # here\nreturn h, c", "Python int", "traced param w[]", ".shape"),
    "math": ("h = math.exp(w) * h  # here\nreturn h, c", "Python float", "traced param w[]", "array expression"),
    "range": ("for _ in range(w):  # here\n    h = -h\nreturn h, c", "Python index", "param w[]", ".shape"),
    "index by value": (
        "h = h * R[0, w]  # here\nreturn h, c",
        "index must be known",
        "Value: <traced param w[]>",
        "where or einsum",
    ),
    "index by mask": ("h = h[h > 0]  # here\nreturn h, c", "index by a truth value", "traced greater", "use where"),
    "slice by value": ("h = h[: w]  # here\nreturn h, c", "Python index", "traced param w[]", ".shape"),
    "index outside": (
        "h = h + R[4]  # here\nreturn h, c",
        "index 4 is not inside an axis of size 4",
        "R[4, 4]",
        "dims",
    ),
    "too many indices": ("h = h[0, 0]  # here\nreturn h, c", "too many indices", "h[4]>[(0, 0)]", None),
    "two ellipses": ("h = R[..., 0, ...]  # here\nreturn h, c", "two ellipses", "R[4, 4]", None),
    "empty slice": ("h = concat([h, c[4:]])  # here\nreturn h, c", "4:4 is not inside", "c[4]", "dims"),
    "matmul inner": ("h = W @ h  # here\nreturn h, c", "@: the inner sizes differ", "W[4, 3] @ h[4]", "dims"),
    "matmul of a scalar": ("h = w @ h  # here\nreturn h, c", "@ needs arrays", "traced param w[]", "use *"),
    "matmul rank": ("h = h @ stack([R, R])  # here\nreturn h, c", "do not combine", "[4] @ [2, 4, 4]", "einsum"),
    "add": (
        "h = h + x  # here\nreturn h, c",
        "add: operands do not fit: axis 0 has sizes 4 and 3",
        "h[4] and x[3]",
        "dims",
    ),
    "concat": (
        "h = concat([R, W], axis=0)  # here\nreturn h, c",
        "differ outside the joined axis",
        "R[4, 4] and W[4, 3]",
        "dims",
    ),
    "split": ("h, c = split(x, 2)  # here\nreturn h, c", "does not divide", "size 3 into 2 parts", None),
    "einsum letters": (
        "h = einsum('ij,k->i', x, h)  # here\nreturn h, c",
        "do not match the operand",
        "'ij' for",
        None,
    ),
    "einsum size": (
        "h = einsum('ij,j->i', W, h)  # here\nreturn h, c",
        "axis 'j' has sizes 3 and 4",
        "W[4, 3] and h[4]",
        "dims",
    ),
    "einsum dots": ("h = einsum('...j,j->...', R, h)  # here\nreturn h, c", "not supported", "'...j,j->...'", None),
    "axes of two names": (
        "h = einsum('ij,i->j', W, rnn.rename(h, 'K'))  # here\nreturn h, c",
        "axes of different names meet: H and K",
        "W[H, I] and h[K]",
        "rnn.rename(value",
    ),
    "rename to other sizes": ("h = rnn.rename(h, '5')  # here\nreturn h, c", "dims do not fit", "'5'", None),
    "rename to no dims": ("h = rnn.rename(h, 'T')  # here\nreturn h, c", "axis T (steps)", "'T'", None),
    "another name returned": (
        "h = 2.0 * rnn.rename(h, 'K')\nh = 1.0 * h  # here\nreturn h, c",
        "has other axes than the state h: K and H",
        "[K]",
        'rnn.rename(value, "H")',
    ),
    "index by a list": (
        "h = h[[[1, 0]]]  # here\nreturn h, c",
        "index by a list that is no list of places",
        "[[1, 0]]",
        "where to select",
    ),
    "place outside": ("h = h[[0, 1, 2, 4]]  # here\nreturn h, c", "index by a list", "4", None),
    "list of values": ("h = h[[w, 0]]  # here\nreturn h, c", "NumPy array", "traced param w[]", "tvm_rnn's functions"),
    "surrogate": ("h = rnn.surrogate(h, x)  # here\nreturn h, c", "the shapes differ", "state h[4]", "adding zeros"),
    "cumsum of all": ("h = rnn.cumsum(R, None)  # here\nreturn h, c", "cumsum works along one axis", "None", "reshape"),
    "topk": ("h = rnn.topk(h, 5)[0]  # here\nreturn h, c", "topk: so many", "k=5", None),
    "one_hot": ("h = rnn.one_hot(w, 4.0)  # here\nreturn h, c", "size of the new axis", "4.0", None),
    "row by a truth value": (
        "h = R[0] + h[w > 0.0]  # here\nreturn h, c",
        "index by a truth value",
        "state h[4]>[<",
        "where to select",
    ),
    "shape of random": ("h = h * rnn.random_uniform(h)  # here\nreturn h, c", "this is no shape", "h[4]", "h.shape"),
    "temperature": ("h = h * rnn.sample(h, -1)  # here\nreturn h, c", "the temperature", "-1", None),
    "numpy floor": ("h = np.floor(h)  # here\nreturn h, c", "numpy.floor cannot", "numpy.floor of", "tvm_rnn.floor"),
    "attribute of torch": ("h = h.detach()  # here\nreturn h, c", "no attribute 'detach'", "h[4]>.detach", "leave it"),
    "attribute misspelt": ("h = h.shap  # here\nreturn h, c", "no attribute 'shap'", "h[4]>.shap", "mean 'shape'"),
    "complex": ("h = h * np.exp(1j)  # here\nreturn h, c", "cannot be part", "complex128", "real and imaginary"),
    "masked": ("h = h * np.ma.array(np.ones(4))  # here\nreturn h, c", "cannot be part", "MaskedArray", None),
    "too large": ("h = h * 1e39  # here\nreturn h, c", "too large for float32", "1e+39", 'dtype="float64"'),
    "without end": ("while True:\n    h = h + 1.0  # here\nreturn h, c", "more than 100 operations", "", "einsum"),
    "axis": ("h = h - mean(h, axis=1)  # here\nreturn h, c", "axis does not exist", "axis=1", None),
    "reshape": ("h = h.reshape(3, -1)  # here\nreturn h, c", "number of elements differs", "h[4]> to [3, -1]", None),
    "reshape by value": ("h = h.reshape(w)  # here\nreturn h, c", "whole number", "traced param w[]", ".shape"),
    "transpose": ("h = R.transpose(0, 0) @ h  # here\nreturn h, c", "not an order of the axes", "[0, 0]", None),
    "truth as number": (
        "h = h + (c > 0)  # here\nreturn h, c",
        "add: argument 2",
        "truth value",
        "where(condition, 1.0, 0.0)",
    ),
    "number as truth": (
        "h = where(h, h, c)  # here\nreturn h, c",
        "where: argument 1",
        "traced state h[4]",
        "where(cond",
    ),
    "sum of truths": (
        "h = h * sum(c > 0)  # here\nreturn h, c",
        "truth value among numbers",
        "greater",
        "where(condition",
    ),
    "attribute": ("h = h.tanh()  # here\nreturn h, c", "no attribute 'tanh'", "h[4]>.tanh", "tanh(value)"),
    "operator": ("h = h // 2  # here\nreturn h, c", "no operator floordiv", "h[4]> and 2", "functions"),
    "None": ("h = h + None  # here\nreturn h, c", "cannot be part of an equation", "NoneType: None", None),
    "text": ("h = tanh('h') + h  # here\nreturn h, c", "equation failed", "Error", "this line"),
    "unpack a scalar": ("h, c = w  # here\nreturn h, c", "scalar cannot be unpacked", "param w[]", None),
    "nothing to unpack": (
        "h, c = R @ h  # here\nreturn h, c",
        "equation failed",
        "too many values to unpack",
        "this line",
    ),
    "len": ("n = len(w)  # here\nreturn h, c", "len() of a scalar", "param w[]", None),
    "unknown name": ("h = tahn(h)  # here\nreturn h, c", "equation failed", "NameError: name 'tahn'", "this line"),
    "own exception": (
        "raise KeyError('mine')  # here\nreturn h, c",
        "equation failed",
        "KeyError: 'mine'",
        "this line",
    ),
    "recursion": ("return mine(x, h, c, W=W, R=R, b=b, w=w)  # here", "cannot call itself", "mine inside mine", "loop"),
    "none returned": ("h = tanh(h)  # here", "not the new states", "1 value(s): NoneType", "return every state"),
    "one result": ("return h  # here", "not the new states", "1 value(s): Value", "return every state"),
    "three results": ("return h, c, h  # here", "not the new states", "3 value(s)", "return the new states alone"),
    "a number returned": ("return h, 0.0  # here", "not the new states", "Value, float", "return every state"),
    "shape returned": (
        "h = W @ x\nc = R  # no new value\nreturn h, c  # here",
        "new c has another shape",
        "[4, 4]",
        "[4]",
    ),
    "shape computed": ("c = concat([h, c])  # here\nreturn h, c", "new c has another shape", "[8]", "[4] for c"),
    "truth returned": ("c = h > 0  # here\nreturn h, c", "new c has another shape", "a truth value", "return a value"),
}


# A misuse of each function of the language: of most a truth value in place of numbers, operands that do not fit, or an
# axis that is not there.
TRUTHS = (
    "absolute cos erf exp expm1 floor gelu hard_sigmoid hard_tanh log log1p log_sigmoid negative relu round sigmoid "
)
TRUTHS += "sign silu sin softplus softsign sqrt square stop_gradient tanh to_int8 to_uint8"
UNFIT = "maximum minimum mod power dot vecdot elu leaky_relu atan_spike fast_sigmoid_spike triangle_spike"
UNFIT += " layer_norm rms_norm"
ABSENT = "argmax cumprod cumsum flip logsumexp max mean min softmax sort sum var"
MISUSED = {
    **{name: (f"{name}(h > 0)", "has the wrong kind") for name in TRUTHS.split()},
    **{name: (f"{name}(h, x)", "operands do not fit") for name in UNFIT.split()},
    **{name: (f"{name}(h, 1)", "this axis does not exist") for name in ABSENT.split()},
    "clip": ("clip(h, x, 1.0)", "operands do not fit"),
    "concat": ("concat([R, W], axis=0)", "differ outside the joined axis"),
    "conv": ("conv(h, R)", "one or two more axes"),
    "einsum": ("einsum('ij,j->i', W, h)", "axis 'j' has sizes 3 and 4"),
    "expand": ("expand(h, 3)", "no new axis can be there"),
    "logical_and": ("logical_and(h > 0, c)", "argument 2 has the wrong kind"),
    "logical_not": ("logical_not(h)", "has the wrong kind"),
    "logical_or": ("logical_or(h, c > 0)", "argument 1 has the wrong kind"),
    "matmul": ("matmul(W, h)", "the inner sizes differ"),
    "matvec": ("matvec(R, x)", "operands do not fit"),
    "one_hot": ("one_hot(w, 4.0)", "size of the new axis"),
    "outer": ("outer(w, h)", "needs more axes"),
    "random_normal": ("random_normal(-1)", "this is no shape"),
    "random_uniform": ("random_uniform(h)", "this is no shape"),
    "rename": ("rename(h, 'T')", "axis T (steps)"),
    "reshape": ("reshape(h, (3, -1))", "the number of elements differs"),
    "sample": ("sample(h, -1)", "the temperature"),
    "split": ("split(h, 3)[0]", "does not divide"),
    "squeeze": ("squeeze(h, 0)", "the number of elements differs without this axis"),
    "stack": ("stack([h, x])", "differ outside the joined axis"),
    "surrogate": ("surrogate(h, x)", "the shapes differ"),
    "take": ("take(w, h)", "a scalar has no rows"),
    "topk": ("topk(h, 5)[0]", "so many"),
    "transpose": ("transpose(R, (0, 0)) @ h", "not an order of the axes"),
    "vecmat": ("vecmat(x, R)", "operands do not fit"),
    "where": ("where(h > 0, h, x)", "operands do not fit"),
}


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def define(folder: Path, body: str) -> tuple[Cell, Path, int]:
    """The cell of that body in a file of its own, the file, and the line marked `# here`."""
    path = folder / "user_cells.py"
    path.write_text(HEADER + textwrap.indent(body, "    ") + "\n")
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if "# here" in text)
    return load(path).mine, path, line


@pytest.mark.parametrize("name", BODIES)
def test_the_message_names_the_line_and_says_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "LIMIT", 100)
    body, what, got, do = BODIES[name]
    mine, path, line = define(tmp_path, body)
    with pytest.raises(CellError) as caught:
        mine.trace(SIZES)
    text = str(caught.value)
    assert f"where:    {path}:{line}\n" in text
    assert what in text.splitlines()[0]
    assert not got or got in text[text.index("got:") :]
    assert do is None or do in text[text.index("do:") :]
    assert do is not None or "do:" in text or "expected:" in text


def test_every_function_has_a_misuse() -> None:
    assert MISUSED.keys() == trace.FUNCTIONS


@pytest.mark.parametrize("name", sorted(trace.FUNCTIONS))
def test_a_misused_function_names_the_line(name: str, tmp_path: Path) -> None:
    call, what = MISUSED[name]
    mine, path, line = define(tmp_path, f"h = rnn.{call}  # here\nreturn h, c")
    with pytest.raises(CellError) as caught:
        mine.trace(SIZES)
    first, *rest = str(caught.value).splitlines()
    assert what in first and f"  where:    {path}:{line}" in rest
    assert any(row.startswith(("  expected:", "  do:")) for row in rest)


def test_a_line_of_a_helper_in_the_users_file_is_named(tmp_path: Path) -> None:
    mine, path, line = define(tmp_path, "def gate(a):\n    return W @ a  # here\n\nreturn gate(h), c")
    with pytest.raises(CellError, match=rf"{path}:{line}\n"):
        mine.trace(SIZES)


def test_the_traceback_ends_in_the_users_line(tmp_path: Path) -> None:
    mine, path, line = define(tmp_path, "def gate(a):\n    return W @ a  # here\n\nreturn gate(h), c")
    with pytest.raises(CellError) as caught:
        mine.trace(SIZES)
    assert [Path(str(entry.path)) for entry in caught.traceback[2:]] == [path, path]
    assert caught.traceback[-1].lineno + 1 == line


def test_the_original_exception_is_kept(tmp_path: Path) -> None:
    mine, _, _ = define(tmp_path, "return {}['missing']  # here")
    with pytest.raises(CellError) as caught:
        mine.trace(SIZES)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_value_of_an_earlier_trace_is_refused(tmp_path: Path) -> None:
    body = "KEPT.append(W @ x + R @ h + b + w)  # here\nreturn KEPT[0], c"
    mine, path, _ = define(tmp_path, body)
    mine.trace(SIZES)
    with pytest.raises(CellError, match=r"earlier trace") as caught:
        mine.trace(SIZES)
    assert f"{path}:8" in str(caught.value)


MUTUAL = """\
from tvm_rnn import cell

@cell
def first(x: "I", h: "H"):
    return second(x, h)

@cell
def second(x: "I", h: "H"):
    return first(x, h)

@cell
def endless(x: "I", h: "H"):
    def deeper(v):
        return deeper(v)
    return deeper(h)
"""


def test_recursion_through_other_functions_is_found(tmp_path: Path) -> None:
    path = tmp_path / "mutual.py"
    path.write_text(MUTUAL)
    module = load(path)
    with pytest.raises(CellError, match="first inside second inside first") as caught:
        module.first.trace(SIZES)
    assert f"{path}:9\n" in str(caught.value)
    with pytest.raises(CellError, match="equations never end") as caught:
        module.endless.trace(SIZES)
    assert f"{path}:11\n" in str(caught.value)

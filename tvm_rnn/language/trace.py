"""Traced values: what a cell's function is called with, recording each operation as a node.

In: Python operators and `functions.py` inside a user's cell. Out: `graph.Node`s that carry the user's file and line,
and errors that point at them. Tracing happens once per set of sizes; nothing here knows T or B.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import FrameType, TracebackType
from typing import NoReturn

import numpy as np

from tvm_rnn.errors import CellError, message, nearest
from tvm_rnn.graph.graph import Node, constant, make, topological
from tvm_rnn.graph.ops import TABLE, Shape
from tvm_rnn.locations import PACKAGE

from .axes import Axes, AxesDiffer, axes_after

_PACKAGE = str(PACKAGE) + os.sep
_CELLS = os.path.join(_PACKAGE, "cells") + os.sep
LINE: ContextVar[str] = ContextVar("LINE", default="")  # set: what all nodes made now say of their origin
_ATTRIBUTES = ("shape", "ndim", "size", "axes", "T", "reshape", "transpose")
FUNCTIONS = set[str]()  # those that equations are written with: functions.py has them, and names them here
MOST_RUNS = 32  # of neighbours, in an index by a list
LIMIT = 100_000  # operations of one cell
_operations: ContextVar[Iterator[int] | None] = ContextVar("_operations", default=None)
_streams: ContextVar[Iterator[int] | None] = ContextVar("_streams", default=None)  # numbers of random values


@contextmanager
def counted() -> Iterator[None]:
    """Inside, operations are counted, and more than `LIMIT` are refused; random values are numbered."""
    token, streams = _operations.set(itertools.count(1)), _streams.set(itertools.count())
    try:
        yield
    finally:
        _operations.reset(token)
        _streams.reset(streams)


def user_line() -> str:
    """The "file:line" of the innermost frame outside the compiler: the line of the cell that is being traced."""
    if given := LINE.get():
        return given
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if _users(name):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown"


def _users(name: str) -> bool:
    """Whether a file is outside the compiler; the zoo is."""
    return not name.startswith(_PACKAGE) or name.startswith(_CELLS)


def user_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the compiler's own frames."""
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for one in reversed(frames):
        if _users(one.tb_frame.f_code.co_filename):
            kept = TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return kept


def fail(what: str, *, got: object = None, expected: object = None, do: str | None = None) -> NoReturn:
    """Raise CellError at the user's line that is being traced."""
    raise CellError(message(what, where=user_line(), got=got, expected=expected, do=do))


Operator = Callable[["Value", object], "Value"]


def _operator(op: str) -> Operator:
    """`value <operator> other`, as a row of the table."""
    return lambda self, other: apply(op, self, other)


def _swapped(op: str) -> Operator:
    """`other <operator> value`."""
    return lambda self, other: apply(op, other, self)


def _missing_operator(symbol: str) -> Callable[[Value, object], NoReturn]:
    def operator(self: Value, other: object) -> NoReturn:
        what = f"a traced value has no operator {symbol}"
        fail(what, got=f"{self!r} and {other!r:.60}", do="use + - * / ** @ and functions")

    return operator


class Value:
    """A traced array without its T and B axes. Supports arithmetic, comparison, @, indexing, unpacking, reshape, .T.

    axes: the name of each axis, or None (see `axes.py`).
    """

    __hash__ = object.__hash__

    def __init__(self, node: Node, axes: Axes | None = None) -> None:
        self.node = node
        self.axes = (None,) * len(node.shape) if axes is None else axes

    @property
    def shape(self) -> Shape:
        return self.node.shape

    @property
    def ndim(self) -> int:
        return len(self.node.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.node.shape, dtype=int))

    def __repr__(self) -> str:
        return f"<traced {self.node.op} {self.node.name or ''}{list(self.shape)}>"

    def __len__(self) -> int:
        if not self.shape:
            fail("len() of a scalar", got=repr(self), expected="an array with a leading axis")
        return self.shape[0]

    def __iter__(self) -> Iterator[Value]:
        if not self.shape:
            fail("a scalar cannot be unpacked", got=repr(self), expected="an array with a leading axis")
        return iter([self[i] for i in range(self.shape[0])])

    def __bool__(self) -> NoReturn:
        fail(
            "a traced value has no truth value while the cell is traced",
            got=f"Python's if, while, and, or, not, in, min, max or a < b < c on {self!r}",
            expected="an expression that is the same for every element",
            do="use where(condition, a, b), maximum, minimum, logical_and or logical_or",
        )

    def _number(self, kind: str) -> NoReturn:
        fail(
            f"a traced value cannot become a Python {kind}",
            got=repr(self),
            expected="a number known before the cell runs",
            do="keep it as an array expression; sizes are in .shape",
        )

    def __float__(self) -> NoReturn:
        self._number("float")

    def __int__(self) -> NoReturn:
        self._number("int")

    def __index__(self) -> NoReturn:
        self._number("index")

    def __array__(self, *_args: object, **_kwargs: object) -> NoReturn:
        fail(
            "a traced value cannot become a NumPy array",
            got=repr(self),
            do="use tvm_rnn's functions (tanh, where, mean, concat, einsum, ...) in place of NumPy's",
        )

    def __array_function__(self, func: Callable[..., object], *_args: object, **_kwargs: object) -> NoReturn:
        _no_numpy(func.__name__, self)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> Value:
        # NumPy calls this for `array * value` too, where it cannot be told from numpy.multiply(array, value).
        operation = _UFUNCS.get(ufunc.__name__)
        if operation is None or method != "__call__" or options:
            _no_numpy(ufunc.__name__, self)
        return operation(*map(lift, inputs))

    def __setitem__(self, key: object, value: object) -> NoReturn:
        fail(
            "a traced value cannot be changed in place",
            got=f"{self!r}[{key!r}] = ...",
            do="build a new one: concat, where",
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        near = nearest(name, (*_ATTRIBUTES, *FUNCTIONS), 0.7)
        other = f"did you mean {near!r}?" if near else "write it with the functions of tvm_rnn, or leave it out"
        fail(
            f"a traced value has no attribute {name!r}",
            got=f"{self!r}.{name}",
            expected=f"{', '.join(_ATTRIBUTES)}, or a function of tvm_rnn",
            do=f"call it as a function: {name}(value)" if name in FUNCTIONS else other,
        )

    def __getitem__(self, key: object) -> Value:
        return getitem(self, key)

    @property
    def T(self) -> Value:
        return self.transpose()

    def transpose(self, *axes: object) -> Value:
        """All axes in the given order; without arguments in reverse order."""
        given = _whole(axes) or list(reversed(range(self.ndim)))
        order = tuple(a + self.ndim if a < 0 else a for a in given)
        if sorted(order) != list(range(self.ndim)):
            fail(
                "transpose: not an order of the axes",
                got=f"{given} of {self!r}",
                expected=f"each of 0 to {self.ndim - 1} once",
            )
        return made("transpose", self, axes=order)

    def reshape(self, *shape: object) -> Value:
        """The same elements in another shape; one size may be -1: whatever is left."""
        to = _whole(shape)
        known = int(np.prod([s for s in to if s != -1], dtype=int))
        if to.count(-1) == 1 and known > 0 and self.size % known == 0:
            to[to.index(-1)] = self.size // known
        if any(s < 1 for s in to) or np.prod(to, dtype=int) != self.size:
            fail(
                "reshape: the number of elements differs",
                got=f"{self!r} to {list(_whole(shape))}",
                expected=f"{self.size} elements",
            )
        if tuple(to) == self.shape:
            return Value(self.node)
        return made("reshape", self, rank=self.ndim, to=tuple(to))

    __add__, __radd__ = _operator("add"), _swapped("add")
    __sub__, __rsub__ = _operator("sub"), _swapped("sub")
    __mul__, __rmul__ = _operator("mul"), _swapped("mul")
    __truediv__, __rtruediv__ = _operator("div"), _swapped("div")
    __and__, __rand__ = _operator("logical_and"), _swapped("logical_and")
    __or__, __ror__ = _operator("logical_or"), _swapped("logical_or")
    __lt__ = _operator("less")
    __le__ = _operator("less_equal")
    __gt__ = _operator("greater")
    __ge__ = _operator("greater_equal")

    __mod__, __rmod__ = _operator("mod"), _swapped("mod")

    __floordiv__ = __rfloordiv__ = _missing_operator("floordiv")
    __divmod__ = __rdivmod__ = _missing_operator("divmod")
    __xor__ = __rxor__ = _missing_operator("xor")
    __lshift__ = __rlshift__ = _missing_operator("lshift")
    __rshift__ = __rrshift__ = _missing_operator("rshift")

    def __pos__(self) -> Value:
        return self

    def __neg__(self) -> Value:
        return apply("neg", self)

    def __abs__(self) -> Value:
        return apply("abs", self)

    def __invert__(self) -> Value:
        return apply("logical_not", self)

    def __pow__(self, exponent: object) -> Value:
        return power(self, exponent)

    def __rpow__(self, base: object) -> Value:
        return power(base, self)

    def __matmul__(self, other: object) -> Value:
        return matmul(self, lift(other))

    def __rmatmul__(self, other: object) -> Value:
        return matmul(lift(other), self)


def lift(x: object) -> Value:
    """A traced value from a traced value, a number, or an array known now."""
    if isinstance(x, Value):
        return x
    if isinstance(x, (bool, int, float, np.ndarray, np.generic, list, tuple)):
        try:
            return Value(constant(x))
        except (TypeError, ValueError, OverflowError):
            pass
    dtype = x.dtype if isinstance(x, (np.ndarray, np.generic)) else None
    unreal = isinstance(x, complex) or (dtype is not None and dtype.kind == "c")
    fail(
        "this cannot be part of an equation",
        got=f"{type(x).__name__}{f' of {dtype}' if isinstance(x, np.ndarray) else ''}: {x!r:.80}",
        expected="a traced value, a real number or a NumPy array of real numbers",
        do="write its real and imaginary parts as two values" if unreal else None,
    )


def power(a: object, b: object) -> Value:
    """a ** b, of which one is traced. Whole exponents up to 16 become multiplications, 0.5 a square root."""
    if isinstance(b, (int, float)) and not isinstance(b, bool):
        if b == 0.5:
            return apply("sqrt", a)
        if float(b).is_integer() and 1 <= abs(b) <= 16:
            product = lift(a)
            for _ in range(abs(int(b)) - 1):
                product = product * a
            return product if b > 0 else 1.0 / product
    return apply("power", a, b)


def _no_numpy(name: str, value: Value) -> NoReturn:
    known = name in FUNCTIONS
    do = f"use tvm_rnn.{name}" if known else "use the functions of tvm_rnn, or compute it outside the cell"
    fail(f"numpy.{name} cannot be traced", got=f"numpy.{name} of {value!r}", do=do)


def _whole(numbers: tuple[object, ...]) -> list[int]:
    """The numbers of f(2, 3) or f((2, 3)), which must be known now."""
    given = numbers[0] if len(numbers) == 1 and isinstance(numbers[0], (tuple, list)) else numbers
    sizes = []
    for n in given:
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
            fail("a size or an axis must be a whole number", got=repr(n), do="use .shape of a value for sizes")
        sizes.append(int(n))
    return sizes


def node(op: str, *values: Value, **attrs: object) -> Node:
    """Apply a row of the table; a shape that does not fit becomes an error at the user's line."""
    count = _operations.get()
    if count is not None and next(count) > LIMIT:
        what = f"these equations have more than {LIMIT:,} operations"
        fail(what, do="write loops over elements as products, sums and einsum; let the RNN do the loop over time")
    truths = [v for v in values if v.node.boolean]
    if truths and (TABLE[op].kind in ("reduce", "contract") or (op == "concat" and len(truths) < len(values))):
        fail(
            f"{op}: a truth value among numbers",
            got=repr(truths[0]),
            expected="numbers",
            do="turn a truth value into numbers with where(condition, 1.0, 0.0)",
        )
    try:
        return make(op, *(v.node for v in values), source=user_line(), **attrs)
    except ValueError as reason:
        shapes = " and ".join(f"{v.node.name or 'value'}{list(v.shape)}" for v in values)
        extra = f" ({attrs})" if attrs and op not in ("reshape",) else ""
        fail(f"{op}: operands do not fit: {reason}", got=shapes + extra, do="check the dims of this line's operands")


def made(op: str, *values: Value, **attrs: object) -> Value:
    """As `node`, with the names of the result's axes; names that differ become an error at the user's line."""
    result = node(op, *values, **attrs)
    try:
        return Value(result, axes_after(op, [v.axes for v in values], attrs))
    except AxesDiffer as names:
        fail(
            f"axes of different names meet: {names}",
            got=" and ".join(map(_with_axes, values)),
            expected="one name; only their sizes agree",
            do='check the dims in the annotations; where they are meant as one axis, say so: rnn.rename(value, "H")',
        )


def _with_axes(v: Value) -> str:
    shown = (name or str(size) for name, size in zip(v.axes, v.shape, strict=True))
    return f"{v.node.name or 'value'}[{', '.join(shown)}]"


def apply(op: str, *operands: object) -> Value:
    """A pointwise op on operands of any rank: ranks are made equal by leading axes of size 1."""
    values = [lift(v) for v in operands]
    rank = max(v.ndim for v in values)
    same = [v if v.ndim == rank else _lead(v, rank) for v in values]
    for position, v in enumerate(same):
        wants_truth = op.startswith("logical") or (op == "where" and position == 0)
        if v.node.boolean != wants_truth and not (wants_truth and v.node.op == "const"):
            fail(
                f"{op}: argument {position + 1} has the wrong kind",
                got="a comparison's truth value" if v.node.boolean else repr(v),
                expected="a truth value (a comparison)" if wants_truth else "numbers",
                do="compare it: where(condition, a, b) asks for a value > 0.0, say, or another truth value"
                if wants_truth
                else "turn a truth value into numbers with where(condition, 1.0, 0.0)",
            )
    return made(op, *same)


def _lead(v: Value, rank: int) -> Value:
    if v.node.op == "const":
        return Value(constant(v.node.value, rank))
    lead = rank - v.ndim
    return Value(v.reshape((1,) * lead + v.shape).node, (None,) * lead + v.axes)


def inserted(v: Value, at: int, count: int = 1) -> Value:
    """The value with `count` new axes of size 1."""
    shaped = v.reshape((*v.shape[:at], *[1] * count, *v.shape[at:]))
    return Value(shaped.node, (*v.axes[:at], *[None] * count, *v.axes[at:]))


def removed(v: Value, at: int) -> Value:
    """The value without an axis of size 1."""
    return Value(v.reshape((*v.shape[:at], *v.shape[at + 1 :])).node, (*v.axes[:at], *v.axes[at + 1 :]))


def matmul(a: Value, b: Value) -> Value:
    """NumPy's matmul on the axes that are written: [.., M, K] @ [K] -> [.., M]; [.., M, K] @ [K, N]; [K] @ [K, N]."""
    if not a.shape or not b.shape:
        fail("@ needs arrays, not scalars", got=f"{a!r} @ {b!r}", do="use * for a scalar")
    left = "abcdefg"[: a.ndim - 1] + "k"
    if b.ndim == 1:
        spec = f"{left},k->{left[:-1]}"
    elif b.ndim == 2:
        spec = f"{left},kn->{left[:-1]}n"
    elif a.ndim == b.ndim:
        spec = f"{left},{left[:-2]}kn->{left[:-1]}n"
    else:
        fail("@: these ranks do not combine", got=f"{list(a.shape)} @ {list(b.shape)}", do="write it with einsum")
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        fail(
            "@: the inner sizes differ",
            got=f"{a.node.name or 'value'}{list(a.shape)} @ {b.node.name or 'value'}{list(b.shape)}",
            expected=f"{b.shape[-2 if b.ndim > 1 else 0]} as the last size of the left operand",
            do="check the dims in the annotations, and that the RNN's sizes are the ones you mean",
        )
    return contract(spec, a, b)


def contract(spec: str, a: object, b: object) -> Value:
    """einsum of two operands in which every letter of an operand is in the other or in the result."""
    a, b = lift(a), lift(b)
    inputs, out = spec.split("->")
    left, right = inputs.split(",")
    if set(left) | set(right) == set(out) and len(left) == a.ndim and len(right) == b.ndim:
        # Nothing is summed: an outer product is a pointwise multiplication, which can be fused.
        return apply("mul", _spread(a, left, out), _spread(b, right, out))
    return made("einsum", a, b, spec=spec)


def _spread(v: Value, letters: str, out: str) -> Value:
    order = sorted(range(len(letters)), key=lambda i: out.index(letters[i]))
    names = dict(zip(letters, v.axes, strict=True))
    if order != list(range(len(order))):
        v = v.transpose(*order)
    sizes = dict(zip(letters, v.shape if order == list(range(len(order))) else [0] * len(letters), strict=True))
    sizes.update({letters[i]: v.shape[place] for place, i in enumerate(order)})
    shaped = v.reshape(tuple(sizes.get(letter, 1) for letter in out))
    return Value(shaped.node, tuple(map(names.get, out)))


def getitem(v: Value, key: object) -> Value:
    """v[key] as in NumPy for ints, slices, one list of places, None and one ellipsis: views of v."""
    if isinstance(key, Value):
        return rows_of(v, key)
    keys = list(key) if isinstance(key, tuple) else [key]
    places = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(places) > 1:
        fail("an index with two ellipses", got=f"{v!r}[{key!r}]", expected="at most one ...")
    for at in places:
        keys[at : at + 1] = [slice(None)] * (v.ndim - sum(k is not None for k in keys) + 1)
    axis, result = 0, v
    for place, k in enumerate(keys):
        if k is None:
            if place and keys[place - 1] is None:
                continue  # made with the first of them
            count = len(list(itertools.takewhile(lambda key: key is None, keys[place:])))
            result = inserted(result, axis, count)
            axis += count
            continue
        if axis >= result.ndim:
            fail("too many indices", got=f"{v!r}[{key!r}]", expected=f"at most {v.ndim}")
        size = result.shape[axis]
        if isinstance(k, slice):
            result = _range(result, axis - result.ndim, range(*k.indices(size)))
            axis += 1
        elif isinstance(k, (list, np.ndarray)):
            result = _listed(result, axis - result.ndim, k, keys)
            axis += 1
        elif isinstance(k, (int, np.integer)) and not isinstance(k, bool):
            at = int(k) + size if k < 0 else int(k)
            result = made("index", result, axis=axis - result.ndim, at=at)
        else:
            fail(
                "an index must be known before the cell runs",
                got=f"{type(k).__name__}: {k!r:.60}",
                expected="an int, a slice, a list of ints, None or ...",
                do="a computed place stands alone, table[place]; or use where or einsum to select by value",
            )
    return result


def rows_of(table: Value, places: Value) -> Value:
    """The rows of a table at computed places, as NumPy's table[places]."""
    if any(v.node.boolean for v in (table, places)):
        fail("an index by a truth value", got=f"{table!r}[{places!r}]", expected="numbers", do="use where to select")
    if not table.ndim:
        fail("a scalar has no rows", got=repr(table), expected="a table with at least one axis")
    if any(n.op in ("input", "state") or n.random for n in topological([table.node])):
        return _chosen(table, places)
    count = table.ndim - 1
    return made("take", table, inserted(places, places.ndim, count) if count else places, rank=table.ndim)


def _chosen(table: Value, places: Value) -> Value:
    """The rows of a table that differs between steps or sequences: a sum over all rows, of which those at other places
    count 0, so that NaN and infinity stay where they are."""
    size, count = table.shape[0], table.ndim - 1
    own = inserted(places, places.ndim, count) if count else places
    hit = apply("equal", inserted(places, places.ndim, count + 1), np.arange(float(size)).reshape(size, *[1] * count))
    rows = made("sum", apply("where", hit, table, 0.0), axis=-count - 1, keepdims=False)
    inside = apply("logical_and", apply("greater_equal", own, 0.0), apply("less_equal", own, size - 1.0))
    whole = apply("equal", own, apply("floor", own))
    return apply("where", apply("logical_and", inside, whole), rows, np.nan)


def drawn(name: str, shape: object) -> Value:
    """Numbers even between 0 and 1, of a stream of their own. name: of the function, for messages."""
    to = (shape,) if isinstance(shape, (int, np.integer)) else shape
    if not isinstance(to, (tuple, list)) or any(n < 1 for n in _whole((*to, 1))):
        do = "give a shape without T and B, such as h.shape"
        fail(f"{name}: this is no shape", got=f"{shape!r:.60}", expected="whole numbers of at least 1", do=do)
    streams = _streams.get()
    if streams is None:
        fail(f"{name} outside of a cell", do="call it in a cell's equations; elsewhere use NumPy's generators")
    return Value(node("uniform", stream=f"random.{next(streams)}", every="step", to=tuple(_whole((*to, 1))[:-1])))


def _range(v: Value, axis: int, places: range) -> Value:
    """The places of one negative axis in steps of one size, all inside the axis."""
    if places.step < 0 and places:
        return made("flip", _range(v, axis, places[::-1]), axis=axis)
    start, size, step = places.start, len(places), places.step
    if step == 1 or size < 2:
        stop = start + size
        return v if size == v.shape[axis] else made("slice", v, axis=axis, start=start, stop=stop)
    if start + size * step > v.shape[axis]:  # the last step is cut short
        parts = _range(v, axis, places[:-1]), _range(v, axis, places[-1:])
        return made("concat", *parts, axis=axis)
    at = v.ndim + axis
    rows = _range(v, axis, range(start, start + size * step)).reshape(*v.shape[:at], size, step, *v.shape[at + 1 :])
    return Value(made("index", rows, axis=axis, at=0).node, (*v.axes[:at], None, *v.axes[at + 1 :]))


def _listed(v: Value, axis: int, given: object, keys: list[object]) -> Value:
    """The listed places of one negative axis: runs of neighbours, joined."""
    size, places = v.shape[axis], np.asarray(given)
    alone = sum(isinstance(k, (int, np.integer, list, np.ndarray)) for k in keys) == 1
    if places.ndim != 1 or not places.size or places.dtype.kind not in "iu" or not alone:
        fail(
            "an index by a list that is no list of places",
            got=f"{given!r:.60}{'' if alone else ' beside another index'}",
            expected="one list of whole numbers, with slices and None beside it",
            do="use where to select by value; index two axes one after the other: v[[2, 0]][:, 1]",
        )
    outside = [int(p) for p in places if not -size <= p < size]
    if outside:
        fail("an index by a list", got=f"{outside[0]}", expected=f"places inside an axis of size {size}")
    runs = _runs([int(p) % size for p in places])
    if len(runs) > MOST_RUNS:
        what = f"an index by a list of {len(runs)} runs of neighbours"
        fail(what, expected=f"at most {MOST_RUNS}", do="multiply by a matrix of zeros and ones")
    parts = [_range(v, axis, run) for run in runs]
    return parts[0] if len(parts) == 1 else made("concat", *parts, axis=axis)


def _runs(places: list[int]) -> list[range]:
    """Places as ranges of step 1 or -1."""
    runs: list[range] = []
    for place in places:
        last = runs[-1] if runs else range(0)
        step = place - last[-1] if len(last) == 1 else last.step
        if last and abs(step) == 1 and place == last[-1] + step:
            runs[-1] = range(last[0], place + step, step)
        else:
            runs.append(range(place, place + 1))
    return runs


for _symbol, _op in (("eq", "equal"), ("ne", "not_equal")):  # object's own promise a bool
    setattr(Value, f"__{_symbol}__", _operator(_op))

# NumPy calls a value's operators by the names of its own functions.
_OPERATIONS = {"remainder": "mod", "subtract": "sub", "multiply": "mul", "divide": "div"}
_OPERATIONS |= {"bitwise_and": "logical_and", "bitwise_or": "logical_or"}
_OPERATIONS |= {op: op for op in ("add", "less", "less_equal", "greater", "greater_equal", "equal", "not_equal")}
_UFUNCS: dict[str, Callable[..., Value]] = {name: partial(apply, op) for name, op in _OPERATIONS.items()}
_UFUNCS.update(matmul=matmul, power=lambda a, b: a**b)


def einsum(spec: str, *values: Value) -> Value:
    """NumPy's einsum. Raises CellError for a specification with '...' or without '->', or one that does not fit."""
    clean = spec.replace(" ", "")
    inputs, arrow, out = clean.partition("->")
    letters = inputs.split(",")
    twice = any(len(set(group)) != len(group) for group in (*letters, out))
    if not arrow or "." in clean or len(letters) != len(values) or twice:
        fail(
            "einsum: this specification is not supported",
            got=f"{spec!r} with {len(values)} operands",
            expected="a group of letters per operand and '->' result, no '...', no letter twice in one group",
        )
    if set(out) - set(inputs):
        fail("einsum: the result names an axis that no operand has", got=spec)
    for group, v in zip(letters, values, strict=True):
        if len(group) != v.ndim:
            got, expected = f"'{group}' for {v!r}", f"{v.ndim} letters"
            fail("einsum: the letters do not match the operand", got=got, expected=expected)
    done, value = letters[0], values[0]
    for position in range(1, len(values)):
        later = out + "".join(letters[position + 1 :])
        done, value = _join(done, value, letters[position], values[position], later)
    done, value = _drop(done, value, set(out))
    return value if done == out else value.transpose(*(done.index(letter) for letter in out))


def _drop(letters: str, value: Value, keep: set[str]) -> tuple[str, Value]:
    """Sum the axes whose letter nobody needs any more."""
    for letter in [letter for letter in letters if letter not in keep]:
        value = made("sum", value, axis=letters.index(letter) - len(letters), keepdims=False)
        letters = letters.replace(letter, "")
    return letters, value


def _join(left: str, a: Value, right: str, b: Value, later: str) -> tuple[str, Value]:
    """Two operands to one. `later` has the letters that are needed afterwards, those of the result first."""
    left, a = _drop(left, a, set(right) | set(later))
    right, b = _drop(right, b, set(left) | set(later))
    out = "".join(letter for letter in dict.fromkeys(later) if letter in left + right)
    return out, contract(f"{left},{right}->{out}", a, b)

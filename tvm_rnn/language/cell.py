"""@cell: a Python function with dims in its annotations becomes a Cell; tracing it once gives a Graph.

In: the user's function. Out: `Cell`, which `rnn.RNN` binds to sizes and traces (`Cell.trace`). Errors of the signature
are raised when the function is decorated, errors of the equations when sizes are known; both name the user's file and
line.
"""

from __future__ import annotations

import ast
import dis
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, overload

import numpy as np

from tvm_rnn.errors import CellError, TvmRnnError, message, nearest, unknown
from tvm_rnn.graph.graph import Graph, Node, topological
from tvm_rnn.graph.ops import Shape
from tvm_rnn.names import MOST_LETTERS, is_name

from .axes import Axes, AxesDiffer, merged
from .dims import Dims, completed, parse_dims
from .trace import Value, apply, counted, fail, user_frames

# The cells whose equations are being traced or called, outermost first; per thread and per asynchronous task.
Wrong = Callable[..., CellError]  # makes the error of a cell: what is wrong, and the slots of `message`
_active: ContextVar[tuple[Cell, ...]] = ContextVar("active", default=())
SHOWN_SIZE = 4  # of every axis, where equations are drawn and no size is known
MOST_ELEMENTS = 2**40  # of one argument
INITIALISERS = ("uniform", "zeros", "ones")
INFINITIES = (math.inf, -math.inf)


@dataclass(frozen=True)
class Argument:
    """A named argument of a cell with the dims of its annotation (no T, no B)."""

    name: str
    dims: Dims

    def shape(self, sizes: Mapping[str, int]) -> Shape:
        return self.dims.shape(sizes)

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(self.dims.text.split())}]"


@dataclass(frozen=True, eq=False)
class Cell:
    """A recurrent cell: per-step inputs, states, parameters and the function that relates them. Made by `@cell`.

    Args:
        name: of the cell, in messages, files and the zoo: letters, digits and _, at most 100.
        function: one step, written with tvm_rnn's functions.
        inputs: arguments given at every step, the first of which is the layer's input.
        states: arguments that are carried from step to step.
        params: learned arrays.
        output: the name of the state (or of the extra last result) that the layer emits.
        where: "file:line" of the function.
        initial: a state's value before the first step, where it is not 0.
        init: how a parameter is initialised where it is not uniform: "zeros", "ones" or a number.
        begins: {state: what it begins from, where that is no finite number: the name of a parameter, or an infinity}.
            For each of them there is one more state, `<state>_begins`: 1 where the state is still to begin.
        constants: the names of those states that never change: arguments that are given once per sequence.
    """

    name: str
    function: Callable[..., object]
    inputs: tuple[Argument, ...]
    states: tuple[Argument, ...]
    params: tuple[Argument, ...]
    output: str
    where: str
    initial: Mapping[str, float] = field(default_factory=dict)
    init: Mapping[str, str | float] = field(default_factory=dict)
    begins: Mapping[str, str | float] = field(default_factory=dict)
    constants: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (self.name, self.output):  # they reach files, C, CUDA, HTML and Markdown
            if not is_name(name):
                expected = f"letters, digits and _, no digit first, at most {MOST_LETTERS}"
                what = "cell: not a name for a cell or its output"
                raise CellError(message(what, where=self.where, got=f"{name!r:.60}", expected=expected))
        # `help(cells.lstm)` and editors show the function's own text and arguments, not those of this class.
        text = f"{self.name}{inspect.signature(self.function)}\n\n{self.doc}".rstrip()
        for name, value in (("__doc__", text), ("__signature__", inspect.signature(self.function))):
            object.__setattr__(self, name, value)

    @property
    def doc(self) -> str:
        return inspect.cleandoc(self.function.__doc__ or "")

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return (*self.inputs, *self.states, *self.params)

    @property
    def size_names(self) -> tuple[str, ...]:
        """Every axis name that can be bound to a size, in order of appearance."""
        return tuple(dict.fromkeys(name for a in self.arguments for name in a.dims.names))

    @property
    def optional(self) -> frozenset[str]:
        """The names of axes that are there only where they are given a size."""
        return frozenset().union(*(a.dims.optional for a in self.arguments))

    @property
    def required(self) -> tuple[str, ...]:
        """The names that must be bound to a size."""
        defaults = {name for a in self.arguments for name in a.dims.defaults}
        return tuple(name for name in self.size_names if name not in self.optional | defaults)

    def completed(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The sizes with those of axes that have a default ("K=H")."""
        return completed(sizes, {name: value for a in self.arguments for name, value in a.dims.defaults.items()})

    def lead(self, sizes: Mapping[str, int]) -> Shape:
        """Axes in front of those that one layer hands to the next: of members, or of values and tangents."""
        return ()

    def joined(self, parts: int) -> Cell:
        """The cell that reads what so many directions of a layer of this cell emit, one after the other."""
        return self

    def __call__(self, /, *args: object, **kwargs: object) -> Any:
        """Use this cell's equations inside another cell's."""
        active = _active.get()
        if self in active:
            names = " inside ".join(c.name for c in (self, *reversed(active)))
            fail("a cell cannot call itself", got=names, do="write a Python loop over a size")
        token = _active.set((*active, self))
        try:
            return self.function(*args, **kwargs)
        finally:
            _active.reset(token)

    def __repr__(self) -> str:
        states = (f"{'constant' if s.name in self.constants else 'state'} {s}" for s in self.states)
        parts = [*map(str, self.inputs), *states, "*", *map(str, self.params)]
        return f"<cell {self.name}({', '.join(parts)})>"

    def __copy__(self) -> Cell:
        return self  # nothing in it changes

    def __deepcopy__(self, memo: object) -> Cell:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """A pickle has the names of the cell and of its module, or the cell itself around a function of a module."""
        place = self.function.__module__, self.function.__qualname__
        found = named(*place)
        if found is self:
            return named, place
        if found is self.function:
            return object.__new__, (type(self),), vars(self)
        what, do = "a pickle finds a cell under its name in its module", "define it with @cell at the top of a module"
        raise self._wrong(what, got=".".join(place), do=do)

    def _repr_html_(self) -> str:
        """For notebooks: the equations."""
        from tvm_rnn.graph.equations import drawn

        try:
            graph = self.trace(dict.fromkeys(self.required, SHOWN_SIZE))
        except CellError:  # sizes that this cell does not take
            return drawn(repr(self), [])
        return drawn(repr(self), [graph])

    def trace(self, sizes: Mapping[str, int], dtype: str = "float32") -> Graph:
        """The graph of one step with every axis bound to a size. Raises CellError at the line that is wrong."""
        sizes = self.completed(sizes)
        self._check_sizes(sizes)
        leaves = {
            kind: tuple(Node(kind, shape=a.shape(sizes), name=a.name) for a in arguments)
            for kind, arguments in (("input", self.inputs), ("state", self.states), ("param", self.params))
        }
        first = leaves["input"][0]
        flat = replace(first, shape=(math.prod(first.shape),))
        leaves["input"] = (flat, *leaves["input"][1:])
        names = {a.name: a.dims.present(sizes).labels for a in self.arguments}
        values, params = (
            {n.name: Value(n, names[n.name]) for n in nodes}
            for nodes in ((*leaves["input"][1:], *leaves["state"]), leaves["param"])
        )
        try:
            with counted():
                values[first.name] = Value(Value(flat).reshape(first.shape).node, names[first.name])
                values, begun = self._begun(values, params)
                returned = self(*self._in_order(values), **params)
        except TvmRnnError as error:
            raise error.with_traceback(user_frames(error.__traceback__)) from None
        except RecursionError:
            raise self._wrong("the equations never end", do="remove the recursion") from None
        except Exception as error:
            raise self._wrong(
                "an equation failed",
                where=_raised_at(error.__traceback__, self.function) or self.where,
                got=f"{type(error).__name__}: {error}",
                do="correct this line; equations are made of tvm_rnn's functions and of Python numbers",
            ) from error
        results, output = self._results(returned, leaves["state"], names)
        inputs, states, weights = leaves["input"], leaves["state"], leaves["param"]
        same = (node for node in states if node.name in self.constants)
        results = (*results, *same, *(v.node for v in begun))
        wide = () if len(output.shape) == 1 else output.shape
        if wide:
            output = Value(output).reshape(-1).node
        graph = Graph(self.name, dtype, inputs, states, weights, results, output, self.output, dict(sizes))
        graph = replace(graph, output_shape=wide)
        self._check_numbers(graph)
        self._check_leaves(graph)
        return graph

    def _wrong(self, what: str, where: str = "", **slots: Any) -> CellError:
        return CellError(message(f"cell {self.name}: {what}", where=where or self.where, **slots))

    def _check_sizes(self, sizes: Mapping[str, int]) -> None:
        missing = [name for name in self.size_names if name not in sizes and name not in self.optional]
        if missing:
            raise self._wrong(
                "an axis has no size",
                got=f"sizes for {', '.join(sizes) or 'nothing'}",
                expected=f"also {', '.join(missing)}",
                do=f"give it to RNN: RNN(..., {'hidden_size' if missing[0] == 'H' else missing[0]}=...)"
                + (f"; or did you mean {near}?" if (near := nearest(missing[0], sizes)) else ""),
            )
        for argument in self.arguments:
            if math.prod(argument.shape(sizes)) > MOST_ELEMENTS:
                raise self._wrong(
                    f"{argument} is too large",
                    got=f"{list(argument.shape(sizes))} for {', '.join(f'{k}={v}' for k, v in sizes.items())}",
                    expected=f"at most {MOST_ELEMENTS:,} elements",
                    do="choose smaller sizes",
                )
            if min(argument.shape(sizes), default=1) < 1:
                raise self._wrong(
                    f"an axis of {argument} is empty",
                    got=f"{list(argument.shape(sizes))} for {', '.join(f'{k}={v}' for k, v in sizes.items())}",
                    expected="sizes of at least 1",
                    do="choose other sizes",
                )

    def _begun(self, values: Mapping[str, Value], params: Mapping[str, Value]) -> tuple[dict[str, Value], list[Value]]:
        """The inputs and states with states that are still to begin at what they begin from, and what says so after
        the step: 0."""
        found, after = dict(values), list[Value]()
        for state, begin in self.begins.items():
            flag = values[begins(state)]
            first = params[begin] if isinstance(begin, str) else begin
            found[state] = apply("where", flag > 0.5, first, values[state])
            after.append(apply("stop_gradient", apply("minimum", flag, 0.0)))
        return found, after

    def _in_order(self, by_name: Mapping[str, Value]) -> list[Value]:
        return [by_name[name] for name in inspect.signature(self.function).parameters if name in by_name]

    def _results(
        self, returned: Any, states: tuple[Node, ...], axes: Mapping[str, Axes]
    ) -> tuple[tuple[Node, ...], Node]:
        values = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        names = [s.name for s in self.states[: len(self.states) - len(self.begins) - len(self.constants)]]
        wanted = names if self.output in names else [*names, self.output]
        if len(values) != len(wanted) or not all(isinstance(v, Value) for v in values):
            raise self._wrong(
                "the returned values are not the new states",
                where=_return_line(self.function),
                got=f"{len(values)} value(s): {', '.join(type(v).__name__ for v in values)}",
                expected=f"{len(wanted)}: the new {', '.join(wanted)}, in this order"
                + (f", without {', '.join(self.constants)}" if self.constants else ""),
                do=self._advice_on_states(len(values) - len(wanted)),
            )
        nodes = tuple(v.node for v in values)
        for argument, value in zip(self.states, values, strict=False):
            self._check_names(argument, value, axes[argument.name])
        for name, node, state in zip(names, nodes, states, strict=False):
            if node.shape != state.shape or node.boolean:
                raise self._wrong(
                    f"the new {name} has another shape than the state {name}",
                    where=node.source or _return_line(self.function),
                    got="a truth value" if node.boolean else list(node.shape),
                    expected=list(state.shape),
                    do=f"return a value of shape {list(state.shape)} for {name}",
                )
        output = nodes[wanted.index(self.output)]
        if not output.shape or output.boolean:
            raise self._wrong(
                "the output must have an axis",
                where=output.source or _return_line(self.function),
                got="a truth value" if output.boolean else f"{self.output}{list(output.shape)}",
                expected="one axis or more, of numbers",
                do="name another output= in @cell, or reshape it",
            )
        return nodes[: len(names)], output

    def _advice_on_states(self, more: int) -> str:
        """What to do where `more` values than expected are returned."""
        inputs = [a.name for a in self.inputs[1 : 1 + max(more, 0)]]
        if not inputs and more > 0:
            return 'return the new states alone; what a layer gives is named: @rnn.cell(output="NAME")'
        if not inputs:
            return "return every state, computed from the arguments"
        states = " ".join([*(s.name for s in self.states), *inputs])
        return f'name every state: @rnn.cell(states="{states}"); without it {", ".join(inputs)} is an input'

    def _check_names(self, state: Argument, value: Value, axes: Axes) -> None:
        """A state keeps the names of its axes."""
        if len(value.axes) != len(axes):
            return  # the shapes differ
        try:
            merged([value.axes, axes])
        except AxesDiffer as names:
            raise self._wrong(
                f"the new {state.name} has other axes than the state {state.name}: {names}",
                where=value.node.source or _return_line(self.function),
                got=f"[{', '.join(name or '?' for name in value.axes)}]",
                expected=str(state),
                do=f'where only the name differs, say so: rnn.rename(value, "{state.dims.text}")',
            ) from None

    def _check_numbers(self, graph: Graph) -> None:
        """Numbers of the equations, of initial= and of init= that the dtype cannot hold."""
        for node in graph.nodes():
            for constant in (a.value for a in node.args if a.value is not None):
                if _overflows(constant, graph.dtype):
                    largest = np.abs(constant[np.isfinite(constant)]).max()
                    raise self._wrong(
                        f"a number of the equations is too large for {graph.dtype}",
                        where=node.source,
                        got=largest,
                        expected=f"at most {np.finfo(graph.dtype).max}",
                        do='choose a smaller one, or RNN(..., dtype="float64")',
                    )
        for what, given in (("initial", self.initial), ("init", self.init)):
            for name, value in given.items():
                if not isinstance(value, str) and _overflows(np.float64(value), graph.dtype):
                    largest = np.finfo(graph.dtype).max
                    raise self._wrong(f"{what}= of {name}", got=value, expected=f"at most {largest}, in {graph.dtype}")

    def _check_leaves(self, graph: Graph) -> None:
        own = {*graph.inputs, *graph.states, *graph.params}
        nodes = list(topological(graph.roots))
        foreign = [n for n in nodes if n.op in ("input", "state", "param") and n not in own]
        if foreign:
            raise self._wrong(
                "a value of another cell, or of an earlier trace, is used",
                got=", ".join(n.name for n in foreign),
                expected="values made of this call's arguments",
                do="keep traced values out of globals and of objects that outlive the call",
            )
        idle = [n.name for n in graph.params if n not in set(nodes)]
        if idle:
            raise self._wrong(
                "a parameter is never used",
                got=", ".join(idle),
                expected="every keyword-only argument in an equation",
                do="use it or remove it from the signature",
            )


def named(module: str, name: str) -> object:
    """What has this name in a module; None: nothing has."""
    found: object = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _overflows(numbers: np.ndarray | np.float64, dtype: str) -> bool:
    """Whether a finite number becomes infinite."""
    with np.errstate(over="ignore"):
        return bool((np.isinf(numbers.astype(dtype)) & np.isfinite(numbers)).any())


def _raised_at(trace: TracebackType | None, function: Callable[..., object]) -> str | None:
    """The "file:line" of the innermost frame, in the cell's own file, that an exception passed through."""
    found = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == function.__code__.co_filename:
            found = f"{function.__code__.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _return_line(function: Callable[..., object]) -> str:
    """The "file:line" of the function's last return."""
    code = function.__code__
    returns = [i.offset for i in dis.get_instructions(code) if i.opname.startswith("RETURN")]
    lines = [line for start, end, line in code.co_lines() if line and any(start <= at < end for at in returns)]
    return f"{code.co_filename}:{max(lines, default=code.co_firstlineno)}"


@overload
def cell(function: Callable[..., object], /) -> Cell: ...
@overload
def cell(
    *,
    states: str | Sequence[str] = ...,
    constants: str | Sequence[str] = ...,
    output: str | None = ...,
    initial: Mapping[str, str | float] | None = ...,
    init: Mapping[str, str | float] | None = ...,
    name: str | None = ...,
) -> Callable[[Callable[..., object]], Cell]: ...


def cell(
    function: Callable[..., object] | None = None,
    /,
    *,
    states: str | Sequence[str] = "h",
    constants: str | Sequence[str] = (),
    output: str | None = None,
    initial: Mapping[str, str | float] | None = None,
    init: Mapping[str, str | float] | None = None,
    name: str | None = None,
) -> Any:
    """Make a Cell from a function: `@cell(states="h c")`.

    The function's positional arguments are per-step inputs and states, keyword-only ones are parameters; each
    annotation is a string of dims ("4 H I"), "" for a scalar. It returns the new states, in the order of `states`.

    Args:
        function: one step; where `@cell` is written without arguments.
        states: names of the arguments that are carried from step to step.
        constants: names of the arguments that are given once per sequence, of any shape, such as the memory that
            attention reads: all steps read them, none changes or returns them. `mod(x, memory=m)`, with m [B, *shape];
            states of such a call have them too.
        output: the state that the layer emits, by name (default: the first), or the name of an extra value that is
            returned after the states.
        initial: {state: its value before the first step}, where that is not 0: a number, an infinity, or the name of a
            parameter of the state's dims, which is learned. Such a state has another beside it, `<state>_begins`: 1
            before the first step and where a reset is, 0 afterwards and where a caller gives the state.
        init: {parameter: "zeros", "ones" or a number}, where it is not initialised uniformly.
        name: of the cell (default: the function's): letters, digits and _, at most 100.

    Returns:
        The Cell, or the decorator that makes one.

    Raises:
        CellError: the signature is not of this form; it names the function's file and line.
    """
    if function is not None:
        return _define(function, (("h",), ()), None, {}, {}, None)
    carried, held = (
        tuple(names.replace(",", " ").split()) if isinstance(names, str) else tuple(names)
        for names in (states, constants)
    )
    return lambda f: _define(f, (carried, held), output, initial or {}, init or {}, name)


def _define(
    function: Callable[..., object],
    kinds: tuple[tuple[str, ...], tuple[str, ...]],
    output: str | None,
    initial: Mapping[str, str | float],
    init: Mapping[str, str | float],
    name: str | None,
) -> Cell:
    if not inspect.isfunction(function):
        do = 'write @cell or @cell(states="h c") above a def'
        raise CellError(message("@cell decorates a function", got=f"{function!r:.80}", do=do))
    where = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
    label = name or function.__name__
    states, constants = kinds

    def wrong(what: str, **slots: Any) -> CellError:
        return CellError(message(f"cell {label}: {what}", where=where, **slots))

    if function.__name__ == "<lambda>":
        raise wrong("a lambda has no annotations", do="write a def, with the dims of each argument as its annotation")
    if not states or len(set(states)) != len(states):
        raise wrong("the states must be distinct names", got=states, expected='for example states="h c"')
    positional, params = _arguments(function, wrong)
    by_name = {a.name: a for a in positional}
    if len({*states, *constants}) != len(states) + len(constants):
        got = f"states {', '.join(states)}; constants {', '.join(constants)}"
        raise wrong("the constants must be distinct names, and no states", got=got, expected='constants="memory"')
    for kind, carried in [("state", s) for s in states] + [("constant", c) for c in constants]:
        if carried in (p.name for p in params):
            do = "put it before the *: keyword-only arguments are parameters"
            raise wrong(f"{kind} {carried} is keyword-only", do=do)
        if carried not in by_name:
            raise wrong(f"{kind} {carried} is not an argument", **unknown("argument", carried, by_name))
    inputs = tuple(a for a in positional if a.name not in (*states, *constants))
    _check_first(inputs, by_name, wrong)
    _check_axes((*positional, *params), wrong)
    taken = (*(a.name for a in (*inputs, *params)), *constants)
    if output is not None and (not isinstance(output, str) or output in taken):
        raise wrong("output= must name a state or an extra result", got=repr(output), expected=", ".join(states))
    _check_values("initial", initial, states, (*(p.name for p in params), *INFINITIES), wrong)
    _check_values("init", init, [p.name for p in params], INITIALISERS, wrong)
    begin = {s: value for s in states if isinstance(value := initial.get(s, 0.0), str) or math.isinf(value)}
    for state, value in begin.items():
        _check_begin(by_name[state], value, [*positional, *params], wrong)
    return Cell(
        name=label,
        function=function,
        inputs=inputs,
        states=(
            *(by_name[name] for name in (*states, *constants)),
            *(Argument(begins(s), by_name[s].dims) for s in begin),
        ),
        params=tuple(params),
        output=output or states[0],
        where=where,
        initial={s: float(v) for s, v in initial.items() if s not in begin} | {begins(s): 1.0 for s in begin},
        init=dict(init),
        begins=begin,
        constants=constants,
    )


def _check_first(inputs: Sequence[Argument], names: Iterable[str], wrong: Wrong) -> None:
    """The first input is what the layer below hands on: of one axis at least, and of no size of its own."""
    if not inputs:
        raise wrong("there is no input", got=f"only states: {', '.join(names)}", do='add an argument such as x: "I"')
    if not inputs[0].dims.axes:
        got, do = str(inputs[0]), 'give it an axis of size 1, such as x: "1"'
        raise wrong("the first input must have an axis", got=got, expected='such as x: "I"', do=do)
    own = parse_dims(inputs[0].dims.text.replace(",", " ").split()[0])
    if inputs[0].dims.optional or own.defaults:
        raise wrong(
            "the first input has the size of what feeds the layer", got=str(inputs[0]), expected='such as x: "I"'
        )


def begins(state: str) -> str:
    """The state that says whether `state` is still to begin."""
    return f"{state}_begins"


def _check_begin(state: Argument, value: str | float, known: Sequence[Argument], wrong: Wrong) -> None:
    """A parameter that a state begins from has its dims; and the state beside it needs a name of its own."""
    by_name = {a.name: a for a in known}
    if begins(state.name) in by_name:
        raise wrong(
            f"{begins(state.name)} is taken: a state beside {state.name} has this name", do="rename the argument"
        )
    if isinstance(value, str) and by_name[value].dims.text.split() != state.dims.text.split():
        got, expected = str(by_name[value]), f"the dims of {state}"
        raise wrong(f"initial= of {state.name}: the parameter has other dims", got=got, expected=expected)


def _arguments(function: Callable[..., object], wrong: Wrong) -> tuple[list[Argument], list[Argument]]:
    """The positional arguments (inputs and states) and the keyword-only ones (parameters)."""
    positional: list[Argument] = []
    params: list[Argument] = []
    for p in inspect.signature(function).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            stars = "*" if p.kind == p.VAR_POSITIONAL else "**"
            raise wrong(
                f"{stars}{p.name} is not allowed", expected="named arguments, each with its dims", do="name each one"
            )
        if p.default is not p.empty:
            raise wrong(
                f"argument {p.name} has a default", got=repr(p.default), do="write the constant in the equations"
            )
        argument = Argument(p.name, _dims(p, wrong))
        (params if p.kind == p.KEYWORD_ONLY else positional).append(argument)
    return positional, params


def _check_axes(arguments: Sequence[Argument], wrong: Wrong) -> None:
    """Every mention of an axis says the same of where it is not given."""
    optional = {name: a for a in arguments for name in a.dims.optional}
    defaults: dict[str, Argument] = {}
    for a in arguments:
        for name in (n for n in a.dims.names if n in optional and n not in a.dims.optional):
            got = f"{optional[name]} and {a}"
            raise wrong(f"axis {name} may be absent here, and not there", got=got, do=f"write {name}? everywhere")
        for name, value in a.dims.defaults.items():
            first = defaults.setdefault(name, a)
            if ast.dump(first.dims.defaults[name]) != ast.dump(value):
                raise wrong(f"axis {name} has two defaults", got=f"{first} and {a}", do="write one of them")


def _check_values(
    what: str,
    given: Mapping[str, object],
    known: Iterable[str],
    words: Sequence[object],
    wrong: Wrong,
) -> None:
    """initial= and init= name what exists, and give a number or one of the words."""
    for key, value in given.items():
        if key not in known:
            raise wrong(f"{what}= names something unknown", **unknown("name", key, known))
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        if not number and value not in words:
            expected = " or ".join([*map(repr, words), "a finite number"])
            raise wrong(f"{what}= of {key}", got=repr(value), expected=expected)


def _dims(p: inspect.Parameter, wrong: Wrong) -> Dims:
    text = p.annotation
    if isinstance(text, str) and text[:1] in "'\"" and text:  # `from __future__ import annotations` quotes them again
        text = ast.literal_eval(text)
    if text is p.empty or not isinstance(text, str):
        got = "no annotation" if text is p.empty else repr(text)
        raise wrong(f"argument {p.name} needs its dims", got=got, expected='a string such as "H", "4 H I" or ""')
    try:
        return parse_dims(text)
    except ValueError as reason:
        raise wrong(f"argument {p.name}: {reason}", got=repr(text), expected='for example "4 H I"') from None

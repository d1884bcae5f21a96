"""Random cells: equations drawn from the op table, as the source text of a function.

In: hypothesis' draw function. Out: `Equations`, whose text is what a user would have written (so that a counter-example
can be pasted), and the Cell made of it. Values are kept tame: every value has a bound on its magnitude, and what grows
is put through tanh, so that float32 and the float64 oracle can be compared.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import exp, prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

import tvm_rnn as rnn
from tvm_rnn.language import functions

Shape = tuple[int, ...]
Draw = Callable[[Any], Any]
SIZES = (1, 2, 3, 4, 7, 8, 9, 16, 17)
LARGEST = 300  # elements of a value
KINK = re.compile(
    r"\b(abs|absolute|to_u?int8|relu|maximum|minimum|max|min|sign|where|floor|round|mod|argmax|sort|topk|\w+_spike|logsumexp|clip|elu|"
    r"leaky_relu|hard_\w+|softsign)\("
)
FUNCTIONS = "tanh sigmoid softplus exp expm1 log log1p sqrt erf sin cos silu gelu elu mean var softmax layer_norm"
FUNCTIONS += " power logsumexp log_sigmoid hard_sigmoid leaky_relu rms_norm"
DRAWS = re.compile(r"\b(random_uniform|random_normal|sample)\(")
ROUNDS = re.compile(rf"/|\*\*|\b({FUNCTIONS.replace(' ', '|')})\(")


@dataclass(frozen=True)
class Variable:
    """A name in the function: what it is computed from, its shape, and the largest magnitude that it can have."""

    name: str
    text: str
    reads: tuple[str, ...]
    shape: Shape
    bound: float
    # A small error in an operand can become a large one (sign, comparisons), or its gradient is no slope.
    sharp: bool = False


@dataclass(frozen=True)
class Equations:
    """A cell as text: arguments with their shapes, lines in order, results; output: the state that the layer emits, or
    "y", which is then one more result. order: the arguments as they stand in the signature."""

    inputs: dict[str, Shape]
    states: dict[str, Shape]
    params: dict[str, Shape]
    lines: tuple[Variable, ...]
    results: tuple[str, ...]
    output: str
    order: tuple[str, ...]
    initial: dict[str, float | str] = field(default_factory=dict)
    constants: dict[str, Shape] = field(default_factory=dict)

    @property
    def sharp(self) -> bool:
        return any(line.sharp for line in self.lines)

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers."""
        return any(DRAWS.search(line.text) for line in self.lines)

    @property
    def may_tie(self) -> bool:
        """Where values are multiples of one half, what has a kink reads no rounded value: rounding decides on which
        side of a kink a value lies that should be on it."""
        kept = dict(zip(self.states, self.results, strict=False))
        emitted = self.results[-1] if self.output == "y" else self.output
        rounded: set[str] = set()
        while True:
            found = {n for n, result in kept.items() if result in rounded}
            found |= {"x"} if emitted in rounded else set()
            found |= {v.name for v in self.lines if ROUNDS.search(v.text) or rounded & {*v.reads}}
            if found <= rounded:
                return not any(KINK.search(v.text) and rounded & {*v.reads} for v in self.lines)
            rounded |= found

    @property
    def source(self) -> str:
        def argument(name: str, shape: Shape) -> str:
            return f'{name}: "{" ".join(map(str, shape))}"'

        shapes = {**self.inputs, **self.states, **self.constants}
        names = [argument(n, shapes[n]) for n in self.order]
        own = ["*", *(argument(n, s) for n, s in self.params.items())] if self.params else []
        head = f"def drawn({', '.join([*names, *own])}):"
        body = [f"    {line.name} = {line.text}" for line in self.lines]
        return "\n".join([head, *body, f"    return {', '.join(self.results)}"])

    def __repr__(self) -> str:
        options = f'states="{" ".join(self.states)}", output="{self.output}", initial={self.initial}'
        options += f', constants="{" ".join(self.constants)}"' if self.constants else ""
        return "\n" + textwrap.indent(f"@cell({options})\n{self.source}", "    ")

    @property
    def output_size(self) -> int:
        made = {line.name: line.shape for line in self.lines}
        shapes = {**self.states, **made, **self.inputs, **self.constants}
        return shapes[self.results[-1] if self.output == "y" else self.output][0]

    def cell(self) -> rnn.Cell:
        namespace: dict[str, Any] = {n: getattr(functions, n) for n in dir(functions) if not n.startswith("_")}
        namespace |= {"np": np, "reduce": functools.reduce}
        exec(compile(self.source, "<drawn>", "exec"), namespace)
        options: dict[str, Any] = {"output": self.output, "initial": self.initial, "constants": [*self.constants]}
        return rnn.cell(states=" ".join(self.states), **options)(namespace["drawn"])

    def net(self, dtype: str, num_layers: int = 1, bidirectional: bool = False) -> rnn.RNN:
        """Layers follow each other as far as a layer's output is as wide as its input."""
        wide = self.output_size * (2 if bidirectional else 1) == self.inputs["x"][0]
        layers = num_layers if wide else 1
        cell, width = self.cell(), self.inputs["x"][0]
        return rnn.RNN(cell, width, num_layers=layers, bidirectional=bidirectional, dtype=dtype).init(seed=0)


@dataclass
class Writer:
    """Draws one line after the other; every operand is something written before."""

    draw: Draw
    sharp: bool
    drawing: bool = False
    inputs: dict[str, Shape] = field(default_factory=dict)
    states: dict[str, Shape] = field(default_factory=dict)
    constants: dict[str, Shape] = field(default_factory=dict)
    params: dict[str, Shape] = field(default_factory=dict)
    values: list[Variable] = field(default_factory=list)
    lines: list[Variable] = field(default_factory=list)

    def one_of(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def order(self, rank: int) -> Shape:
        """So many axes in some order."""
        return tuple(self.draw(st.permutations(range(rank))))

    def leaf(self, kind: dict[str, Shape], name: str, shape: Shape) -> Variable:
        kind[name] = shape
        found = Variable(name, name, (), shape, 1.0)
        self.values.append(found)
        return found

    def param(self, shape: Shape) -> str:
        name = f"p{len(self.params)}"
        self.params[name] = shape
        return name

    def write(self, text: str, shape: Shape, bound: float, sharp: bool = False) -> None:
        if prod(shape) > LARGEST or len(shape) > 3:
            return
        known = {*self.params, *(v.name for v in self.values)}
        reads = tuple(name for name in dict.fromkeys(re.findall(r"\w+", text)) if name in known)
        if bound > 8:
            text, bound = f"tanh({text})", 1.0
        line = Variable(f"v{len(self.lines)}", text, reads, shape, bound, sharp)
        self.lines.append(line)
        self.values.append(line)

    def value(self, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> Variable | None:
        able = [v for v in self.values if len(v.shape) in ranks]
        return self.one_of(able[::-1]) if able else None

    def partner(self, a: Variable) -> Variable | str:
        """An operand that broadcasts with `a`: a value, a parameter, a number or an array known now."""
        able = [v for v in self.values if v.shape in (a.shape, (), a.shape[1:], a.shape and (1,))]
        kind = self.one_of(("value", "value", "param", "number", "array"))
        if kind == "param":
            shape = self.one_of((a.shape, a.shape[1:] or a.shape, ()))
            known = [name for name, own in self.params.items() if own == shape]
            return self.one_of(known) if known and self.one_of((True, False)) else self.param(shape)
        if kind == "number" or not a.shape:
            return self.one_of(("0.5", "-1.5", "2.0", "1.0", "0.0"))
        if kind == "array":
            return f"(np.arange({a.shape[-1]}) * 0.25 - 0.5)"
        return self.one_of(able)

    # --- ops: each writes one line, or nothing where no operand fits -------------------------------------------------

    def unary(self) -> None:
        v = self.value()
        assert v is not None
        b, n = v.bound, v.name
        texts = {
            f"tanh({n})": 1.0,
            f"sigmoid({n})": 1.0,
            f"softplus({n})": b + 1,
            f"exp(0.5 * {n})": exp(b / 2),
            f"log(abs({n}) + 0.5)": b + 1,
            f"log1p(abs({n}))": b,
            f"sqrt(abs({n}) + 0.1)": b + 1,
            f"erf({n})": 1.0,
            f"sin({n})": 1.0,
            f"cos({n})": 1.0,
            f"relu({n})": b,
            f"abs({n})": b,
            f"absolute({n})": b,
            f"-{n}": b,
            f"negative({n})": b,
            f"silu({n})": b,
            f"gelu({n})": b,
            f"({n}) ** 2": b * b,
            f"square({n})": b * b,
            f"expm1(0.5 * {n})": exp(b / 2),
            f"elu({n}, 0.7)": b + 1,
            f"leaky_relu({n}, 0.1)": b,
            f"log_sigmoid({n})": b + 1,
            f"softsign({n})": 1.0,
            f"hard_sigmoid({n})": 1.0,
            f"hard_tanh({n})": 1.0,
            f"clip({n}, -0.6, 0.4)": 0.6,
            f"(abs({n}) + 0.5) ** 1.7": (b + 0.5) ** 1.7,
            f"power(abs({n}) + 0.5, 0.3)": b + 0.5,
        }
        sharp = {
            f"stop_gradient({n})": b,
            f"sign({n})": 1.0,
            f"floor({n})": b + 1,
            f"round({n})": b + 0.5,
            f"mod({n}, 0.75)": 0.75,
            f"0.01 * to_int8(90.0 * {n})": 1.28,
            f"to_uint8(3.0 * {n})": 3 * b + 0.5,
            f"fast_sigmoid_spike({n})": 1.0,
            f"atan_spike({n})": 1.0,
            f"triangle_spike({n})": 1.0,
            f"surrogate(floor({n}), sin({n}))": b + 1,
        }
        texts |= sharp if self.sharp else {}
        text = self.one_of(texts)
        self.write(text, v.shape, texts[text], sharp=text in sharp)

    def binary(self) -> None:
        a = self.value()
        assert a is not None
        b = self.partner(a)
        name, bound = (b, 2.0) if isinstance(b, str) else (b.name, b.bound)
        texts = {
            f"{a.name} + {name}": a.bound + bound,
            f"{name} - {a.name}": a.bound + bound,
            f"{a.name} * {name}": a.bound * bound,
            f"{a.name} / (1.5 + abs({name}))": a.bound,
            f"maximum({a.name}, {name})": max(a.bound, bound),
            f"minimum({name}, {a.name})": max(a.bound, bound),
        }
        text = self.one_of(texts)
        self.write(text, a.shape, texts[text])

    def random(self) -> None:
        """Numbers that are drawn, where the cell may draw any."""
        v = self.value((1,))
        assert v is not None
        if not self.drawing:
            return
        n = self.one_of(SIZES)
        texts: dict[str, tuple[Shape, float]] = {
            f"random_uniform([{n}])": ((n,), 1.0),
            f"random_normal([{n}])": ((n,), 6.0),
            f"random_uniform([2, {n}])": ((2, n), 1.0),
        }
        texts |= {f"sample({v.name}, 0.7)": ((), v.shape[0])} if self.sharp else {}
        text = self.one_of(texts)
        self.write(text, *texts[text], sharp=text.startswith("sample"))

    def choice(self) -> None:
        a = self.value()
        assert a is not None
        if not self.sharp:
            return
        same = [v for v in self.values if v.shape == a.shape]
        b, c, d = (self.one_of(same) for _ in range(3))
        tests = (f"{a.name} > {b.name}", f"{c.name} <= 0.1", f"{a.name} != {d.name}", f"{b.name} < {c.name}")
        first, second = self.one_of(tests), self.one_of(tests)
        tests = (first, f"~({first})", f"({first}) & ({second})", f"logical_or({first}, {second})")
        tests += (f"logical_not({first})", f"logical_and({first}, {second})")
        text = f"where({self.one_of(tests)}, {c.name}, {d.name} - 0.25)"
        self.write(text, a.shape, max(c.bound, d.bound) + 0.25, sharp=True)

    def product(self) -> None:
        v = self.value((1,))
        assert v is not None
        n, k = self.one_of(SIZES), v.shape[0]
        lead = self.one_of(((), (), (2,), (4,)))
        bound = 1.0 + v.bound * k * 0.5
        way = self.one_of(("left", "left", "right", "named", "bytes" if self.sharp else "left"))
        if way == "left":
            self.write(f"{self.param((*lead, n, k))} @ {v.name}", (*lead, n), bound)
        elif way == "bytes":
            text = f"0.001 * (to_int8(30.0 * {self.param((n, k))}) @ to_uint8(20.0 * {v.name}))"
            self.write(text, (n,), 1.0 + 0.3 * v.bound * k, sharp=True)
        else:
            p = self.param((k, n))
            self.write(f"matmul({v.name}, {p})" if way == "named" else f"{v.name} @ {p}", (n,), bound)

    def again(self) -> None:
        """A matrix that an earlier line multiplies by, once more: as it is, or transposed."""
        ways = [
            (text, shape[side], shape[1 - side], v)
            for p, shape in self.params.items()
            if len(shape) == 2
            for v in self.values
            for side, text in ((0, f"{p} @ {v.name}"), (1, f"{v.name} @ {p}"), (1, f"transpose({p}) @ {v.name}"))
            if v.shape == (shape[1 - side],)
        ]
        if ways:
            text, n, k, v = self.one_of(ways)
            self.write(text, (n,), 1.0 + v.bound * k * 0.5)

    def gates(self) -> None:
        """Stacked gates, unpacked or split."""
        v = self.value((1,))
        assert v is not None
        n, count = self.one_of(SIZES), self.one_of((2, 3))
        stacked = self.one_of((True, False))
        shape = (count, n, v.shape[0]) if stacked else (count * n, v.shape[0])
        whole = f"{self.param(shape)} @ {v.name}"
        which = self.one_of(range(count))
        text = f"[*({whole})][{which}]" if stacked else f"split({whole}, {count})[{which}]"
        self.write(text, (n,), 1.0 + v.bound * v.shape[0] * 0.5)

    def depth(self) -> None:
        """A loop inside the step, with one matrix for all turns or one for each."""
        v = self.value((1,))
        assert v is not None
        n, turns = v.shape[0], self.one_of((1, 2, 3))
        if self.one_of((True, False)):
            text = f"reduce(lambda s, i: tanh({self.param((turns, n, n))}[i] @ s), range({turns}), {v.name})"
        else:
            text = f"reduce(lambda s, i: sigmoid({self.param((n, n))} @ s) - 0.5, range({turns}), {v.name})"
        self.write(text, v.shape, 1.0)

    def convolution(self) -> None:
        """Of a line of several channels, or of an image."""
        v = self.value((2, 3))
        if v is None:
            return
        taps = tuple(self.one_of((1, 2, 3)) for _ in v.shape[1:])
        step, fits = self.one_of((1, 2)), self.one_of((True, False))
        lead = self.one_of(((1,), (3,), (2, 2)))
        places = tuple(size + 2 - step * (n - 1) for size, n in zip(v.shape[1:], taps, strict=True))
        fits = fits or min(places) < 1
        shape = (*lead, v.shape[0], *taps)
        text = f"conv({v.name}, {self.param(shape)}, {repr('same') if fits else 1}, {step})"
        self.write(text, (*lead, *(v.shape[1:] if fits else places)), 1.0 + v.bound * prod(shape[len(lead) :]) * 0.5)

    def heads(self) -> None:
        v = self.value((2,))
        if v is None:
            return
        (a, b), n = v.shape, self.one_of((1, 3, 5))
        spec, shape, result = self.one_of(
            (
                ("aij,aj->ai", (a, n, b), (a, n)),
                ("ij,aj->ai", (n, b), (a, n)),
                ("ij,aj->ia", (n, b), (n, a)),
                ("aj,aj->a", (a, b), (a,)),
                ("iaj,aj->i", (n, a, b), (n,)),
                ("ia,aj->ij", (n, a), (n, b)),
            )
        )
        self.write(f'einsum("{spec}", {self.param(shape)}, {v.name})', result, 1 + a * b * v.bound)

    def contraction(self) -> None:
        m = self.value((2,))
        if m is None:
            return
        able = [v for v in self.values if v.shape in ((m.shape[1],), (m.shape[0],))]
        square = [v for v in self.values if len(v.shape) == 2 and v.shape[0] == m.shape[1]]
        if square and self.one_of((True, False)):
            other = self.one_of(square)
            bound = m.bound * other.bound * m.shape[1]
            self.write(f"{m.name} @ {other.name}", (m.shape[0], other.shape[1]), bound)
        elif able:
            v = self.one_of(able)
            text, shape = (f"{v.name} @ {m.name}", (m.shape[1],))
            if v.shape[0] == m.shape[1]:
                text, shape = f"{m.name} @ {v.name}", (m.shape[0],)
            self.write(text, shape, m.bound * v.bound * v.shape[0])

    def by_head(self) -> None:
        """Products of heads: one matrix or vector for each."""
        v = self.value((2,))
        if v is None:
            return
        (heads, size), n = v.shape, self.one_of((1, 3, 4))
        bound = 1.0 + v.bound * size * 0.5
        text, shape = self.one_of(
            (
                (f"matvec({self.param((heads, n, size))}, {v.name})", (heads, n)),
                (f"vecmat({v.name}, {self.param((heads, size, n))})", (heads, n)),
                (f"vecdot({v.name}, {self.param((heads, size))})", (heads,)),
            )
        )
        self.write(text, shape, bound)

    def outer(self) -> None:
        """Of two vectors the products of all pairs, or the sum of those at the same places."""
        a, b = self.value((1,)), self.value((1,))
        assert a is not None and b is not None
        if a.shape == b.shape and self.one_of((True, False)):
            self.write(f"dot({a.name}, {b.name})", (), a.bound * b.bound * a.shape[0])
            return
        self.write(f"outer({a.name}, {b.name})", (a.shape[0], b.shape[0]), a.bound * b.bound)

    def reduction(self) -> None:
        v = self.value((1, 2, 3))
        assert v is not None
        axis = self.one_of(range(len(v.shape)))
        keep, several = self.one_of((False, True)), self.one_of((False, False, True))
        axes = tuple(sorted({axis, self.one_of(range(len(v.shape)))})) if several else (axis,)
        size = prod(v.shape[a] for a in axes)
        texts = {"sum": v.bound * size, "mean": v.bound, "max": v.bound, "min": v.bound, "var": v.bound**2}
        name = self.one_of((*texts, "softmax", "rms_norm", "layer_norm", "layer_norm"))
        if name in texts:
            shape = tuple(1 if i in axes else s for i, s in enumerate(v.shape) if keep or i not in axes)
            written = axes if several else axis
            self.write(f"{name}({v.name}, axis={written}, keepdims={keep})", shape, texts[name])
        elif name == "softmax":
            self.write(f"softmax({v.name}, axis={axis})", v.shape, 1.0)
        elif name == "rms_norm":
            self.write(f"tanh(rms_norm({v.name}, {self.param(v.shape[-1:])}, eps=0.1))", v.shape, 1.0)
        else:
            own = f"{self.param(v.shape[-1:])}, {self.param(v.shape[-1:])}, " if self.one_of((True, False)) else ""
            self.write(f"tanh(layer_norm({v.name}, {own}eps=0.1))", v.shape, 1.0)

    def ordered(self) -> None:
        """What stands at other places of an axis."""
        v = self.value((1, 2))
        assert v is not None
        axis = self.one_of(range(len(v.shape)))
        size, n, rest = v.shape[axis], v.name, v.shape[axis + 1 :]
        count = self.one_of(range(1, size + 1))
        part = (*v.shape[:axis], count, *rest)
        less = v.shape[:axis] + rest
        texts: dict[str, tuple[Shape, float]] = {
            f"cumsum({n}, {axis})": (v.shape, v.bound * size),
            f"cumprod({n}, {axis})": (v.shape, max(v.bound, 1.0) ** size),
            f"logsumexp({n}, {axis})": (less, v.bound + 3),
            f"flip({n}, {axis})": (v.shape, v.bound),
            f"{n}[{':, ' * axis}::{count}]": ((*v.shape[:axis], -(-size // count), *rest), v.bound),
            f"{n}[{':, ' * axis}{[*range(count)][::-1]}]": (part, v.bound),
            f"{n}[{':, ' * axis}[0, {count - 1}, 0]]": ((*v.shape[:axis], 3, *rest), v.bound),
            f"sort({n}, {axis}, {count % 2 == 0})": (v.shape, v.bound),
            f"topk({n}, {count}, {axis})[0]": (part, v.bound),
        }
        sharp: dict[str, tuple[Shape, float]] = {
            f"topk({n}, {count}, {axis})[1]": (part, size),
            f"argmax({n}, {axis})": (less, size),
            f"one_hot(argmax({n}, {axis}), {size})": ((*less, size), 1.0),
        }
        if self.sharp:
            row, table = self.one_of(((), (5,), (2, 3))), f"p{len(self.params)}"
            text = f"take({table}, argmax({n}, {axis}))"
            own = [other for other in self.values if other.shape[:1] == (size,) and len(other.shape) > 1]
            if own and self.one_of((False, False, True)):
                other = self.one_of(own)
                shape = (*less, *other.shape[1:])
                self.write(f"take({other.name}, argmax({n}, {axis}))", shape, other.bound, sharp=True)
                return
            if self.one_of((False, False, True)) and len(less) + len(row) <= 3:
                self.param((size, *row))
                self.write(text, (*less, *row), 1.0, sharp=True)
                return
        texts |= sharp if self.sharp else {}
        text = self.one_of(texts)
        self.write(text, *texts[text], sharp=text in sharp)

    def view(self) -> None:
        v = self.value((1, 2, 3))
        assert v is not None
        axis, rank = self.one_of(range(len(v.shape))), len(v.shape)
        size = v.shape[axis]
        at = self.one_of(range(size))
        stop = self.one_of(range(at + 1, size + 1))
        lead = ":, " * axis
        order = self.order(rank)
        rest = v.shape[axis + 1 :]
        texts = {
            f"{v.name}[{lead}{at}]": (*v.shape[:axis], *rest),
            f"{v.name}[{lead}{at}:{stop}]": (*v.shape[:axis], stop - at, *rest),
            f"rename({v.name}, '{' '.join(map(str, v.shape))}')": v.shape,
            f"transpose({v.name}, {order})": tuple(v.shape[a] for a in order),
            f"{v.name}.reshape(-1)": (prod(v.shape),),
            f"expand({v.name}, {axis})": (*v.shape[:axis], 1, size, *rest),
        }
        if size == 1:
            texts[f"squeeze({v.name}, {axis})"] = (*v.shape[:axis], *rest)
        if rank == 1 and size > 1:
            texts[f"concat([{v.name}[1:], {v.name}[:1]])"] = v.shape
        if prod(v.shape) % 2 == 0:
            texts[f"{v.name}.reshape(2, -1)"] = (2, prod(v.shape) // 2)
        text = self.one_of(texts)
        self.write(text, texts[text], v.bound)

    def join(self) -> None:
        a = self.value((1, 2))
        assert a is not None
        same = [v for v in self.values if v.shape == a.shape]
        b = self.one_of(same)
        axis = self.one_of(range(len(a.shape)))
        if self.one_of((True, False)):
            self.write(f"stack([{a.name}, {b.name}], axis=0)", (2, *a.shape), max(a.bound, b.bound))
            return
        vectors = [v for v in self.values if len(v.shape) == 1]
        b = self.one_of(vectors) if len(a.shape) == 1 else b
        shape = (*a.shape[:axis], a.shape[axis] + b.shape[axis], *a.shape[axis + 1 :])
        self.write(f"concat([{a.name}, {b.name}], axis={axis})", shape, max(a.bound, b.bound))

    # --- results -----------------------------------------------------------------------------------------------------

    def result(self, shape: Shape, last: bool) -> str:
        """The name of a value of that shape with magnitude up to 1, found or made of what nothing has read yet."""
        able = [v for v in self.values if v.shape == shape and v.bound <= 1.0]
        if able and not last and self.one_of((True, False, False)):
            return self.one_of(able).name  # also a leaf, and what other lines read
        read = {name for line in self.lines for name in line.reads}
        idle = [v for v in self.lines if v.name not in read]
        taken = idle if last else [v for v in idle if self.one_of((True, False))]
        fitting = [v for v in (taken or self.values) if v.shape == shape]
        if fitting and len(taken) <= 1 and fitting[-1].bound <= 1.0:
            return fitting[-1].name
        terms = [v.name if v.shape == shape or not v.shape else f"mean({v.name})" for v in taken]
        if not fitting:
            terms.append(self.param(shape))
        if not terms:
            taken, terms = [fitting[-1]], [fitting[-1].name]
        self.write(f"tanh({' + '.join(terms)})", shape, 1.0)
        return self.lines[-1].name


OPS = "unary binary choice product again gates depth heads by_head convolution contraction outer reduction ordered view"
OPS += " join random"
WEIGHTS = dict(zip(OPS.split(), (3, 4, 1, 4, 2, 1, 1, 1, 1, 1, 2, 1, 3, 2, 2, 1, 2), strict=True))


@st.composite
def equations(draw: Draw, most: int = 12, drawing: bool = False, looped: bool = False) -> Equations:
    """A cell with one to three states (vectors, a matrix, a scalar), one or two inputs, perhaps a constant, and up to
    `most` lines. drawing: it may draw random numbers. looped: its output is as wide as its only input."""
    writer = Writer(draw, draw(st.booleans()), drawing and draw(st.sampled_from((True, False, False))))
    writer.leaf(writer.inputs, "x", (draw(st.sampled_from(SIZES)),))
    width = writer.inputs["x"][0] if looped else draw(st.sampled_from(SIZES))
    writer.leaf(writer.states, "h", (width,))
    for name, shape in (("s", ()), ("c", (width,)), ("d", (3,)), ("S", (2, 5)), ("M", (width, 4)), ("C", (2, 3, 2))):
        if draw(st.sampled_from((False, False, True))):
            writer.leaf(writer.states, name, shape)
    if not looped and draw(st.sampled_from((False, False, True))):
        writer.leaf(writer.inputs, "u", draw(st.sampled_from(((), (3,), (2, 3)))))
    if not looped and draw(st.sampled_from((False, False, False, True))):
        writer.leaf(writer.constants, "k", draw(st.sampled_from(((3, width), (width,), ()))))
    names = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
    for _ in range(draw(st.integers(1, most))):
        getattr(writer, draw(st.sampled_from(names)))()
    results = [writer.result(shape, last) for shape, last in lasts(writer.states.values(), not draw(st.booleans()))]
    if draw(st.booleans()):  # states of one shape in each other's place
        results = [swapped(writer, name, result) for name, result in zip(writer.states, results, strict=True)]
    output = (
        "h" if looped else draw(st.sampled_from([*(n for n, shape in writer.states.items() if len(shape) == 1), "y"]))
    )
    if output == "y":
        vectors = [v for v in writer.values if len(v.shape) == 1]
        results.append(writer.one_of(vectors[::-1]).name)
    order = tuple(draw(st.permutations([*writer.inputs, *writer.states, *writer.constants])))
    if len(writer.inputs) > 1 and order.index("u") < order.index("x"):
        order = tuple({"u": "x", "x": "u"}.get(name, name) for name in order)  # the layer's input comes first of them
    begin: tuple[Any, ...] = (0.5, -1.0) if looped else (0.5, -1.0, "learned")
    initial = {n: draw(st.sampled_from(begin)) for n in writer.states if draw(st.integers(0, 3)) == 0}
    for name, value in initial.items():
        if value == "learned":
            initial[name] = writer.param(writer.states[name])
    return pruned(writer, tuple(results), output, order, initial)


def lasts(shapes: Iterable[Shape], gather: bool) -> list[tuple[Shape, bool]]:
    """The last of the results gathers what nothing has read."""
    found = list(shapes)
    return [(shape, gather and i == len(found) - 1) for i, shape in enumerate(found)]


def swapped(writer: Writer, name: str, result: str) -> str:
    others = [n for n, shape in writer.states.items() if shape == writer.states[name] and n != name]
    return writer.one_of([result, *others])


def pruned(
    writer: Writer, results: tuple[str, ...], output: str, order: tuple[str, ...], initial: dict[str, Any]
) -> Equations:
    """Without lines and parameters that no result needs."""
    needed, lines = set(results), []
    for line in reversed(writer.lines):
        if line.name in needed:
            lines.append(line)
            needed.update(line.reads)
    initial = {n: value for n, value in initial.items() if not isinstance(value, str) or n in needed}  # or unread
    needed |= {value for value in initial.values() if isinstance(value, str)}
    params = {name: shape for name, shape in writer.params.items() if name in needed}
    kinds, made = (writer.inputs, writer.states, params), tuple(reversed(lines))
    return Equations(*kinds, made, results, output, order, initial, writer.constants)

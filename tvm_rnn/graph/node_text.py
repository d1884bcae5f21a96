"""One value of a graph in words: an op over the names of its arguments, or a short term that says where it is from.

In: nodes of a graph. Out: text for `compiler/stage_texts.py`, which names every value, and for `decisions.py`, whose
reasons name a value by what it is made of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from .graph import Node, topological
from .ops import GEMMS, TABLE

SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
COMPARISONS = {"less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=", "equal": "==", "not_equal": "!="}
DEEPEST = 2  # operations of a term that are written out; what lies below is "..."


def expression(node: Node, names: Mapping[Node, str]) -> str:
    """One op over the names of its arguments."""
    return _applied(node, [names[a] for a in node.args])


def _applied(node: Node, args: list[str]) -> str:
    attrs = node.attrs
    symbol = SYMBOLS.get(node.op) or COMPARISONS.get(node.op)
    if symbol:
        return f"{args[0]} {symbol} {args[1]}"
    if node.op == "index":
        return f"{args[0]}[{_at(node, str(attrs['at']))}]"
    if node.op == "slice":
        window = f"{attrs['start']}:{attrs['stop']}"
        return f"{args[0]}[{_at(node, window)}]"
    if node.op == "reshape":
        return f"reshape({args[0]}, {list(attrs['to'])})"
    if node.op == "einsum":
        return f"einsum({attrs['spec']!r}, {', '.join(args)})"
    extra = [f"{k}={v}" for k, v in attrs.items() if k not in ("rank",)]
    return f"{node.op}({', '.join([*args, *extra])})"


def _at(node: Node, text: str) -> str:
    rank = len(node.args[0].shape)
    place = rank + node.attrs["axis"]
    return ",".join([":"] * place + [text] + [":"] * (rank - place - 1))


def leaf_text(node: Node) -> str:
    """A leaf's name, or the number that a constant is."""
    scalar = node.scalar
    return node.name or (f"{scalar:g}" if scalar is not None else f"constant{list(node.shape)}")


def in_words(node: Node, depth: int = DEEPEST) -> str:
    """A value by what it is made of, such as "R @ h" or "sigmoid(W @ x + ...)": views are left out, and what lies
    deeper than `depth` operations."""
    if node.leaf:
        return leaf_text(node)
    if node.op in GEMMS:
        pairs = list(zip(node.args[::2], node.args[1::2], strict=True))
        if len(pairs) > 2:
            return f"{joined(_parameter(w) for w, _ in pairs)} @ {len(pairs)} operands"
        return " + ".join(f"{_parameter(w)} @ {_factor(x, depth - 1)}" for w, x in pairs)
    if TABLE[node.op].kind == "move" and len(node.args) == 1:
        return in_words(node.args[0], depth)
    if not depth:
        return "..."
    if node.random:
        return f"{node.op} {node.attrs['stream']}"
    if node.op == "einsum":
        return f"einsum({node.attrs['spec']!r}, {', '.join(in_words(a, depth - 1) for a in node.args)})"
    if node.op in SYMBOLS or node.op in COMPARISONS:
        own = _factor if node.op in ("mul", "div") else in_words
        return _applied(node, [own(a, depth - 1) for a in node.args])
    return f"{node.op}({', '.join(in_words(a, depth - 1) for a in node.args)})"


def _factor(node: Node, depth: int) -> str:
    text = in_words(node, max(depth, 0))
    return f"({text})" if " " in text and not text.endswith(")") else text


def _parameter(node: Node) -> str:
    """The parameters that a product's matrix is made of, each once."""
    names = dict.fromkeys(leaf_text(n) for n in topological([node]) if n.leaf)
    return next(iter(names)) if len(names) == 1 else f"[{' '.join(names)}]"


def states_of(nodes: Iterable[Node]) -> dict[Node, list[str]]:
    """For each node (arguments first) the names of the states that it depends on, in the order in which it reads
    them."""
    found: dict[Node, list[str]] = {}
    for node in nodes:
        own = [node.name] if node.op == "state" else [name for arg in node.args for name in found[arg]]
        found[node] = [*dict.fromkeys(own)]
    return found


def joined(texts: Iterable[str]) -> str:
    """Texts in a row, equal ones counted: "4 x R @ h, tanh(c)"."""
    counts = Counter(texts)
    return ", ".join(f"{n} x {text}" if n > 1 else text for text, n in counts.items())

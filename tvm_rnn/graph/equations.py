"""A cell's equations as MathML, which browsers set as mathematics without any library.

In: a graph as traced. Out: rows (name, MathML): values that are read several times have names of their own; everything
else is written where it is read. Gates have the names that a cell's function unpacks them to. States are those of step
t - 1, new states those of step t.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from tvm_rnn.graph.graph import Graph, Node
from tvm_rnn.graph.node_text import COMPARISONS, leaf_text
from tvm_rnn.graph.ops import GEMMS, TABLE

SIGNS = {"add": "+", "sub": "&minus;", "mul": "&#8857;"}
FUNCTIONS = {"sigmoid": "&sigma;", "abs": "abs", "log": "ln"}
RELATIONS = {"less_equal": "≤", "greater_equal": "≥", "equal": "=", "not_equal": "≠"}
# A line that unpacks: "i, f = W @ x". One that picks by itself, as in "i, f = z[1], z[0]", says no order.
UNPACKS = re.compile(r"\s*\(?(\w+(?:\s*,\s*\w+)+)\)?\s*=(?![^#]*\[\s*-?\d+\s*\])")
LOOSE, TIGHT = 1, 2  # how strongly an expression holds together: a sum, a product; more: one symbol


def equations(graph: Graph) -> list[tuple[str, str]]:
    """(name, MathML of "name = ...") in order."""
    users = graph.users()
    wanted = {r: s.name for s, r in zip(graph.states, graph.results, strict=True)}
    wanted.setdefault(graph.output, graph.output_name)
    names: dict[Node, str] = {}
    rows: list[tuple[str, str]] = []
    for node in graph.nodes():
        final = wanted.get(node)
        gates = _gates(node, users[node]) if final is None else {}
        shared = not node.leaf and len(users[node]) > 1 and not _is_view(node)
        if gates:
            name = ", ".join(gates.values())
            label = f"<mo>(</mo>{'<mo>,</mo>'.join(map(_symbol, gates.values()))}<mo>)</mo>"
        elif node.leaf or (final is None and not shared):
            continue
        elif final is not None:
            name, label = final, _state(final)
        else:
            name, label = f"z{len(rows) + 1}", f"<msub><mi>z</mi><mn>{len(rows) + 1}</mn></msub>"
        rows.append((name, f"{label}<mo>=</mo>{_written(node, names)[0]}"))
        names |= {node: label} if not node.leaf else {}
        names |= {gate: _symbol(own) for gate, own in gates.items()}
    for state, result in zip(graph.states, graph.results, strict=True):
        if result.leaf:
            rows.append((state.name, f"{_state(state.name)}<mo>=</mo>{_leaf(result)}"))
    return rows


def _gates(node: Node, users: Sequence[Node]) -> dict[Node, str]:
    """The names of a value's parts, in order, where one line of the cell unpacks it and nothing else reads it."""
    parts = [(own.attrs["at"], own) for own in users if own.op == "index"]
    if len(parts) < max(2, len(users)) or len({own.source for _, own in parts}) != 1:
        return {}
    file, _, line = parts[0][1].source.rpartition(":")
    found = UNPACKS.match(linecache.getline(file, int(line))) if line.isdigit() else None
    names = re.split(r"\s*,\s*", found[1]) if found else []
    whole = {node.shape[own.attrs["axis"]] for _, own in parts} == {len(names)}
    return {own: names[at] for at, own in sorted(parts, key=lambda part: part[0])} if whole else {}


def math(row: str) -> str:
    """One row as an element for a page."""
    if not any(
        tall in row for tall in ("<mfrac", "<mtable")
    ):  # a notebook may lack a font for mathematics: stretched ones are huge
        row = re.sub(r"<mo>(?=[()[\]]</mo>)", '<mo stretchy="false">', row)
    return f'<math xmlns="http://www.w3.org/1998/Math/MathML" display="block"><mrow>{row}</mrow></math>'


def drawn(title: str, graphs: Iterable[Graph]) -> str:
    """HTML for a notebook: a line that says what it is, and the equations of each graph."""
    parts = [f"<p><code>{escape(title)}</code></p>"]
    for graph in graphs:
        parts += [math(row) for _, row in equations(graph)]
    return "\n".join(parts)


def _state(name: str, before: bool = False) -> str:
    """A state, an input or the output, of this step or of the one before."""
    when = "<mi>t</mi><mo>&minus;</mo><mn>1</mn>" if before else "<mi>t</mi>"
    return f"<msub><mi>{escape(name)}</mi><mrow>{when}</mrow></msub>"


def _is_view(node: Node) -> bool:
    return TABLE[node.op].kind == "move" and node.op != "concat"


def _leaf(node: Node) -> str:
    text = leaf_text(node)
    if node.op == "const":
        return _number(text)
    if node.op in ("state", "input"):
        return _state(text, node.op == "state")
    return _symbol(text)


def _number(text: str) -> str:
    """A number; 1e-06 as a power of ten."""
    digits, _, power = text.partition("e")
    if not power.lstrip("+-").isdigit():
        return f"<mn>{escape(text)}</mn>"
    ten = f"<msup><mn>10</mn><mn>{int(power)}</mn></msup>".replace("<mn>-", "<mn>&minus;")
    return ten if digits == "1" else f"<mn>{digits}</mn><mo>&sdot;</mo>{ten}"


def _symbol(name: str) -> str:
    """A name; what is behind its first underscore stands below."""
    first, _, rest = name.partition("_")
    own = f"<mi>{escape(first)}</mi>"
    return f"<msub>{own}<mi>{escape(rest)}</mi></msub>" if rest else own


def _written(node: Node, names: Mapping[Node, str]) -> tuple[str, int]:
    """MathML of a value, and how strongly it holds together."""
    if node in names:
        return names[node], 9
    if node.leaf:
        return _leaf(node), 9
    args = [_written(arg, names) for arg in node.args]
    if node.op in SIGNS:
        own = TIGHT if node.op == "mul" else LOOSE
        right = own + (node.op == "sub")
        return f"{_held(args[0], own)}<mo>{SIGNS[node.op]}</mo>{_held(args[1], right)}", own
    if node.op == "div":
        return f"<mfrac><mrow>{args[0][0]}</mrow><mrow>{args[1][0]}</mrow></mfrac>", 9
    if node.op in ("einsum", *GEMMS):
        return _product(node, args)
    if node.op in COMPARISONS:
        sign = RELATIONS.get(node.op, escape(COMPARISONS[node.op]))
        return f"{args[0][0]}<mo>{sign}</mo>{args[1][0]}", LOOSE
    return _function(node, args)


def _function(node: Node, args: list[tuple[str, int]]) -> tuple[str, int]:
    """Functions, views and reductions."""
    if node.random:
        return f"<mi>{escape(node.op)}</mi>", 9
    first = args[0]
    if node.op == "neg":
        return f'<mo form="prefix">&minus;</mo>{_held(first, TIGHT)}', LOOSE
    if node.op == "exp":
        return f"<msup><mi>e</mi><mrow>{first[0]}</mrow></msup>", 9
    if node.op == "sqrt":
        return f"<msqrt><mrow>{first[0]}</mrow></msqrt>", 9
    if node.op == "index":
        return f"{_held(first, 9)}<mo>[</mo><mn>{node.attrs['at']}</mn><mo>]</mo>", 9
    if node.op == "slice":
        window = f"{node.attrs['start']}:{node.attrs['stop']}"
        return f"{_held(first, 9)}<mo>[</mo><mtext>{window}</mtext><mo>]</mo>", 9
    if node.op == "take":
        return f"{_held(first, 9)}<mo>[</mo>{args[1][0]}<mo>]</mo>", 9
    if node.op == "flip":
        return f"{_held(first, 9)}<mo>[</mo><mtext>::-1</mtext><mo>]</mo>", 9
    if node.op in ("reshape", "broadcast", "surrogate", "stop_gradient"):
        return first
    if node.op == "transpose":
        return f"<msup><mrow>{_held(first, 9)}</mrow><mi>&#8868;</mi></msup>", 9
    if node.op == "sum":
        return f"<mo>∑</mo>{_held(first, TIGHT)}", TIGHT
    if node.op == "where":
        rows = ((args[1][0], "if", args[0][0]), (args[2][0], "else", ""))
        cells = "".join(
            f"<mtr><mtd>{value}</mtd><mtd><mtext>{word} </mtext>{test}</mtd></mtr>" for value, word, test in rows
        )
        return f"<mo>{{</mo><mtable>{cells}</mtable>", LOOSE
    name = FUNCTIONS.get(node.op) or escape(node.op)
    inside = "<mo>,</mo>".join(text for text, _ in args)
    return f"<mi>{name}</mi><mo>&ApplyFunction;</mo><mo>(</mo>{inside}<mo>)</mo>", 9


def _product(node: Node, args: list[tuple[str, int]]) -> tuple[str, int]:
    """A matrix by a vector, a vector by a vector; any other contraction with its indices below."""
    if node.op in GEMMS:
        pairs = zip(args[::2], args[1::2], strict=True)
        return "<mo>+</mo>".join(f"{_held(w, 9)}<mo>&InvisibleTimes;</mo>{_held(x, 9)}" for w, x in pairs), TIGHT
    inputs, out = node.attrs["spec"].split("->")
    left, right = inputs.split(",")
    shared = [letter for letter in left if letter in right and letter in out]  # of heads: each has its own product
    first, second = ("".join(letter for letter in own if letter not in shared) for own in (left, right))
    for matrix, vector, pair in ((first, second, args), (second, first, args[::-1])):
        turned = len(matrix) <= 2 and matrix.startswith(vector)
        if len(vector) == 1 and vector not in out and (turned or matrix.endswith(vector)):
            own, other = (_held(value, 9) for value in pair)
            own = f"<msup><mrow>{own}</mrow><mi>&#8868;</mi></msup>" if turned else own
            return f"{own}<mo>&InvisibleTimes;</mo>{other}", TIGHT
    if len(first) == len(second) == 1 and out.endswith(first + second):
        own, other = (_held(value, 9) for value in args)
        return f"{own}<mo>&InvisibleTimes;</mo><msup><mrow>{other}</mrow><mi>&#8868;</mi></msup>", TIGHT
    pairs = zip(args, (left, right), strict=True)
    parts = [f"<msub><mrow>{_held(own, 9)}</mrow><mi>{letters}</mi></msub>" for own, letters in pairs]
    return "<mo>&InvisibleTimes;</mo>".join(parts), TIGHT


def _held(written: tuple[str, int], least: int) -> str:
    """In parentheses where it holds together less than it must."""
    text, own = written
    return text if own >= least else f"<mo>(</mo>{text}<mo>)</mo>"

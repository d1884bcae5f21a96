"""A graph as a picture: values as boxes in layers, arrows from what is read to who reads it.

In: a graph after any stage, and names for its values. Out: the text of an SVG element, coloured by region through the
page's style sheet. Layers and crossings are grandalf's (Sugiyama's method).

Source: Sugiyama, Tagawa & Toda 1981, "Methods for visual understanding of hierarchical system structures".
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib import import_module

from tvm_rnn.errors import ConfigError, not_installed
from tvm_rnn.graph.graph import Graph, Node, depends
from tvm_rnn.graph.graph_text import value_names
from tvm_rnn.graph.node_text import expression
from tvm_rnn.graph.ops import TABLE

LETTER, HEIGHT, PADDING = 7.0, 34.0, 12.0  # pixels: of a letter, of a box, beside the text
GAP_X, GAP_Y, MARGIN = 18.0, 34.0, 12.0
MOST = 400  # values: beyond, a picture says nothing any more
LEAST = 0.7  # of its size: of 11 pixels, letters of 8
LONGEST = 34  # letters of a box's second line


class _Box:
    def __init__(self, lines: tuple[str, str]) -> None:
        self.lines = lines
        self.w = max(len(line) for line in lines) * LETTER + 2 * PADDING
        self.h = HEIGHT
        self.xy = (0.0, 0.0)


def check_installed() -> None:
    """Whether the packages that draw a page are there: asked before anything is compiled or measured for it. Raises
    ConfigError."""
    for name, package in (("grandalf", "grandalf"), ("vl_convert", "vl-convert-python")):
        try:
            import_module(name)
        except ImportError:
            raise ConfigError(not_installed(package)) from None


def draw(graph: Graph, title: str) -> str:
    """The picture. title: what it shows, for those who do not see it. Raises ConfigError without grandalf."""
    try:
        from grandalf import graphs, layouts
    except ImportError:
        raise ConfigError(not_installed("grandalf")) from None
    roots = {*graph.results, graph.output}
    nodes = [n for n in graph.nodes() if n.op != "const" and (n in roots or not _is_view(n))]
    if len(nodes) > MOST:
        return f"<p>{len(nodes)} values: too many to draw; the text below has them.</p>"
    names, region = value_names(graph), _regions(graph)
    for node in graph.nodes():  # views are written where they are read
        if _is_view(node) and node not in roots:
            names[node] = expression(node, names)
    vertices = {node: graphs.Vertex(node) for node in nodes}
    for node, vertex in vertices.items():
        vertex.view = _Box(_lines(node, names))
    # grandalf keeps edges in a set: by number, not by address, their order and so the picture are the same every time.
    edge_type = type("_NumberedEdge", (graphs.Edge,), {"__hash__": lambda edge: edge.data})
    pairs = [(vertices[a], vertices[n]) for n in nodes for a in _read(n, vertices)]
    edges = [edge_type(a, n, data=number) for number, (a, n) in enumerate(pairs)]
    # Several parts may not hang together: each is laid out on its own, from left to right.
    left, boxes = MARGIN, dict[Node, _Box]()
    for part in graphs.Graph([*vertices.values()], edges).C:
        layout = layouts.SugiyamaLayout(part)
        layout.xspace, layout.yspace = GAP_X, GAP_Y
        layout.init_all(roots=[v for v in part.sV if not v.e_in()])
        layout.draw(3)
        own = {vertex.data: vertex.view for vertex in part.sV}
        least = min(box.xy[0] - box.w / 2 for box in own.values())
        top = min(box.xy[1] for box in own.values())
        for box in own.values():
            box.xy = (box.xy[0] - least + left, box.xy[1] - top + MARGIN + HEIGHT / 2)
        left = max(box.xy[0] + box.w / 2 for box in own.values()) + 2 * GAP_X
        boxes |= own
    return _svg(graph, boxes, region, title)


def _lines(node: Node, names: Mapping[Node, str]) -> tuple[str, str]:
    shape = f"[{','.join(map(str, node.shape))}]"
    if node.leaf:
        return f"{names[node]}", f"{node.op} {shape}"
    text = expression(node, names)
    return f"{names[node]} {shape}", text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _is_view(node: Node) -> bool:
    return not node.leaf and TABLE[node.op].kind == "move" and len(node.args) == 1


def _read(node: Node, drawn: Mapping[Node, object]) -> list[Node]:
    """The values with boxes that a value reads, through views."""
    found: dict[Node, None] = {}
    for arg in node.args:
        if arg in drawn:
            found[arg] = None
        else:
            found.update(dict.fromkeys(_read(arg, drawn)))
    return list(found)


def _regions(graph: Graph) -> dict[Node, str]:
    """What each value is coloured by."""
    nodes = graph.nodes()
    leaves = depends(nodes)
    found = {}
    for node in nodes:
        if node.leaf:
            found[node] = "state" if node.op == "state" else "leaf"
        elif "sum_rows" in leaves[node]:
            found[node] = "after"
        else:
            found[node] = graph.region_of(node) if leaves[node] else "weights"
    return found


def _svg(graph: Graph, boxes: Mapping[Node, _Box], region: Mapping[Node, str], title: str) -> str:
    width = max(box.xy[0] + box.w / 2 for box in boxes.values()) + MARGIN
    height = max(box.xy[1] for box in boxes.values()) + HEIGHT / 2 + MARGIN
    home = {n: i for i, group in enumerate(graph.groups) for n in group.nodes}
    kept = {n for group in graph.groups for n in group.stored}
    parts = []
    for node, box in boxes.items():
        for arg in _read(node, boxes):
            parts.append(_arrow(boxes[arg], box, home.get(node, -1) == home.get(arg, -2)))
    roots = {*graph.results, graph.output}
    for node, box in boxes.items():
        words = f"node {region[node]}{' root' * (node in roots)}{' kept' * (node in kept)}"
        x, y = box.xy[0] - box.w / 2, box.xy[1] - HEIGHT / 2
        number = ""
        if node in home:
            number = f'<text class="group" x="{x + box.w - 4:.0f}" y="{y - 3:.0f}">{home[node] + 1}</text>'
        first, second = (escape(line) for line in box.lines)
        text = f'<text x="{box.xy[0]:.0f}" y="{box.xy[1] - 3:.0f}">{first}</text>'
        text += f'<text class="op" x="{box.xy[0]:.0f}" y="{box.xy[1] + 11:.0f}">{second}</text>'
        shape = f'<rect x="{x:.0f}" y="{y:.0f}" width="{box.w:.0f}" height="{HEIGHT:.0f}" rx="5"/>'
        parts.append(f'<g class="{words}">{shape}{text}{number}</g>')
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    # It fits the page as long as its letters can be read; what is wider still is scrolled.
    size += f' style="width: 100%; max-width: {width:.0f}px; min-width: {LEAST * width:.0f}px"'
    label = f"<title>{escape(title)}</title>"
    return f'<svg class="graph" role="img" {size} xmlns="http://www.w3.org/2000/svg">{label}{"".join(parts)}</svg>'


def _arrow(start: _Box, end: _Box, inside: bool) -> str:
    """A curve from the bottom of one box to the top of another; inside: within one group."""
    (x0, y0), (x1, y1) = start.xy, end.xy
    y0, y1 = y0 + HEIGHT / 2, y1 - HEIGHT / 2
    bend = max(12.0, (y1 - y0) / 2)
    kind = "edge inside" if inside else "edge"
    curve = f"M{x0:.0f} {y0:.0f}C{x0:.0f} {y0 + bend:.0f} {x1:.0f} {y1 - bend:.0f} {x1:.0f} {y1:.0f}"
    return f'<path class="{kind}" d="{curve}"/>'

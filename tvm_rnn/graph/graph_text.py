"""A graph as text, in its regions or groups.

In: a graph at any stage. Out: lines for `show`, `--dump`, the golden tests and the digest of equations. Names in the
text are stable: they depend on the equations alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .graph import Graph, Group, Layers, Node, depends, is_move
from .node_text import expression, leaf_text


def layers_text(layers: Layers) -> str:
    """The distinct graphs of a network, each with the layers that share it."""
    parts = []
    for number, graph in enumerate(layers.graphs):
        own = [i for i, g in enumerate(layers.of_layer) if g == number]
        where = "" if len(layers.of_layer) == 1 else f"  layers {','.join(map(str, own))}"
        parts.append("\n".join(_graph(graph, where)))
    return "\n\n".join(parts)


def graph_text(graph: Graph) -> str:
    """One graph as text."""
    return "\n".join(_graph(graph, ""))


def _graph(graph: Graph, where: str) -> Iterator[str]:
    sizes = " ".join(f"{k}={v}" for k, v in graph.sizes.items())
    yield f"graph {graph.cell} {graph.kind}  T=* B=* {sizes} {graph.dtype}{where}"
    if graph.tiling:
        rows = "all" if graph.tiling.rows_per_tile is None else graph.tiling.rows_per_tile
        yield f"walk    {graph.tiling.order}, {rows} rows (steps x batch) per tile"
    names = value_names(graph)
    if graph.groups:
        yield from _groups(graph, names)
    else:
        yield from _regions(graph, names)
    states = ", ".join(f"{s.name} = {names[r]}" for s, r in zip(graph.states, graph.results, strict=True))
    yield f"states  {states}"
    yield f"output  {graph.output_name} = {names[graph.output]}"
    if graph.emitted:
        yield f"emits   {', '.join(names[n] for n in graph.emitted)}"
    if graph.weight_gradients:
        pairs = zip(graph.params, graph.weight_gradients, strict=True)
        yield f"grads   {', '.join(f'd_{p.name} = {names[n]}' for p, n in pairs)}"
    if graph.backward is not None:
        yield ""
        yield from _graph(graph.backward, where)


def value_names(graph: Graph) -> dict[Node, str]:
    """Short names: leaves keep theirs, new states get a prime, the rest are numbered in order."""
    names: dict[Node, str] = {}
    taken = {s.name for s in graph.states}
    for state, result in zip(graph.states, graph.results, strict=True):
        if not result.leaf:
            names.setdefault(result, f"{state.name}'")
    if not graph.output.leaf:
        names.setdefault(graph.output, graph.output_name if graph.output_name not in taken else f"{graph.output_name}'")
    for param, gradient in zip(graph.params, graph.weight_gradients, strict=False):
        if not gradient.leaf:
            names.setdefault(gradient, f"d_{param.name}")
    count = 0
    for node in graph.nodes():
        if node.leaf:
            names[node] = leaf_text(node)
        elif node not in names:
            names[node] = f"v{count}"
            count += 1
    return names


def _shape(graph: Graph, node: Node, batched: bool, time: bool) -> str:
    axes = [*(["T"] if time else []), *(["B"] if batched else []), *map(str, node.shape)]
    return f"[{','.join(axes)}]"


def _regions(graph: Graph, names: dict[Node, str]) -> Iterator[str]:
    nodes = graph.nodes()
    leaves = depends(nodes)
    for region in ("weights", "before", "step", "after"):
        own = [n for n in nodes if not n.leaf and _region(graph, n, leaves) == region]
        label = region
        for node in own:
            rows = bool(leaves[node]) and "sum_rows" not in leaves[node]
            shape = _shape(graph, node, rows, rows and region != "step")
            yield f"{label:<8}{names[node]}{shape} = {expression(node, names)}"
            label = ""
        if not own:
            yield f"{label:<8}-"


def _region(graph: Graph, node: Node, leaves: dict[Node, frozenset[str]]) -> str:
    if "sum_rows" in leaves[node]:
        return "after"
    return graph.region_of(node) if leaves[node] else "weights"


def _groups(graph: Graph, names: dict[Node, str]) -> Iterator[str]:
    nodes = graph.nodes()
    leaves = depends(nodes)
    views = dict(names)
    for node in nodes:  # views and values of parameters are written where they are read
        if not node.leaf and (is_move(node) or not leaves[node]) and node not in graph.roots:
            views[node] = expression(node, views)
    for region in ("before", "step", "after"):
        own = [g for g in graph.groups if g.region == region]
        for number, group in enumerate(own):
            label = region if region != "step" else f"step {group.phase}"
            same = number and own[number - 1].phase == group.phase and own[number - 1].region == region
            yield from _group("" if same else label, graph, group, views)
        sums = [
            n for n in nodes if region == "after" and "sum_rows" in leaves[n] and (not is_move(n) or n in graph.roots)
        ]
        for node in sums:
            label = "" if own or node is not sums[0] else region
            yield f"{label:<8}{names[node]}{_shape(graph, node, False, False)} = {expression(node, views)}"
        if not own and not sums:
            yield f"{region:<8}-"


def _group(label: str, graph: Graph, group: Group, names: dict[Node, str]) -> Iterator[str]:
    stored = ", ".join(f"{names[n]}{_shape(graph, n, True, group.region != 'step')}" for n in group.stored)
    members = [n for n in group.nodes if n is not group.root]
    counts = Counter(n.op for n in members)
    summary = ", ".join(f"{c} {op}" for op, c in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    if group.root is not None:
        shape = _shape(graph, group.root, True, group.region != "step")
        yield f"{label:<8}{group.kind} {names[group.root]}{shape} = {_root(group.root, names)}"
        label = ""
    if members:
        yield f"{label:<8}  {stored or '-'} = pointwise  # {summary}"
        for node in members:
            mark = "*" if node in group.stored else " "
            text = names[node] if node.leaf else expression(node, names)
            yield f"{'':<8}  {mark} {names[node]} = {text}"
    elif stored:
        yield f"{'':<8}  {stored}"


def _root(root: Node, names: dict[Node, str]) -> str:
    if root.op != "gemm":
        return expression(root, names)
    pairs = zip(root.args[::2], root.args[1::2], strict=True)
    return "gemm(" + ", ".join(f"{_weight(w, names)} @ {names[x]}[{x.shape[0]}]" for w, x in pairs) + ")"


def _weight(node: Node, names: dict[Node, str]) -> str:
    """A packed parameter by its gates: stack(W_i, W_f)[2,H,I]."""
    shape = f"[{','.join(map(str, node.shape))}]"
    if node.op != "concat":
        return f"{names[node]}{shape}"
    parts = [names[p.args[0]] if p.op == "reshape" else names[p] for p in node.args]
    return f"stack({', '.join(parts)}){shape}"

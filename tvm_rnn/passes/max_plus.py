"""A state that is a maximum of sums: m' = max(m + a, b), where a and b are known for all steps.

In: a step's nodes, the state and its new value. Out: a row `scan_max`, or None. In (max, +) such an update is linear:
maxima are its sums, and sums its products.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm_rnn.graph.graph import Node, constant, downstream, make

Sum = tuple[bool, Node | None]  # whether the state is in it, and what is added


def max_plus(nodes: Sequence[Node], states: Sequence[Node], results: Sequence[Node]) -> Node | None:
    """The recurrence of one state, or None where its new value is no maximum of sums."""
    (state,), (result,) = states, results
    dependent = downstream(nodes, lambda n: n is state)
    found: dict[Node, list[Sum]] = {state: [(True, None)]}
    for node in nodes:
        if node not in dependent or node in found:
            continue
        sums = [found.get(a) or ([] if a in dependent else [(False, a)]) for a in node.args]
        if all(sums) and (made := _combined(node, sums, dependent)) is not None:
            found[node] = made
    if result not in found or any(n.shape != state.shape for n in (result,)):
        return None
    shifts = [added or constant(0.0, len(state.shape)) for is_state, added in found[result] if is_state]
    others = [added for is_state, added in found[result] if not is_state and added is not None]
    if not shifts or not others:
        return None
    return make("scan_max", state, _largest(shifts), _largest(others))


def _combined(node: Node, sums: Sequence[Sequence[Sum]], dependent: set[Node]) -> list[Sum] | None:
    if node.op == "maximum":
        return [*sums[0], *sums[1]]
    if node.op not in ("add", "sub"):
        return None
    left, right = node.args
    if right not in dependent:
        return [(is_state, _plus(node, added, right)) for is_state, added in sums[0]]
    if node.op == "add" and left not in dependent:
        return [(is_state, _plus(node, added, left)) for is_state, added in sums[1]]
    return None


def _plus(node: Node, added: Node | None, more: Node) -> Node:
    if added is None:
        return make("neg", more, source=node.source) if node.op == "sub" else more
    return make(node.op, added, more, source=node.source)


def _largest(values: Sequence[Node]) -> Node:
    value = values[0]
    for other in values[1:]:
        value = make("maximum", value, other)
    return value

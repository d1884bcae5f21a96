"""The form in which GPUs run a recurrence of a matrix: where it can be, all that a step writes lies along one key.

In: a graph with a `scan_matrix`. Out: the same, with the numbers that scale the key moved to the values, and apart from
the vectors that are multiplied with the state; or why no kernel of a GPU takes it.

Rewrite: S' = d S + (b k) v + (c k) (r . S)   -->   S' = d S + k (b v) + c k (r . S)
         S' = d S + k v + (c p) (r . S)       -->   S' = d S + k v + c p (r . S)      where heads decay as one
"""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING

from tvm_rnn.graph.graph import Graph, Node, make, rewrite, with_args
from tvm_rnn.target import HOPPER

from .matrix_recurrence import Solved

if TYPE_CHECKING:
    from tvm_rnn.network.rnn import RNN
    from tvm_rnn.target import Target

MOST_KEYS = 256  # that registers have room for
MOST_VALUES = 1024  # in training, likewise
# Of what is made again at once for all keys, of which the product with the gradient is one number: (keys, values,
# products written to the two), small and large.
AT_ONCE = ((128, 128, 3), (MOST_KEYS, 512, 2))


def chunk_form(graph: Graph, name: str) -> Graph:
    """The graph with the recurrence of the state of that name in the form that chunks take, if it has that.

    graph: normalised, so that equal vectors are one.
    """
    new = next(r for s, r in zip(graph.states, graph.results, strict=True) if s.name == name)
    state, decay, key, value, *product = new.args
    if len(product) != 2 or new.attrs["writes"] != 1:
        return graph
    erased, vector = product
    (bare, scales), (other, others) = (_scaled(node, new.attrs["key"]) for node in (key, erased))
    if _viewed(bare) is _viewed(other) and bare.shape == other.shape:
        key = other = bare
        for number in scales:
            value = make("mul", value, number)
    elif not others or decay.shape[new.attrs["key"]] > 1:
        return graph
    scale = [reduce(partial(make, "mul"), others)] if others else []
    own = make("scan_matrix", state, decay, key, value, other, vector, *scale, **new.attrs, scaled=bool(scale))
    mapped: dict[Node, Node] = {}
    for node in graph.nodes():
        mapped[node] = own if node is new else with_args(node, mapped)
    return rewrite(graph, mapped)


def refused(solved: Solved, net: RNN, trained: bool = False) -> str:
    """Why no kernel of a GPU takes a recurrence of a matrix, whatever its form is; "" where one does. trained: backward
    has it again."""
    (new,), (state,) = solved.new, solved.states
    if net.reverse or net.num_directions > 1:
        return "its kernels go forward in time alone"
    if net.cell.initial.get(state.name, 0.0) != 0.0:
        return "it does not begin at 0"
    if not new.attrs["writes"]:
        return "nothing is written to it"
    if net.dtype == "float64":
        return "its kernels compute in float32"
    if state.shape[new.attrs["key"]] > MOST_KEYS:
        return f"its kernels have up to {MOST_KEYS} keys"
    if trained and state.shape[-3 - new.attrs["key"]] > MOST_VALUES:
        return f"its kernels have up to {MOST_VALUES} values in training"
    return ""


def sums_of_both(solved: Solved, net: RNN, target: Target) -> int:
    """Of how many writes to both, at most, a GPU's kernels give the product of a matrix and its gradient as one number:
    in 16 bits, of heads that decay as one."""
    (new,), (state,) = solved.new, solved.states
    able = target.arch == HOPPER and net.dtype in ("bfloat16", "float16")
    if not able or any(size > 1 for size in new.args[1].shape[-2:]):
        return 0
    keys, values = state.shape[new.attrs["key"]], state.shape[-3 - new.attrs["key"]]
    return next((writes for k, v, writes in AT_ONCE if keys <= k and values <= v), 0)


def _scaled(node: Node, along: int) -> tuple[Node, list[Node]]:
    """A vector without the numbers that it is multiplied with."""
    if node.op == "mul":
        for number, rest in (node.args, node.args[::-1]):
            if number.shape[along] == 1 and rest.shape[along] != 1:
                vector, numbers = _scaled(rest, along)
                return vector, [number, *numbers]
    return node, []


def _viewed(node: Node) -> Node:
    """What a reshaped value is made of."""
    while node.op == "reshape":
        node = node.args[0]
    return node

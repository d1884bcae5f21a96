"""Regularisers in the recurrence: what `RNN(dropout=, recurrent_dropout=, zoneout=, weight_drop=)` makes of a cell.

In: the options and the traced graphs of a network's layers. Out: `Regularisers`, and for each layer two graphs: that of
inference, and that of training, which has masks. A mask is a node of the op table (row "mask"), a value of 0 and 1 that
depends on seed, layer, direction, name, step, row and unit alone (`runtime_random.py`). So the backward graph names the
same node and makes the mask again; the tape has none. Passes put masks into region `before`: a small loop (CPU) or
kernel (GPU) fills those of a tile of time in the workspace, then everything else reads them as it reads hoisted values.

    dropout             training: x * mask / keep before layers 1 and on, a mask for each step, the same for both
                        directions; inference: nothing. As torch.nn has it.
    recurrent_dropout   training: state * mask / keep wherever the state is on its way into a product with a parameter,
                        one mask for a whole sequence (Gal & Ghahramani 2016); inference: nothing
    zoneout             training: where(mask, state before, state after), a mask for each step; inference: the
                        expectation p * before + (1 - p) * after (Krueger et al. 2016)
    weight_drop         training: parameter * mask / keep, one mask for each call, in the weights that a call is given
                        and not in the graph (Merity, Keskar & Socher 2017); inference: nothing
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tvm_rnn.errors import ConfigError, message, unknown
from tvm_rnn.graph.graph import Graph, Node, depends
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.language import trace
from tvm_rnn.language.trace import Value
from tvm_rnn.runtime.runtime_random import ONCE, SHARED

if TYPE_CHECKING:
    from .layer import Layer

Probability = float | Mapping[str, float] | None
OPTIONS = ("dropout", "recurrent_dropout", "zoneout", "weight_drop")


@dataclass(frozen=True)
class Regularisers:
    """Probabilities, from 0 to below 1, of what is dropped (zoned out: kept as it was). By name of a state; weight_drop
    by name of a parameter. Nothing that is 0 is here."""

    dropout: float = 0.0
    recurrent_dropout: Mapping[str, float] = field(default_factory=dict)
    zoneout: Mapping[str, float] = field(default_factory=dict)
    weight_drop: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.dropout or self.recurrent_dropout or self.zoneout or self.weight_drop)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.facts().items())

    def facts(self) -> dict[str, Any]:
        """What a manifest says of them: those that there are."""
        own = {name: getattr(self, name) for name in OPTIONS}
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in own.items() if value}

    @property
    def streams(self) -> list[str]:
        """The names of the masks of rows, in a fixed order: that of the key words that compiled code is given."""
        own = [SHARED] if self.dropout else []
        return [
            *own,
            *(f"recurrent_dropout.{n}" for n in self.recurrent_dropout),
            *(f"zoneout.{n}" for n in self.zoneout),
        ]

    def masks(self, layers: Sequence[Layer], directions: int) -> dict[str, Any]:
        """What a manifest says of them for the runtime: streams; weights: of each weight that is dropped its name, the
        name of its mask, its layer and direction, and the probability of being kept."""
        from .layer import weight_name

        weights = [
            [weight_name(p.name, layer.index, d), ONCE + p.name, layer.index, d, 1.0 - self.weight_drop[p.name]]
            for layer in layers
            for d in range(directions)
            for p in layer.graph.params
            if p.name in self.weight_drop
        ]
        return {"streams": self.streams, "weights": weights}

    def applied(self, layers: Sequence[Layer]) -> tuple[Layer, ...]:
        """The layers with their graphs of inference and of training. Layers that shared a graph go on to do so, but
        for the first, where others have dropout before them."""
        inference: dict[int, Graph] = {}
        training: dict[tuple[int, bool], Graph] = {}
        found = []
        for layer in layers:
            behind = bool(layer.index and self.dropout)
            key = id(layer.graph)
            if key not in inference:
                inference[key] = self._expected(layer.graph)
            if (key, behind) not in training:
                training[key, behind] = self._regularised(layer.graph, behind)
            found.append(replace(layer, graph=inference[key], training=training[key, behind]))
        return tuple(found)

    def _expected(self, graph: Graph) -> Graph:
        """Inference: zoneout's expectation; else the graph itself."""

        def expectation(state: Node, result: Node) -> Value:
            p = self.zoneout[state.name]
            return trace.apply("add", trace.apply("mul", p, Value(state)), trace.apply("mul", 1.0 - p, Value(result)))

        return self._zoned(graph, graph.results, expectation)

    def _regularised(self, graph: Graph, behind: bool) -> Graph:
        """Training. behind: another layer, with dropout between them."""
        if not (self.recurrent_dropout or self.zoneout or (behind and self.dropout)):
            return graph

        def choice(state: Node, result: Node) -> Value:
            mask = _mask(f"zoneout.{state.name}", self.zoneout[state.name], "step", state)
            return trace.apply("where", trace.apply("greater", mask, 0.5), Value(state), Value(result))

        plain = _Masked(self, behind).run(graph)
        results = [plain[n] for n in graph.results]
        emitted = replace(graph, results=tuple(results), output=plain[graph.output])
        return self._zoned(emitted, results, choice)

    def _zoned(self, graph: Graph, results: Sequence[Node], choose: Callable[[Node, Node], Value]) -> Graph:
        """The graph with `choose` of each state with zoneout and its new value in place of the latter."""
        new = list(results)
        for number, state in enumerate(graph.states):
            if state.name in self.zoneout:
                with _said("zoneout", self.zoneout[state.name]):
                    new[number] = choose(state, new[number]).node
        names = [s.name for s in graph.states]
        output = graph.output
        if graph.output_name in names:
            new_state = Value(new[names.index(graph.output_name)])
            output = (new_state.reshape(-1) if graph.output_shape else new_state).node
        return replace(graph, results=tuple(new), output=output) if self.zoneout else graph


class _said:
    """Inside, new nodes have the option as their origin: errors and explanations name it."""

    def __init__(self, option: str, value: float) -> None:
        self.text = f"RNN({option}={value:g})"

    def __enter__(self) -> None:
        self.token = trace.LINE.set(self.text)

    def __exit__(self, *error: object) -> None:
        trace.LINE.reset(self.token)


def _mask(stream: str, keep: float, every: str, like: Node) -> Value:
    return Value(trace.node("mask", stream=stream, keep=keep, every=every, to=like.shape))


def _dropped(option: str, stream: str, p: float, every: str, node: Node) -> Node:
    """node * mask / keep."""
    with _said(option, p):
        scaled = trace.apply("mul", _mask(stream, 1.0 - p, every, node), 1.0 / (1.0 - p))
        return trace.apply("mul", Value(node), scaled).node


class _Masked:
    """A graph again, with masks in what products read. into: values on their way into a product with a parameter."""

    def __init__(self, own: Regularisers, behind: bool) -> None:
        self.own, self.behind = own, behind

    def run(self, graph: Graph) -> dict[Node, Node]:
        leaves = depends(nodes := graph.nodes())
        plain: dict[Node, Node] = {}
        into: dict[Node, Node] = {}
        for node in nodes:
            if node.leaf:
                plain[node] = into[node] = node
                if node is graph.inputs[0] and self.behind and self.own.dropout:
                    plain[node] = into[node] = _dropped("dropout", SHARED, self.own.dropout, "step", node)
                if node.op == "state" and node.name in self.own.recurrent_dropout:
                    p, stream = self.own.recurrent_dropout[node.name], f"recurrent_dropout.{node.name}"
                    into[node] = _dropped("recurrent_dropout", stream, p, "sequence", node)
                continue
            product = _weight_at(node, leaves) is not None
            plain[node] = _again(node, into if product else plain)
            through = TABLE[node.op].kind != "contract" and any(into[a] is not plain[a] for a in node.args)
            into[node] = _again(node, into) if through else plain[node]
        return plain


def _again(node: Node, new: Mapping[Node, Node]) -> Node:
    args = tuple(new[a] for a in node.args)
    return node if all(a is b for a, b in zip(args, node.args, strict=True)) else replace(node, args=args)


def _weight_at(node: Node, leaves: Mapping[Node, frozenset[str]]) -> int | None:
    """Which operand of a product is made of parameters alone, where the other one is not."""
    if node.leaf or TABLE[node.op].kind != "contract":
        return None
    free = [not leaves[a] for a in node.args]
    return free.index(True) if True in free and False in free else None


def _recurrent(graph: Graph) -> tuple[list[str], list[str]]:
    """The states that reach a product with a parameter without another product between, and such parameters."""
    leaves = depends(nodes := graph.nodes())
    reach: dict[Node, dict[str, None]] = {}
    carried = _changing(graph)
    states: dict[str, None] = {}
    params: dict[str, None] = {}
    for node in nodes:
        reach[node] = {node.name: None} if node.op == "state" and node.name in carried else {}
        at = _weight_at(node, leaves)
        if at is not None and (own := reach[node.args[1 - at]]):
            states |= own
            params |= dict.fromkeys(_params(node.args[at]))
        if not node.leaf and TABLE[node.op].kind != "contract":
            for arg in node.args:
                reach[node] |= reach[arg]
    order = [s.name for s in graph.states]
    return sorted(states, key=order.index), [p.name for p in graph.params if p.name in params]


def _changing(graph: Graph) -> list[str]:
    """The states that a step changes: masks act on these, and not on what a caller gives for the whole sequence."""
    return [s.name for s, new in zip(graph.states, graph.results, strict=True) if new is not s]


def _params(node: Node) -> Iterable[str]:
    if node.op == "param":
        yield node.name
    for arg in node.args:
        yield from _params(arg)


def regularisers(
    graph: Graph,
    layers: int,
    dropout: object = 0.0,
    recurrent_dropout: object = None,
    zoneout: object = None,
    weight_drop: object = None,
) -> Regularisers:
    """The options of RNN, checked against a layer's traced graph. Raises ConfigError."""
    states, params = _changing(graph), [p.name for p in graph.params]
    multiplied, recurrent = _recurrent(graph)
    drop = _probability("dropout", dropout)
    if drop and layers == 1:
        got, do = "one layer", "leave dropout out, or use recurrent_dropout, zoneout or weight_drop"
        raise ConfigError(message("RNN: dropout acts between layers", got=got, expected="num_layers >= 2", do=do))
    return Regularisers(
        drop,
        _by_name("recurrent_dropout", "state", recurrent_dropout, states, multiplied),
        _by_name("zoneout", "state", zoneout, states, states),
        _by_name("weight_drop", "parameter", weight_drop, params, recurrent),
    )


def _by_name(option: str, kind: str, given: object, known: Sequence[str], affected: Sequence[str]) -> dict[str, float]:
    """A probability for each name that has one. A number is for all in `affected`."""
    if given is None:
        return {}
    own = given if isinstance(given, Mapping) else dict.fromkeys(affected, given)
    if not isinstance(given, Mapping) and _probability(option, given) and not affected:
        got, do = "a cell without such a product", "use zoneout, or dropout between layers"
        what = f"RNN: {option} acts where a parameter multiplies a state"
        raise ConfigError(message(what, got=got, do=do))
    for name in own:
        if name not in known:
            raise ConfigError(message(f"RNN: {option}: no such {kind}", **unknown(kind, str(name), known)))
        if option == "recurrent_dropout" and name not in affected:
            got, do = f"no parameter multiplies state {name}", f"use zoneout={{{name!r}: ...}}"
            raise ConfigError(
                message("RNN: recurrent_dropout acts where a parameter multiplies a state", got=got, do=do)
            )
    values = {name: _probability(f"{option} of {name}", own[name]) for name in known if name in own}
    return {name: value for name, value in values.items() if value}


def _probability(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < 1.0:
        raise ConfigError(message(f"RNN: {what}", got=repr(value), expected="a number from 0 to below 1"))
    return float(value)


__all__ = ["ONCE", "OPTIONS", "Probability", "Regularisers", "regularisers"]

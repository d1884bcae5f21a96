"""ONNX models: from_onnx.

In: an ONNX file (or bytes, or a model in memory) with RNN, LSTM, GRU, LinearAttention, Scan or Loop nodes. Out: an
`RNN`, or a `Model` where one network does not say it all; what is around the networks in `program`. The file is data:
nothing in it is run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvm_rnn.network.model import Model
from tvm_rnn.network.origin import Origin
from tvm_rnn.network.rnn import RNN
from tvm_rnn.surroundings.nodes import import_onnx

from ..errors import ConfigError, message
from .fields import Unreadable, Wrong
from .folding import Recurrent
from .onnx_branches import FIX, inferred, undecided, without_branches
from .onnx_file import Source, read_model
from .onnx_functions import without_functions
from .onnx_given import Shapes, Values, with_given
from .onnx_linear_attention import read_linear_attention
from .onnx_loop import read_loop
from .onnx_nodes import ATTENTION, BODIES, RECURRENT, GraphSteps, add_node, bodies, label
from .onnx_quantised_lstm import is_quantised_lstm, read_quantised_lstm
from .onnx_recurrent import read_recurrent
from .onnx_scan import read_scan
from .onnx_unrolled import with_scans
from .onnx_versions import OLDEST, with_known_operators
from .stacks import Stacks, build_networks

if TYPE_CHECKING:
    from onnx import NodeProto


def from_onnx(source: object, *, given: Values | None = None, shapes: Shapes | None = None) -> RNN | Model:
    """The recurrent network of an ONNX model, with its weights and with everything around it.

    RNN, LSTM and GRU nodes with every attribute, of operator set 7 on, stacks of which become the layers of one
    network; LinearAttention nodes with every update rule (operator set 27); Scan nodes, and Loop nodes that run over
    time, whose bodies become cells; other operators (`onnx_nodes.py` names them) before, between and after. Weights may
    be initializers, external data in the model's own folder, constants, or inputs of the model.

    Args:
        source: the path of an .onnx file, its bytes, or an onnx.ModelProto.
        given: values of inputs that are constants from now on, by name: {"sr": 16000}. Of an `If` whose condition is
            known then, the branch that it takes is put in its place; of another both run, and one's results are taken.
        shapes: sizes of inputs, by name, where the file does not say them: {"input": ["B", 576]}; names and None are
            any size.

    Returns:
        An RNN (time-major, as always; `.program` is the whole model), or a Model of several RNNs where layers differ in
        cell or direction. `rnn.compile` puts the whole model into one file: `mod.run({"X": x, ...})` has its inputs and
        outputs by its own names; mod(x) is the recurrent network alone, from initial states of 0.

    Raises:
        ConfigError: the file is damaged or not supported; it says everything in it that is not.
    """
    found = with_given(with_known_operators(read_model(source)), given or {}, shapes or {})
    found = with_scans(without_branches(without_functions(found)))
    steps = GraphSteps(found)
    problems = [*_version(found), *_order(steps), *steps.problems]
    layers: list[Recurrent] = []
    if not problems:
        problems = _read_nodes(steps, layers)
    if problems:
        raise _refused(steps, problems)
    stacks = Stacks(steps, layers)
    stacks.merge()
    if not stacks.steps:
        got = ", ".join(sorted({n.op_type for n in steps.graph.node})) or "no node"
        expected = (
            f"a node of {', '.join((*RECURRENT, *ATTENTION, *BODIES))} that an output needs, or others that compile"
        )
        raise ConfigError(message("from_onnx: nothing to compile", where=found.path, got=got, expected=expected))
    return build_networks(steps, stacks, Origin("onnx", "", found.path, found.sha256))


def _refused(steps: GraphSteps, problems: Sequence[str]) -> ConfigError:
    text, path = "\n            ".join(dict.fromkeys(problems)), steps.source.path
    return ConfigError(
        message("from_onnx: this model cannot be used", where=path, got=text, do=_advice(steps, problems))
    )


def _advice(steps: GraphSteps, problems: Sequence[str]) -> str:
    """What to do about a model that cannot be used whole: which part of this one can be cut out, a recurrent node or
    what comes before the nodes that are not supported."""
    refused = [node for node in steps.graph.node if any(text.startswith(f"{label(node)}:") for text in problems)]
    nodes = [node for node in steps.graph.node if node.op_type in (*RECURRENT, *ATTENTION, *BODIES)]
    found = next((own for own in nodes if own not in refused and not _lost(steps, own)), None)
    given = [] if found is None else list(found.input[:1] if found.op_type in RECURRENT else found.input)
    ends = [name for name in given if name and not steps.is_constant(name)], [] if found is None else [*found.output]
    if not all(ends):
        inputs, read = [own.name for own in steps.inputs], [name for node in refused for name in _read_by(node)]
        outside = {name for name in read if name and not steps.is_constant(name)} - {*inputs} - _behind(steps, refused)
        ends = inputs, [name for name in dict.fromkeys(read) if name in outside & {*_made(steps)}]
    part = ", ".join(str([name for name in own if name]) for own in ends) if all(ends) else "[inputs], [outputs]"
    cut = f"cut out what can be: onnx.utils.extract_model(path, 'part.onnx', {part})"
    first = "give what the file leaves open, as it is said here; or " * any(FIX in text for text in problems)
    return f"{first}{cut}; or leave these parts out of what is exported, or write them as a cell"


def _lost(steps: GraphSteps, node: NodeProto) -> set[str]:
    """What onnx's function leaves out of a part: values of the model that a node's body alone reads."""
    return {name for name in _read_by(node) if steps.known(name)} - {*node.input}


def _behind(steps: GraphSteps, refused: Sequence[NodeProto]) -> set[str]:
    """The values that need one of these nodes."""
    found = set[str]()
    for node in steps.graph.node:
        if node in refused or not found.isdisjoint(_read_by(node)):
            found.update(node.output)
    return found


def _made(steps: GraphSteps) -> list[str]:
    return [name for node in steps.graph.node for name in node.output if name]


def _version(source: Source) -> list[str]:
    newest = import_onnx().defs.onnx_opset_version()
    if OLDEST <= source.opset <= newest:
        return []
    return [f"operator set {source.opset}; {OLDEST} to {newest} are supported (by the onnx package that is installed)"]


def _order(steps: GraphSteps) -> list[str]:
    """Names that are made twice, or read before or without being made: what a graph must not have."""
    graph = steps.graph
    names = [*(t.name for t in graph.initializer), *(d.name for d in steps.inputs)]
    problems = [f"value {name!r} is there twice" for name, count in Counter(names).items() if count > 1]
    if graph.sparse_initializer:
        problems.append("sparse initializers are not supported")
    known = {"", *names}
    every = {output for node in graph.node for output in node.output}
    for node in graph.node:
        for name in node.input:
            if name not in known:
                late = "is read before it is made: the graph has a cycle, or is not in order"
                problems.append(f"{label(node)}: value {name!r} {late if name in every else 'is missing'}")
        for name in node.output:
            if name and name in known:
                problems.append(f"{label(node)}: value {name!r} is made twice")
            known.add(name)
    problems += [f"output {d.name!r} is missing" for d in steps.outputs if d.name not in known]
    return problems


def _read_nodes(steps: GraphSteps, layers: list[Recurrent]) -> Wrong:
    """Turn every node that an output needs into steps; what cannot be is returned."""
    problems = Wrong()
    refused: set[str] = set()  # values that are not made, so that what reads them can still be looked at
    for node in _needed(steps):
        try:
            if is_quantised_lstm(node):
                read_quantised_lstm(steps, node, layers)
            elif node.op_type not in (*RECURRENT, *ATTENTION, *BODIES) or node.domain not in ("", "ai.onnx"):
                add_node(steps, node)
            elif node.op_type in BODIES:
                if refused.isdisjoint(_read_by(node)):
                    (read_scan if node.op_type == "Scan" else read_loop)(steps, node, layers)
            elif node.op_type in ATTENTION:
                if refused.isdisjoint(node.input):
                    read_linear_attention(steps, node, layers)
            elif refused.isdisjoint(node.input[1:4]):  # of its weights nothing is known then
                read_recurrent(steps, node, layers)
        except Unreadable as reason:
            why = f"{undecided(inferred(steps.source.model).graph, node)}; " if node.op_type == "If" else ""
            problems.append(f"{label(node)}: {why}{reason}")
            refused.update(node.output)
            steps.made.update(node.output)
    for name in [*(name for step in steps.steps for name in step.inputs), *(d.name for d in steps.outputs)]:
        with problems.noting():
            steps.constant(name)
    return problems


def _needed(steps: GraphSteps) -> list[NodeProto]:
    makers = {name: i for i, node in enumerate(steps.graph.node) for name in node.output if name}
    found: set[int] = set()
    stack = [d.name for d in steps.outputs]
    while stack:
        at = makers.get(stack.pop())
        if at is not None and at not in found:
            found.add(at)
            stack += _read_by(steps.graph.node[at])
    return [steps.graph.node[i] for i in sorted(found)]


def _read_by(node: NodeProto) -> list[str]:
    """The values that a node reads, and all names that its body does: some are values of the model."""
    return [*node.input, *(name for body in bodies(node) for own in body.node for name in own.input)]

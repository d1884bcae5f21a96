"""ONNX's functions: operators that are defined by others, in the file or by the standard, as these others.

In: a model. Out: the same without calls of its own functions, and without operators that we lack and the standard has
as a function. What is made of them is counted before it is made.

Rewrite: CausalConvWithState(x, w)  -->  Conv(Pad(x), w)     (as the standard has it)
         my.Block(x)                -->  the nodes of Block  (as the file has it)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tvm_rnn.surroundings.nodes import import_onnx

from ..errors import ConfigError, message
from .onnx_file import Source
from .onnx_nodes import READ, bodies, nodes_below

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

Name = tuple[str, str]  # a domain and an operator
MOST_IN_EACH_OTHER = 8  # the standard's functions
BODIES = "tvm_rnn.bodies"  # the domain of functions that are made of the standard's


def without_functions(source: Source) -> Source:
    """The model on operators alone. Raises ConfigError for functions that call themselves."""
    if source.model.functions:
        _count(source)
        source = replace(
            source, model=_inlined(source.model, [(own.domain, own.name) for own in source.model.functions])
        )
    for _ in range(MOST_IN_EACH_OTHER):
        lacking = sorted({node.op_type for node in _every_node(source.model) if _is_function(node, source.opset)})
        if not lacking:
            break
        source = replace(source, model=_inlined(_whole(source), [("", own) for own in lacking]))
    return source


def _inlined(model: ModelProto, functions: Sequence[Name]) -> ModelProto:
    """Without these functions; the same model where one of them cannot be: what reads the node says what it lacks."""
    from onnx import inliner

    if functions:
        model = _typed(model)
    for one in functions:
        try:
            model = inliner.inline_selected_functions(model, [one], inline_schema_functions=True)
        except Exception:  # of types that are not known; of another class in each version
            continue
    return model


def _whole(source: Source) -> ModelProto:
    """The model with all that the inliner asks of calls of the standard's functions: attributes that are not given; and
    where an input is not given, a function of the file in place of the standard's."""
    model, schema_of = _typed(source.model), import_onnx().defs.get_schema
    for node in [own for own in _every_node(model) if _is_function(own, source.opset)]:
        given = {attribute.name for attribute in node.attribute}
        known = schema_of(node.op_type, source.opset, "").attributes.values()
        node.attribute.extend(own.default_value for own in known if own.default_value.name and own.name not in given)
    own = [node for node in model.graph.node if _is_function(node, source.opset) and "" in node.input]
    made = [_as_call(model, node, schema_of(node.op_type, source.opset, ""), i) for i, node in enumerate(own)]
    if any(made):
        from onnx import inliner

        model.opset_import.append(import_onnx().helper.make_opsetid(BODIES, 1))
        model = inliner.inline_local_functions(model)
    return model


def _as_call(model: ModelProto, node: NodeProto, schema: Any, number: int) -> bool:
    """Make a node a call of a function of the file, which is added. False where it has no function for these types."""
    onnx = import_onnx()
    values = (*model.graph.input, *model.graph.value_info)
    types = {value.name: value.type.SerializeToString() for value in values}
    if not schema.has_context_dependent_function or not all(name in types for name in node.input if name):
        return False
    given = [types[name] if name else b"" for name in node.input]
    try:
        text = schema.get_context_dependent_function(node.SerializeToString(), given)
    except Exception:  # of another class in each version
        return False
    body = onnx.FunctionProto.FromString(text)
    body.domain, body.name = node.domain, node.op_type = BODIES, f"{node.op_type}.{number}"
    model.functions.append(body)
    return True


def _typed(model: ModelProto) -> ModelProto:
    """The model with the types of its values, constants too: functions of the standard differ by type."""
    onnx = import_onnx()
    with contextlib.suppress(Exception):  # of a model that is too large; of another class in each version
        model = onnx.shape_inference.infer_shapes(model)
    known = {value.name for value in (*model.graph.input, *model.graph.value_info)}
    for own in model.graph.initializer:
        if own.name not in known:
            kind = onnx.helper.make_tensor_type_proto(own.data_type, own.dims)
            model.graph.value_info.append(onnx.helper.make_value_info(own.name, kind))
    return model


def _every_node(model: ModelProto) -> Iterator[NodeProto]:
    for node in model.graph.node:
        yield node
        yield from nodes_below(node)


def _is_function(node: NodeProto, version: int) -> bool:
    """Whether a node is of the standard, not read by us, and a function there."""
    if node.domain not in ("", "ai.onnx") or node.op_type in READ:
        return False
    try:
        schema = import_onnx().defs.get_schema(node.op_type, version, "")
    except Exception:  # SchemaError, which lies at another place in each version
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _count(source: Source) -> None:
    """Take what the model's functions come to from what reading it may make. Raises ConfigError."""
    functions = {(own.domain, own.name): own for own in source.model.functions}
    made: dict[Name, tuple[int, int]] = {}

    def of(nodes: Iterable[NodeProto], callers: tuple[Name, ...]) -> tuple[int, int]:
        """Nodes and bytes that these come to."""
        count = size = 0
        for node in nodes:
            parts = [of(body.node, callers) for body in bodies(node)]
            name = node.domain, node.op_type
            if name in callers:
                got = " calls ".join(f"{domain}.{own}" for domain, own in (*callers, name))
                raise ConfigError(message("from_onnx: a function calls itself", where=source.path, got=got))
            if name in functions:
                source.spending.take("functions in functions", depth=len(callers))
                made[name] = made.get(name) or of(functions[name].node, (*callers, name))
                parts.append(made[name])
            count += 1 + sum(part[0] for part in parts)
            size += node.ByteSize() + sum(part[1] for part in parts)
        return count, size

    count, size = of(source.model.graph.node, ())
    source.spending.take("its functions", nodes=count, bytes=size)

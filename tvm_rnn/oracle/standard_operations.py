"""Operators around networks that the table of operations has not, as the onnx package's own reference has them.

In: names of operators. Out: what computes each, as a row of the table does: from arrays and attributes, in their dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tvm_rnn.runtime.runtime_ops import OPERATIONS, Attributes, Inputs, Operation
from tvm_rnn.surroundings.nodes import import_onnx, opset_of


def operations_of(operators: Iterable[str]) -> Mapping[str, Operation]:
    """What computes each of these: a row of the table, or the operator of the standard."""
    return {**OPERATIONS, **{name: _standard(name) for name in operators if name not in OPERATIONS}}


def _standard(operator: str) -> Operation:
    onnx = import_onnx()
    from onnx.reference import ReferenceEvaluator

    version = opset_of([operator])
    outputs = [f"y{i}" for i in range(onnx.defs.get_schema(operator, version, "").max_output)]

    def compute(inputs: Inputs, attributes: Attributes) -> list[object]:
        names = ["" if value is None else f"x{i}" for i, value in enumerate(inputs)]
        node = onnx.helper.make_node(operator, names, outputs, **attributes)
        graph = onnx.helper.make_graph(
            [node],
            "one",
            [onnx.helper.make_tensor_value_info(name, 0, None) for name in names if name],
            [onnx.helper.make_tensor_value_info(name, 0, None) for name in outputs],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)])
        given = {name: value for name, value in zip(names, inputs, strict=True) if name}
        return [*ReferenceEvaluator(model).run(None, given)]

    return compute

"""Old operator sets: a model of one as the onnx package itself writes it in a later one, which is read.

In: a model. Out: the same in operator set OLDEST or later, and without operators that a later one replaced by others;
as it was where onnx has no way to write it so.
"""

from __future__ import annotations

from dataclasses import replace

from tvm_rnn.surroundings.nodes import import_onnx

from .onnx_file import Source

OLDEST = 7  # operator set: RNN, LSTM and GRU have had their present inputs since
REPLACED = {"Upsample": 11, "Scatter": 11}  # by Resize and ScatterElements, in the set that is read

# What Upsample means, which onnx leaves to Resize's defaults.
UPSAMPLE = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def with_known_operators(source: Source) -> Source:
    """The model in an operator set that is read. An onnx package that cannot convert it leaves it as it is."""
    operators = {node.op_type for node in source.model.graph.node}
    wanted = max([OLDEST, *(REPLACED.get(name, 0) for name in operators)])
    if source.opset >= wanted or source.model.functions or "Resize" in operators:
        return source
    onnx = import_onnx()
    from onnx import version_converter

    try:
        onnx.checker.check_model(source.model)
        model = version_converter.convert_version(source.model, wanted)
    except Exception:  # of classes that differ by version; what reads the model says that its operator set is too old
        return source
    for node in [own for own in model.graph.node if own.op_type == "Resize"]:
        rest = [own for own in node.attribute if own.name not in UPSAMPLE]
        del node.attribute[:]
        node.attribute.extend([*rest, *(onnx.helper.make_attribute(name, value) for name, value in UPSAMPLE.items())])
    return replace(source, model=model)

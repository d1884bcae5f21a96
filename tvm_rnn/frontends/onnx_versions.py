"""Old operator sets: a model of one as the onnx package itself writes it in the oldest one that is read.

In: a model. Out: the same in operator set OLDEST or later; as it was where onnx has no way to write it so.
"""

from __future__ import annotations

from dataclasses import replace

from tvm_rnn.surroundings.nodes import import_onnx

from .onnx_file import Source

OLDEST = 7  # operator set: RNN, LSTM and GRU have had their present inputs since


def with_known_operators(source: Source) -> Source:
    """The model in an operator set that is read. An onnx package that cannot convert it leaves it as it is."""
    if source.opset >= OLDEST or source.model.functions:
        return source
    onnx = import_onnx()
    from onnx import version_converter

    try:
        onnx.checker.check_model(source.model)
        return replace(source, model=version_converter.convert_version(source.model, OLDEST))
    except Exception:  # of classes that differ by version; what reads the model says that its operator set is too old
        return source

"""nudged: every float is the next one, in bodies of nodes too; whole numbers stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from tvm_rnn.bench.peers.nudged import nudged


def test_floats_are_one_rounding_larger_and_whole_numbers_stay(tmp_path: Path) -> None:
    helper, held = onnx.helper, {"w": np.float32([1, -2, np.inf]), "n": np.int64([3])}

    def constant(name: str, value: object) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.asarray(value), name))

    def body(value: float) -> onnx.GraphProto:
        return helper.make_graph(
            [constant("b", np.float32(value))], "b", [], [helper.make_tensor_value_info("b", 1, [])]
        )

    node = helper.make_node("If", ["c"], ["y"], then_branch=body(4), else_branch=body(8))
    stored = [onnx.numpy_helper.from_array(value, name) for name, value in held.items()]
    graph = helper.make_graph([constant("k", np.float64(0.5)), node], "g", [], [], stored)
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    found = onnx.load_from_string(nudged(tmp_path / "m.onnx")).graph
    w, n = (onnx.numpy_helper.to_array(tensor) for tensor in found.initializer)
    np.testing.assert_array_equal(w, np.float32([1 + 2**-23, -2 + 2**-23, np.inf]))
    assert n == [3] and onnx.numpy_helper.to_array(found.node[0].attribute[0].t) == 0.5 + 2**-53
    inner = [onnx.numpy_helper.to_array(own.g.node[0].attribute[0].t) for own in found.node[1].attribute]
    assert {float(value) for value in inner} == {4 + 2**-21, 8 + 2**-20}

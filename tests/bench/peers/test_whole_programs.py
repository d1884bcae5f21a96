"""whole_programs: C programs that call a whole model; what they print is read, and what fails has its reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.bench.run.test_onnx_files import written
from tvm_rnn.bench.peers.models import Unsupported
from tvm_rnn.bench.peers.whole_programs import WholeProgram, onnxruntime_program

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def test_onnx_runtimes_library_is_called_in_c(tmp_path: Path) -> None:
    program = onnxruntime_program(written(tmp_path / "m.onnx", "Tanh"), {"x": X}, ["y"], tmp_path)
    calls, found = program.run(5)
    np.testing.assert_allclose(found, np.tanh(X.astype("f8")).ravel(), atol=1e-6)
    assert 0 < calls.p50 <= calls.p99 <= calls.p999
    with pytest.raises(Unsupported, match=r"its program failed: .*none"):
        onnxruntime_program(tmp_path / "none.onnx", {"x": X}, ["y"], tmp_path).run(5)


def test_outputs_are_read_whatever_they_are_called(tmp_path: Path) -> None:
    """Names may be numbers, as exporters write them; a scalar has no shape, and an empty array no elements."""
    printed = "387 2x2\\n1 -2.5\\n3e-05 nan\\n12\\n7\\nnone 0x4\\np50 1.5 us, p99 2 us, p99.9 3.25 us (9 calls)"
    calls, found = WholeProgram("sh", ("sh", "-c", f'printf "{printed}\\n"'), ()).run(9)
    np.testing.assert_array_equal(found, [1, -2.5, 3e-05, np.nan, 7])
    assert calls == (1.5, 2.0, 3.25)
    with pytest.raises(Unsupported, match="its program failed: gone"):
        WholeProgram("sh", ("sh", "-c", "echo gone >&2; exit 1"), ()).run(1)

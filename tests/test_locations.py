import subprocess
import sys

import tvm_rnn
from tvm_rnn.locations import PACKAGE, PYTHONPATH


def test_a_process_elsewhere_imports_the_same_package(tmp_path) -> None:
    code = "import tvm_rnn; print(tvm_rnn.__file__)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == tvm_rnn.__file__ == str(PACKAGE / "__init__.py")

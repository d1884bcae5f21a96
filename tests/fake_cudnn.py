"""cuDNN that is not there: fake_cudnn.c, built and put in the place of the library that torch ships."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tvm_rnn.bench.peers import cudnn as api


@functools.cache
def path() -> str:
    """The shared object, under the name that cuDNN's has; skips the test where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    output = str(Path(tempfile.mkdtemp(prefix="fake_cudnn_"), "fake.so"))
    source = str(Path(__file__).parent / "fake_cudnn.c")
    named = f"-Wl,-soname,{api.LIBRARY}"
    subprocess.run([compiler, "-O1", "-Wall", "-shared", "-fPIC", named, source, "-lm", "-o", output], check=True)
    return output


def library() -> api.Cudnn:
    """The fake, as `load` gives it."""
    return api.Cudnn(ctypes.CDLL(path()))


def log(cudnn: api.Cudnn) -> str:
    """What the fake was asked for since the last time."""
    cudnn.library.fake_log.restype = ctypes.c_char_p
    text: str = cudnn.library.fake_log().decode()
    cudnn.library.fake_forget()
    return text


def alive(cudnn: api.Cudnn) -> int:
    """How many descriptors there are."""
    return int(cudnn.library.fake_alive())

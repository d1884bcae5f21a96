import importlib.metadata
import re

import tvm_rnn


def test_the_version_is_that_of_the_installed_package() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", tvm_rnn.__version__)
    assert importlib.metadata.version("tvm_rnn") == tvm_rnn.__version__

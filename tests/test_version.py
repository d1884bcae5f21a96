import importlib.metadata
import re
from pathlib import Path

import tvm_rnn

ROOT = Path(__file__).resolve().parent.parent


def test_the_version_is_that_of_the_installed_package() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", tvm_rnn.__version__)
    assert importlib.metadata.version("tvm_rnn") == tvm_rnn.__version__


def test_a_citation_names_it() -> None:
    assert f"\nversion: {tvm_rnn.__version__}\n" in (ROOT / ".github" / "CITATION.cff").read_text()

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


def test_the_newest_entry_of_the_changelog_is_this_version() -> None:
    """Or what is not released yet; entries have dates and go back in time."""
    entries = re.findall(r"^## \[(.+)\](?: - (\d{4}-\d\d-\d\d))?$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    released = [entry for entry in entries if entry[0] != "Unreleased"]
    assert entries[-len(released) :] == released and released[0][0] == tvm_rnn.__version__
    dates = [date for _, date in released]
    assert all(dates) and dates == sorted(dates, reverse=True)

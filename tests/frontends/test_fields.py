"""Fields of foreign records: each is what it must be, or says its name."""

from __future__ import annotations

import pytest

from tvm_rnn.frontends import fields
from tvm_rnn.frontends.fields import Unreadable

RECORD = {"n": 3, "x": 0.5, "s": "tanh", "list": [1, 2], "words": ["a", "b"], "truth": True, "inner": {"a": 1}}


def test_fields_have_their_types_and_defaults() -> None:
    assert fields.integer(RECORD, "n") == 3 and fields.integer(RECORD, "none", 7) == 7
    assert fields.number(RECORD, "x") == 0.5 and fields.number(RECORD, "n") == 3.0
    assert fields.text(RECORD, "s") == "tanh" and fields.text(RECORD, "none", "relu") == "relu"
    assert fields.integers(RECORD, "list") == [1, 2] and fields.floats(RECORD, "list") == [1.0, 2.0]
    assert fields.strings(RECORD, "words") == ["a", "b"] and fields.strings(RECORD, "none") == []
    assert fields.mapping(RECORD["inner"]) == {"a": 1} and fields.mapping(3) == {}
    assert fields.items([1]) == [1] and fields.items("ab") == []


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (fields.integer, "truth"),
        (fields.integer, "x"),
        (fields.integer, "none"),
        (fields.number, "s"),
        (fields.text, "n"),
        (fields.integers, "words"),
        (fields.integers, "none"),
        (fields.floats, "words"),
        (fields.strings, "list"),
    ],
)
def test_others_are_refused_by_name(read, name) -> None:
    with pytest.raises(Unreadable, match=f"^{name} is "):
        read(RECORD, name)

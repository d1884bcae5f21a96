"""Values as C has them; test_source.py lets a compiler read the text."""

from __future__ import annotations

from tvm_rnn.bundle.text import c_text, initialiser


def test_letters_that_are_not_plain() -> None:
    assert c_text("a b") == '"a b"' and c_text('"\n?') == '"\\042\\012\\077"' and c_text("é") == '"\\303\\251"'


def test_an_array_is_never_empty() -> None:
    assert initialiser([]) == "0" and initialiser([1, 2]) == "1, 2, 0"

"""Names that come from users and from files, made safe for where they are written: one function per destination.

In: a name of anything: a cell, an argument, a layer, a file. Out: text that means nothing but itself there. For HTML
there is `html.escape`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

MOST_LETTERS = 100  # of a cell's name
MOST_FILE_BYTES = 200  # file systems take 255, and whoever asks adds a suffix

# Words that are no names in C or C++.
C_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        alignas alignof and asm auto bitand bitor bool break case catch char class compl const constexpr
        continue default delete do double else enum explicit export extern false float for friend goto if
        inline int long mutable namespace new noexcept not nullptr operator or private protected public
        register reinterpret_cast restrict return short signed sizeof static struct switch template this
        throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor
        """,
    )
)


def is_name(text: object) -> bool:
    """Whether a cell, or what it gives back, may have this name: as a function of Python, and not endless."""
    return isinstance(text, str) and text.isidentifier() and len(text) <= MOST_LETTERS


def file_name(text: str) -> str:
    """A part of a path that no file system reads anything into; what is too long ends with a digest of it."""
    data = re.sub(r"[^\w.+-]|^\.", "_", text).encode()
    if len(data) > MOST_FILE_BYTES:
        data = data[:MOST_FILE_BYTES] + b"-" + hashlib.sha256(data).hexdigest()[:10].encode()
    return data.decode(errors="ignore") or "_"


def identifier(text: str) -> str:
    """A name in C, CUDA and Python, but for their own words."""
    word = re.sub(r"\W", "_", text, flags=re.ASCII)
    return word if word[:1].isalpha() else f"v{word}"


def identifiers(texts: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Names in C that also differ in capitals: what is taken, or a word of C, gets an underscore."""
    words, capitals, found = {*taken} | C_WORDS, set[str](), list[str]()
    for word in map(identifier, texts):
        while word in words or word.upper() in capitals:
            word += "_"
        capitals.add(word.upper())
        found.append(word)
    return found


def c_string(text: str) -> str:
    """A string of C, with whatever is not plain as octal bytes."""
    data = text.encode(errors="replace")
    letters = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in data)
    return '"' + "".join(letters) + '"'


def c_comment(text: str) -> str:
    """A line of a comment of C: it neither ends the comment nor begins another, and nothing in it splices lines."""
    plain = "".join(c if c.isprintable() and c != "\\" else "_" for c in text)
    return plain.replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")


def markdown(text: str) -> str:
    """Text inside of a line of Markdown, or of a cell of a table. An underscore within a word means nothing."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return re.sub(r"([\\`*{}\[\]<>#|~&]|(?<!\w)_|_(?!\w))", r"\\\1", plain)

"""How much working memory a host program needs, computed here: without compiling it, and without a GPU.

In: a `Program`, whose layout is lines of C++ that reserve its buffers. Out: a function of T and B, in bytes, which is
what the compiled module's own function `workspace` returns on a GPU with as many multiprocessors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tvm_rnn.errors import BuildError, message

from .host_program import ALIGNMENT, Program

LINE = re.compile(r"(?:const int64_t )?(\w+) = (.*);")
TOKEN = re.compile(r"\s*((?:std::)?\w+(?:<int64_t>)?|<=|>=|==|!=|&&|\|\||[-+*/%(){}<>?:,!&])")
CALL = re.compile(r"((?:std::)?\w+(?:<int64_t>)?)\s*\(")
# What Python writes for a word. Where precedences differ (& and comparisons), layouts have brackets.
WORDS = {"||": "or", "&&": "and", "!": "not", "/": "//"}
CALLS = {"min<int64_t>": "min", "max<int64_t>": "max", "int64_t": "int", "reserve": "reserve"}
CALLS |= {f"std::{name}": CALLS[name] for name in ("min<int64_t>", "max<int64_t>")}  # of {several}, too: a set here


def working_memory(program: Program, sms: int) -> Callable[[int, int], int]:
    """Bytes for T steps of B rows on a GPU of `sms` multiprocessors. Raises BuildError where the layout has something
    that is not known here."""
    lines = [
        "def bytes_of(T, B, sms):",
        "    most, at = 0, 0",
        "    def reserve(before, largest, count):",
        "        nonlocal most, at",
        "        place, at = at, at + -(-max(count, 0) // ALIGNMENT) * ALIGNMENT",
        "        most = max(most, at)",
        "        return place",
    ]
    for line in program.layout:
        found = LINE.fullmatch(line.strip())
        if found is None:
            raise _unknown(line)
        lines.append(f"    {found[1]} = {_python(found[2])}")
    space: dict[str, Any] = {"ALIGNMENT": ALIGNMENT}
    exec("\n".join([*lines, "    return max(most, ALIGNMENT)"]), space)
    made: Callable[[int, int, int], int] = space["bytes_of"]
    return lambda T, B: made(T, B * program.each, sms) if T > 0 and B > 0 else ALIGNMENT


def _unknown(text: str) -> BuildError:
    do = "report the network: its working memory is not known before it is compiled"
    return BuildError(message("a layout of memory cannot be computed here", got=text, do=do))


def _python(text: str) -> str:
    """An expression of C++ as one of Python."""
    if not re.fullmatch(rf"(?:{TOKEN.pattern})*\s*", text) or set(CALL.findall(text)) - CALLS.keys():
        raise _unknown(text)
    tokens = TOKEN.findall(text)[::-1]
    try:
        found = _choice(tokens)
        compile(found, text, "eval")
    except (IndexError, SyntaxError):
        raise _unknown(text) from None
    if tokens:
        raise _unknown(text)
    return found


def _choice(tokens: list[str]) -> str:
    """A condition with ? and :, or less, taken from the end of the list."""
    parts = list[str]()
    while tokens and tokens[-1] not in (")", "}", ":", ","):
        token = tokens.pop()
        if token == "?":
            yes, _, no = _choice(tokens), tokens.pop(), _choice(tokens)
            return f"({yes} if {' '.join(parts)} else {no})"
        parts.append({**WORDS, **CALLS}.get(token, token))
        if token in ("(", "{"):
            parts.append(_choice(tokens))
            while tokens[-1] == ",":
                parts += [tokens.pop(), _choice(tokens)]
            parts.append(tokens.pop())
    return " ".join(parts)

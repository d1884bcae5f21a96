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

TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*(?:<int64_t>)?)|(<=|>=|==|!=|&&|\|\||[-+*/%()<>?:,!&]))")
LINE = re.compile(r"(?:const int64_t )?(\w+) = (.*);")
# From the loosest to the tightest: what Python writes for each.
LEVELS = (
    {"||": "or"},
    {"&&": "and"},
    {"==": "==", "!=": "!="},
    {"<=": "<=", ">=": ">=", "<": "<", ">": ">"},
    {"&": "&"},
    {"+": "+", "-": "-"},
    {"*": "*", "/": "//", "%": "%"},
)
CALLS = {"min<int64_t>": "min", "max<int64_t>": "max", "int64_t": "int", "reserve": "reserve"}


def working_memory(program: Program, sms: int) -> Callable[[int, int], int]:
    """Bytes for T steps of B rows on a GPU of `sms` multiprocessors. Raises BuildError where the layout has something
    that is not known here."""
    lines = [
        "def bytes_of(T, B, sms):",
        "    most, at = 0, 0",
        "    def reserve(count):",
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
    return lambda T, B: made(T, B, sms) if T > 0 and B > 0 else ALIGNMENT


def _unknown(text: str) -> BuildError:
    do = "report the network: its working memory is not known before it is compiled"
    return BuildError(message("a layout of memory cannot be computed here", got=text, do=do))


class _Reader:
    """One expression, token by token."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, at = text, list[str](), 0
        while at < len(text.rstrip()):
            found = TOKEN.match(text, at)
            if found is None:
                raise _unknown(text)
            self.tokens.append(found[0].strip())
            at = found.end()
        self.at = 0

    def next(self) -> str:
        """The next token, "" at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        """The next token, which must be that one where one is expected."""
        token = self.next()
        if not token or (expected and token != expected):
            raise _unknown(self.text)
        self.at += 1
        return token

    def choice(self) -> str:
        """A condition with ? and :, or less."""
        condition = self.binary(0)
        if self.next() != "?":
            return condition
        self.take("?")
        yes = self.choice()
        self.take(":")
        return f"({yes} if {condition} else {self.choice()})"

    def binary(self, level: int) -> str:
        """Operators of that level and of tighter ones, from the left."""
        if level == len(LEVELS):
            return self.single()
        left = self.binary(level + 1)
        while self.next() in LEVELS[level]:
            sign = LEVELS[level][self.take()]
            left = f"({left} {sign} {self.binary(level + 1)})"
        return left

    def single(self) -> str:
        """A number, a name, a call, or anything in brackets."""
        token = self.take()
        if token in ("-", "!"):
            return f"({'-' if token == '-' else 'not '}{self.single()})"
        if token == "(":
            inner = self.choice()
            self.take(")")
            return f"({inner})"
        if token[0].isdigit():
            return token
        if self.next() != "(":
            return token
        return self.call(token)

    def call(self, name: str) -> str:
        """A call of a function that is known."""
        if name not in CALLS:
            raise _unknown(self.text)
        self.take("(")
        given = [self.choice()]
        while self.next() == ",":
            self.take(",")
            given.append(self.choice())
        self.take(")")
        if name == "reserve":  # its first two are the counters that it changes
            given = given[2:]
        return f"{CALLS[name]}({', '.join(given)})"


def _python(text: str) -> str:
    reader = _Reader(text)
    found = reader.choice()
    if reader.next():
        raise _unknown(text)
    return found

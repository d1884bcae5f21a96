"""Every error class of tvm_rnn and the one function that formats their messages.

In: facts from whoever found the problem. Out: exceptions whose text names what failed, where, what was got, what was
expected and what to do. `runtime.py` carries a copy of the two classes it needs for use as a single file.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from numbers import Integral


class TvmRnnError(Exception):
    """Base class: everything that tvm_rnn raises on purpose."""


class CellError(TvmRnnError):
    """A cell's definition or its equations are wrong; names the user's own file and line."""


class ConfigError(TvmRnnError):
    """An argument of RNN, compile, a pass or the command line is wrong."""


class WeightError(TvmRnnError):
    """A weight is missing, unknown, or has the wrong shape or dtype."""


class InputError(TvmRnnError):
    """An array given to a module or to the oracle has the wrong shape, dtype, device or name."""


class LoadError(TvmRnnError):
    """A file is not a module that this machine can load."""


class BuildError(TvmRnnError):
    """Compilation, linking or writing the result failed."""


class DeviceError(TvmRnnError):
    """A GPU refused or failed what a module asked of it, or did not finish in time."""


class PassError(TvmRnnError):
    """A pass broke its own contract: a bug in tvm_rnn or in a user's pass, never in a cell."""


def message(
    what: str, *, where: str | None = None, got: object = None, expected: object = None, do: str | None = None
) -> str:
    """One text in four slots: what failed, where, got / expected, what to do.

    Empty slots are left out. `where` is "file:line" or the name of the thing at fault.
    """
    lines = [what if where is None else f"{what}\n  where:    {where}"]
    if got is not None:
        lines.append(f"  got:      {got}")
    if expected is not None:
        lines.append(f"  expected: {expected}")
    if do is not None:
        lines.append(f"  do:       {do}")
    return "\n".join(lines)


# What optional parts need, as pip takes it: the packages of an extra of pyproject.toml together.
_DRAWING = "'grandalf>=0.8' 'vl-convert-python>=1.6'"
_JAX = "'jax>=0.10' 'jax-tvm-ffi>=0.1.3'"
_INSTALL = {
    "onnx": "'onnx>=1.16'",
    "h5py": "'h5py>=3.10' 'onnx>=1.16'",
    "grandalf": _DRAWING,
    "vl-convert-python": _DRAWING,
    "jax": _JAX,
    "jax_tvm_ffi": _JAX,
}


def not_installed(package: str, more: str = "") -> str:
    """The message where an optional package is missing. It names the packages themselves: an extra of tvm_rnn could be
    installed only where pip finds tvm_rnn.

    package: its name in the index. more: what else can be done.
    """
    do = f"pip install {_INSTALL.get(package, package)}"
    return message(f"{package} is not installed", do=f"{do}; {more}" if more else do)


def nearest(name: object, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name that was meant, whatever its capitals: one that begins so, or is spelt nearly so; or None."""
    folded = {word.casefold(): word for word in known}
    own = str(name).casefold()
    begun = [word for word in folded if own and word.startswith(own)] if len(own) > 2 else []
    near = begun or difflib.get_close_matches(own, folded, n=1, cutoff=cutoff)
    return folded[min(near, key=len)] if near else None


def unknown(kind: str, name: object, known: Iterable[str]) -> dict[str, str]:
    """Slots for an unknown name: the known ones and the nearest."""
    names = sorted(known)
    near = nearest(name, names)
    shown = ", ".join(names) if names else "none"
    return {
        "got": f"{name!r}",
        "expected": f"one of: {shown}",
        "do": f"did you mean {near!r}?" if near is not None else f"use a known {kind}",
    }


def whole_number(what: str, given: object, least: int, most: int | None = None) -> int:
    """The number that a caller gave. what: its name. Raises ConfigError where it is no whole one from `least` to
    `most`."""
    number = int(given) if isinstance(given, Integral) and not isinstance(given, bool) else None
    if number is None or number < least or (most is not None and number > most):
        expected = f"a whole number of at least {least}" if most is None else f"a whole number, {least} to {most:,}"
        raise ConfigError(message(what, got=f"{given!r:.80}", expected=expected))
    return number


def one_or_several(what: str, given: object) -> tuple[str, ...]:
    """The names that a caller gave. what: the argument's own. Raises ConfigError where they are none."""
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (None,)
    names = tuple(name for name in found if isinstance(name, str))
    if len(names) < len(found):
        raise ConfigError(message(f"{what} is a name, or several", got=f"{given!r:.80}", do=f'{what}="one"'))
    return names

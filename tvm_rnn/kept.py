"""What training keeps, by name: which values, and where it is said in which dtype: "values", "states:bfloat16".

In: `keep=` of the user's, True for training without one. Out: both parts, the names that a network has, and errors.

A dtype is that of what the tape has and `backward` alone reads, in pointwise work: gates, cell states. What products
read, inputs and hidden states, and states that forward goes on from stay in the network's dtype, so that results of
forward, and forward that runs again, are the same bits. Networks of 16 bits have tapes of 16 bits in any case.
"""

from __future__ import annotations

from .errors import ConfigError, message, unknown

WHAT = ("values", "states")
NARROW = "bfloat16"


def split(training: bool | str) -> tuple[str, str]:
    """What is kept, and the dtype that is named, or ""."""
    what, _, dtype = ("values" if training is True else str(training)).partition(":")
    return what, dtype


def names(dtype: str, kind: str) -> list[str]:
    """The choices for a network of that dtype, on a target of that kind."""
    narrow = [f"{what}:{NARROW}" for what in WHAT] if dtype == "float32" and kind == "cuda" else []
    return [*WHAT, *narrow]


def check(training: bool | str, dtype: str, kind: str) -> None:
    """Raises ConfigError for a choice that a network of that dtype does not have there."""
    name = "values" if training is True else str(training)
    if not training or name in names(dtype, kind):
        return
    known = names("float32", "cuda")  # which have all
    if name not in known:
        raise ConfigError(message("no such choice of what training keeps", **unknown("choice", name, known)))
    got = f"keep={name!r} for a network of {dtype} on target kind {kind}"
    do = f"networks of float32 have it, on GPUs; here: keep={split(name)[0]!r}"
    raise ConfigError(message("tapes are narrower than the network in float32 alone", got=got, do=do))


__all__ = ["NARROW", "WHAT", "check", "names", "split"]

"""What a compilation decided, and why not otherwise: told by whoever decides, kept only while somebody listens.

In: `tell` from passes, from the choice of a regime and from templates, within the stage that `about` names. Out: a list
of `Decision`s for `compiler/compile.py`, which puts them into the manifest, and for `explain/explanation.py`, which
says them to people.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypedDict

Figures: TypeAlias = Mapping[str, Any]  # numbers and lists by name, as a pass, a template or a manifest gives them


class DecisionFacts(TypedDict, total=False):
    """A decision: `stage`, `done` and `what` are always there. subject: graph (its number), kind, batch, template."""

    stage: str
    done: bool
    what: str
    why: str
    subject: Figures
    facts: Figures


@dataclass(frozen=True)
class Decision:
    """stage: a pass's name, "regime" or "wave". done: whether `what` was done; why: the reason, which one that was not
    done always has. subject: what it is about: graph (its number), kind ("backward"), batch. facts: figures, with
    units in their names."""

    stage: str
    done: bool
    what: str
    why: str = ""
    subject: Figures = field(default_factory=dict)
    facts: Figures = field(default_factory=dict)

    def as_dict(self) -> DecisionFacts:
        """Ready for json.dumps; what is empty is left out."""
        facts: DecisionFacts = {"stage": self.stage, "done": self.done, "what": self.what}
        if self.why:
            facts["why"] = self.why
        if self.subject:
            facts["subject"] = dict(self.subject)
        if self.facts:
            facts["facts"] = dict(self.facts)
        return facts

    @staticmethod
    def from_dict(found: Figures) -> Decision:
        """What as_dict made."""
        return Decision(**{"why": "", **found})


_LISTENER: ContextVar[list[Decision] | None] = ContextVar("_LISTENER", default=None)
_STAGE: ContextVar[tuple[str, Figures]] = ContextVar("_STAGE", default=("", {}))


@contextmanager
def recording(listen: bool = True) -> Iterator[list[Decision]]:
    """The list to which everything that is told in this block is added, each thing once. listen=False: nobody listens
    here, whoever listens outside: what is tried here and thrown away is nobody's decision."""
    found: list[Decision] = []
    token = _LISTENER.set(found if listen else None)
    try:
        yield found
    finally:
        _LISTENER.reset(token)


@contextmanager
def about(stage: str, **subject: object) -> Iterator[None]:
    """What is told in this block belongs to that stage ("": the one around it), and is about this as well."""
    outer, known = _STAGE.get()
    token = _STAGE.set((stage or outer, {**known, **subject}))
    try:
        yield
    finally:
        _STAGE.reset(token)


def listening() -> bool:
    """Whether anybody wants to know: reasons that take work to find are found only then."""
    return _LISTENER.get() is not None


def tell(done: bool, what: str, why: str = "", **facts: object) -> None:
    """Something was done, or was not done and why; facts: figures."""
    listener = _LISTENER.get()
    if listener is None:
        return
    stage, subject = _STAGE.get()
    decision = Decision(stage, done, what, why, dict(subject), facts)
    if not any(other.what == what and other == decision for other in listener):  # few have the same words
        listener.append(decision)


def told() -> int:
    """How much was told so far."""
    return len(_LISTENER.get() or ())


def forget(count: int) -> None:
    """Drop what was told after so much: of a try that came to nothing."""
    listener = _LISTENER.get()
    if listener is not None:
        del listener[count:]


def heard() -> list[DecisionFacts]:
    """All that was told so far to whoever listens here, ready for json.dumps: what a manifest says of it."""
    return [decision.as_dict() for decision in _LISTENER.get() or ()]

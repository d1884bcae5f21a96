"""Up to how many steps a call is calls of one step, one after the other, on the user's states.

In: the layouts of a layer and of its calls of one step, a precision, a batch size and a GPU. Out: the largest T for
which that is predicted to take the least time: nothing is copied in or out or multiplied ahead, and the first step of a
call that is given no states takes fewer products.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tvm_rnn.cuda.codegen.host_program import HostExpr
from tvm_rnn.cuda.layer.user_states import UserStates
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.target import Target

from .launched_step_time import LAUNCH_US, STATE_COPIES_US, first_us, hidden_us, predict_steps
from .persistent_step_time import StepTime
from .start_time import start_us

MOST = 4
BATCHES = (1, 16, 64, 128, 256, 512)  # where the caller names none


def few_steps(
    layout: Layout,
    one: UserStates,
    first: UserStates | None,
    persistent: StepTime | None,
    batch: int,
    target: Target,
) -> int:
    """one, first: of a step, and of one from no states, where that takes fewer products. persistent: of the kernel for
    all steps, where there is one for so many rows."""
    precision = layout.precision

    def step(own: UserStates) -> float:
        return predict_steps(own, precision, batch, target) + (LAUNCH_US if own.copied_rows else 0.0)

    each = step(one)
    opening = each if first is None else step(first)

    def apart(steps: int) -> float:
        before = first_us(layout, precision, batch, steps, target) + (LAUNCH_US if layout.copied else 0.0)
        own = before + STATE_COPIES_US + steps * predict_steps(layout, precision, batch, target)
        own -= hidden_us(layout, precision, batch, target)
        if persistent is None:
            return own
        moved = STATE_COPIES_US if layout.narrow_states and persistent.geometry.exchange.in_memory else 0.0
        return min(own, before + moved + start_us(persistent, batch) + steps * persistent.us(batch))

    few = 1
    while few < MOST and opening + few * each <= apart(few + 1):
        few += 1
    return few


def least(found: Iterable[Mapping[int, int]]) -> HostExpr:
    """A C++ expression in B: the least of what is said of batch sizes up to those that are keys, each for the same
    ones; the last one also of larger ones."""
    every = [*found]
    rows = {batch: min(own[batch] for own in every) for batch in sorted(every[0])}
    *others, last = rows.items()
    text = str(last[1])
    for batch, few in reversed(others):
        text = text if str(few) == text else f"(B <= {batch} ? {few} : {text})"
    return text

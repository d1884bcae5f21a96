"""wave_time: short calls of stacks are for a wave, long ones of few small layers for layers on streams of their own."""

from __future__ import annotations

import pytest
from persistent_layers import geometry_of, step

from tvm_rnn.cuda.model.wave_time import LEAST_STEPS, LONGEST, OneByOne, following_us, most_steps


def layers(count: int, us: float, beside: int = 66) -> OneByOne:
    """So many layers, a step of each of which takes so long."""
    return OneByOne(count * us, count * 3.5, count, beside)


@pytest.mark.parametrize(
    ("wave", "other", "shorter", "longer"),
    [  # measured on an H200, B = 16: of these numbers of steps a wave was quicker, and was not
        (0.49, layers(2, 0.29), 256, 1024),  # LSTM 64
        (0.46, layers(2, 0.23), 64, 256),  # LSTM 32
        (0.49, layers(4, 0.29), 1024, None),
        (0.56, layers(4, 0.41), 1024, None),  # LSTM 128
        (0.67, layers(2, 0.64), 1024, None),  # LSTM 128 in TF32
    ],
)
def test_a_wave_is_for_short_calls(wave: float, other: OneByOne, shorter: int, longer: int | None) -> None:
    most = most_steps(wave, other)
    assert most >= shorter and (longer is None or most < longer)


def test_layers_that_have_no_room_beside_each_other_are_one_by_one() -> None:
    assert most_steps(0.49, layers(2, 0.29, beside=1)) == LONGEST
    assert most_steps(9.0, layers(2, 0.29, beside=1)) == 0
    beside, alone = layers(2, 0.29), layers(2, 0.29, beside=1)
    assert beside.call_us(1024) < alone.call_us(1024)
    assert beside.call_us(LEAST_STEPS) < beside.call_us(3)


def test_phases_that_read_the_layer_below_alone_are_done_before() -> None:
    own = geometry_of(step("lstm", 64, "bfloat16"), "bfloat16")
    assert following_us(own, 0.5) == 0.5

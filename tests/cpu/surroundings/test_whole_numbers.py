"""Which arrays hold whole numbers: read off casts from bytes, and what is done with them."""

from __future__ import annotations

from tvm import tirx

from tvm_rnn.cpu.surroundings.whole_numbers import WholeNumbers

X = tirx.decl_buffer((4,), "uint8", name="x")
F = tirx.decl_buffer((4,), "float32", name="f")
LEVEL, OTHER = tirx.Cast("float32", tirx.BufferLoad(X, [0])), tirx.BufferLoad(F, [0])


def number(value: float) -> tirx.FloatImm:
    return tirx.FloatImm("float32", value)


def test_ranges_of_expressions() -> None:
    of = WholeNumbers().of
    assert of(LEVEL) == (0, 255)
    assert of(LEVEL - number(128)) == (-128, 127)
    assert of(LEVEL + LEVEL) == (0, 510)
    assert of(tirx.Cast("float32", tirx.Cast("int8", OTHER)) - LEVEL) == (-383, 127)
    assert of(tirx.Select(number(1) > OTHER, LEVEL, number(-3))) == (-3, 255)
    assert of(tirx.if_then_else(number(1) > OTHER, LEVEL, number(0))) == (0, 255)


def test_what_may_be_no_whole_number() -> None:
    of = WholeNumbers().of
    for value in (OTHER, LEVEL + OTHER, LEVEL + number(0.5), LEVEL / number(3), number(float("inf"))):
        assert of(value) is None
    assert of(tirx.Select(number(1) > OTHER, LEVEL, OTHER)) is None
    assert of(tirx.Cast("float16", tirx.Cast("int16", OTHER))) is None


def test_arrays_hold_what_is_stored() -> None:
    whole = WholeNumbers()
    into = [tirx.decl_buffer((4,), "float32", name=f"y{i}") for i in range(3)]
    whole.read([tirx.BufferStore(into[0], LEVEL - number(9), [0])])
    assert whole.of(tirx.BufferLoad(into[0], [1])) == (-9, 246)
    whole.read([tirx.BufferStore(into[1], tirx.BufferLoad(into[1], [0]) + LEVEL, [0])])  # a sum
    whole.read([tirx.BufferStore(into[2], OTHER, [0]), tirx.BufferStore(into[2], LEVEL, [1])])
    assert whole.of(tirx.BufferLoad(into[1], [0])) is None
    assert whole.of(tirx.BufferLoad(into[2], [0])) is None

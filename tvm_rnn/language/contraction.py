"""einsum of any number of traced operands as steps of the table: sums, products of two operands, transposes.

In: `functions.einsum` within a cell. Out: traced values made of `sum`, `einsum` (or `mul`, where nothing is summed) and
`transpose` nodes, in the order in which the operands are written.
"""

from __future__ import annotations

from .trace import Value, contract, fail, node


def einsum(spec: str, *values: Value) -> Value:
    """NumPy's einsum. Raises CellError for a specification with '...' or without '->', or one that does not fit."""
    clean = spec.replace(" ", "")
    inputs, arrow, out = clean.partition("->")
    letters = inputs.split(",")
    twice = any(len(set(group)) != len(group) for group in (*letters, out))
    if not arrow or "." in clean or len(letters) != len(values) or twice:
        fail(
            "einsum: this specification is not supported",
            got=f"{spec!r} with {len(values)} operands",
            expected="a group of letters per operand and '->' result, no '...', no letter twice in one group",
        )
    if set(out) - set(inputs):
        fail("einsum: the result names an axis that no operand has", got=spec)
    for group, v in zip(letters, values, strict=True):
        if len(group) != v.ndim:
            got, expected = f"'{group}' for {v!r}", f"{v.ndim} letters"
            fail("einsum: the letters do not match the operand", got=got, expected=expected)
    done, value = letters[0], values[0]
    for position in range(1, len(values)):
        later = out + "".join(letters[position + 1 :])
        done, value = _join(done, value, letters[position], values[position], later)
    done, value = _drop(done, value, set(out))
    return value if done == out else value.transpose(*(done.index(letter) for letter in out))


def _drop(letters: str, value: Value, keep: set[str]) -> tuple[str, Value]:
    """Sum the axes whose letter nobody needs any more."""
    for letter in [letter for letter in letters if letter not in keep]:
        value = Value(node("sum", value, axis=letters.index(letter) - len(letters), keepdims=False))
        letters = letters.replace(letter, "")
    return letters, value


def _join(left: str, a: Value, right: str, b: Value, later: str) -> tuple[str, Value]:
    """Two operands to one. `later` has the letters that are needed afterwards, those of the result first."""
    left, a = _drop(left, a, set(right) | set(later))
    right, b = _drop(right, b, set(left) | set(later))
    out = "".join(letter for letter in dict.fromkeys(later) if letter in left + right)
    return out, contract(f"{left},{right}->{out}", a, b)

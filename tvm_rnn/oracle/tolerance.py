"""One table of how far a result may be from the oracle, by dtype and number of steps, and the comparison that uses it.

In: results of compiled code (or of a peer) and the float64 oracle's. Out: an error figure, or an AssertionError that
says where the worst element is. The tests and `bench/run/compare.py` compare by nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from tvm_rnn.errors import ConfigError, message, unknown

# dtype -> rows of (at most this many steps, the largest relative error allowed), the last row for any number.
# float32: the polynomial sigmoid and tanh of compiled code are off by 5 ulp (3e-7) per step; states that contract keep
# the sum near 1e-6, and a factor of ten is left for cells that do not. It grows with steps where nothing forgets.
TABLE: dict[str, tuple[tuple[float, float], ...]] = {
    "float32": ((200, 1e-5), (1000, 3e-5), (math.inf, 1e-4)),
    "float64": ((200, 1e-12), (1000, 3e-12), (math.inf, 1e-11)),
    # Operands of products are rounded (to 10, 10 and 7 bits after the point), sums and states are float32. One rounding
    # of a result near 1 is 5e-4 in float16 and 4e-3 in bfloat16; the rest is left for cells that do not contract.
    "tf32": ((math.inf, 1e-3),),
    "float16": ((math.inf, 2e-3),),
    "bfloat16": ((math.inf, 1e-2),),
    "int8": ((math.inf, 2e-2),),  # of weights alone, a scale per row; arithmetic in float32
    "int8_dynamic": ((math.inf, 2e-2),),  # of operands of products too, a scale per row and step
}


def tolerance(dtype: str, steps: int) -> float:
    """The largest relative error that `steps` steps in `dtype` may show. Raises ConfigError for other dtypes."""
    name = str(dtype)
    if name not in TABLE:
        raise ConfigError(message("no tolerance is known for this dtype", **unknown("dtype", name, TABLE)))
    return next(limit for most, limit in TABLE[name] if steps <= most)


def relative_error(actual: ArrayLike, expected: ArrayLike) -> float:
    """max |actual - expected| / max(1, max |expected|), over the elements where `expected` is finite, in float64.

    The scale is one number for the whole array, at least 1, so that small elements are held to the absolute error that
    the large ones have. Where `expected` is NaN or infinite, `actual` must be the same there (NaN, +inf, -inf), and
    where it is finite `actual` must be finite: otherwise the error is inf. Empty arrays: 0.

    Raises AssertionError where the shapes differ: broadcasting would hide a missing axis.
    """
    a, e = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    if a.shape != e.shape:
        raise AssertionError(message("the results differ in shape", got=a.shape, expected=e.shape))
    if not np.array_equal(np.where(np.isfinite(a), 0.0, a), np.where(np.isfinite(e), 0.0, e), equal_nan=True):
        return math.inf
    finite = np.isfinite(e)
    if not finite.any():
        return 0.0
    return float(np.max(np.abs(a[finite] - e[finite])) / max(1.0, np.max(np.abs(e[finite]))))


def assert_close(actual: object, expected: object, dtype: str, steps: int, what: str = "result") -> None:
    """Raise AssertionError unless `actual` is within the table's tolerance of `expected`.

    actual, expected: arrays (NumPy or what NumPy can read), or dicts, lists and tuples of them with the same keys and
    lengths, such as the (y, state) of a module and of the oracle. what: a name for the message.
    """
    if isinstance(expected, Mapping):
        if not isinstance(actual, Mapping) or actual.keys() != expected.keys():
            raise AssertionError(message(f"{what} has other names", got=_names(actual), expected=_names(expected)))
        for name in expected:
            assert_close(actual[name], expected[name], dtype, steps, f"{what}[{name!r}]")
    elif isinstance(expected, list | tuple):
        if not isinstance(actual, list | tuple) or len(actual) != len(expected):
            raise AssertionError(message(f"{what} has other parts", got=_names(actual), expected=_names(expected)))
        for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_close(one, other, dtype, steps, f"{what}[{index}]")
    else:
        _assert_array_close(np.asarray(actual, np.float64), np.asarray(expected, np.float64), dtype, steps, what)


def _assert_array_close(actual: np.ndarray, expected: np.ndarray, dtype: str, steps: int, what: str) -> None:
    limit, error = tolerance(dtype, steps), relative_error(actual, expected)
    if error <= limit:
        return
    if math.isinf(error):
        a, e = (np.where(np.isfinite(v), 0.0, v) for v in (actual, expected))
        same = (a == e) | (np.isnan(a) & np.isnan(e))
        wrong = np.argwhere(~same)
        text = f"{len(wrong)} of {actual.size} elements are NaN or infinite where the other side is not"
    else:
        with np.errstate(invalid="ignore"):
            gap = np.nan_to_num(np.abs(actual - expected), nan=0.0)
        wrong = np.argwhere(gap == gap.max())
        text = f"relative error {error:.3g} in {actual.size} elements"
    worst = tuple(int(i) for i in wrong[0])
    raise AssertionError(
        message(
            f"{what} is not close",
            where=f"element {list(worst)} of shape {list(actual.shape)}: {actual[worst]!r} against {expected[worst]!r}",
            got=text,
            expected=f"at most {limit:.3g} for {dtype} over {steps} steps",
        )
    )


def _names(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(map(str, value)) or "no names"
    return f"{len(value)} parts" if isinstance(value, list | tuple) else f"a {type(value).__name__}"

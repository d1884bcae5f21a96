"""The dtypes of networks, what precision a compiled one computes in, and how it stores weights.

In: names from users. Out: checked names, the NumPy dtype in which arrays of a network are held, and rounding to 16 bits
for all who hold such values in float32: NumPy has no bfloat16, and arithmetic on float16 is not what a GPU does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .errors import ConfigError, WeightError, message, unknown

DTYPES = ("float32", "float64", "float16", "bfloat16")
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
# What a network of a dtype may be computed in; the first is the default. "float32" means exactly that: no TF32.
PRECISIONS = {
    "float64": ("float64",),
    "float32": ("float32", "tf32"),
    "float16": ("float16",),
    "bfloat16": ("bfloat16",),
}
# The least magnitudes that are rounded to infinity: half a step above the largest number. (runtime.py has a copy.)
INFINITE = {
    "float16": 65520.0,
    "bfloat16": float.fromhex("0x1.ffp127"),
    "float32": float.fromhex("0x1.ffffffp127"),
    "float64": float("inf"),
}
# Dtypes in which a GPU, or a CPU, may store the weights of products, each with the precisions that it goes with.
STORED_ON_GPUS = {"float8_e4m3": ("float16", "bfloat16")}
STORED_ON_CPUS = {"bfloat16": ("float32",), "float16": ("float32",), "int8": ("float32",), "int8_dynamic": ("float32",)}
STORED = (*STORED_ON_GPUS, *STORED_ON_CPUS)


def dtype_name(dtype: DTypeLike) -> str:
    """The name of a network's dtype, from its name, a NumPy dtype, a NumPy scalar type or a torch dtype; ConfigError
    for any other."""
    try:
        name = np.dtype(dtype).name if dtype is not None else "None"
    except TypeError:
        name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(message("RNN: unsupported dtype", **unknown("dtype", name, DTYPES)))
    return name


def real_numbers(value: object) -> np.ndarray:
    """Numbers as a float64 array. Raises TypeError where some would be lost or guessed: complex numbers, texts, dates,
    objects, masked arrays; ValueError or OverflowError as NumPy does."""
    given = np.asarray(float(value) if isinstance(value, int) else value)
    if not np.can_cast(given.dtype, np.float64, "same_kind") or isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{type(value).__name__} of {given.dtype} is no array of real numbers")
    return given.astype(np.float64, copy=False)


def held_dtype(dtype: str) -> str:
    """The NumPy dtype that holds a network's weights and states: float32 for the 16-bit dtypes."""
    return dtype if dtype in ("float32", "float64") else "float32"


def rounded(values: ArrayLike, dtype: str) -> np.ndarray:
    """An array of `held_dtype(dtype)` whose values are all representable in `dtype`: nearest, ties to even."""
    array: np.ndarray = np.asarray(values)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            array = array.astype(np.float16)
    array = array.astype(held_dtype(dtype))
    if dtype != "bfloat16":
        return array
    bits = array.view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    # Adding to a NaN's bits could make it infinite; its top half with the quiet bit is a NaN still.
    kept = np.where(np.isnan(array), (bits | 0x00400000) & np.uint32(0xFFFF0000), nearest).astype(np.uint32)
    floats: np.ndarray = kept.view(np.float32)
    return floats.reshape(array.shape)


def check_fit(weights: Mapping[str, np.ndarray], dtype: str) -> None:
    """Raise WeightError, which names all of them, where finite numbers would become infinite in `dtype`. Infinities and
    NaNs that were given are nobody's rounding: they go through all equations as IEEE 754 says. int8 and float8 have a
    scale per row, so that every finite number fits."""
    least, wrong = np.float64(INFINITE.get(dtype, np.inf)), []
    for name, array in weights.items():
        if np.isinf(least) or array.dtype.name == dtype:
            continue
        with np.errstate(over="ignore"):
            large = np.abs(array[np.isfinite(array)].astype(held_dtype(dtype)))
        count = int(np.count_nonzero(large >= least))
        if count:
            wrong.append(f"{name}: {count} of {array.size} numbers, the largest {np.max(large):g}")
    if wrong:
        got, do = "\n            ".join(wrong), "scale or clip these weights, or use a dtype that has such numbers"
        raise WeightError(message(f"weights would be infinite in {dtype}", got=got, expected=f"below {least:g}", do=do))


def summed(one: np.ndarray, two: np.ndarray, dtype: str) -> np.ndarray:
    """The one bias of two, `rounded`. Raises WeightError where it would be infinite and they are not."""
    with np.errstate(all="ignore"):
        check_fit({"the sum of two biases": one.astype(np.float64) + two}, dtype)
        return rounded(one + two, dtype)


def precision_name(dtype: str, precision: str | None) -> str:
    """What to compute in: the dtype's own if None. Raises ConfigError where the two do not go together."""
    known = PRECISIONS[dtype]
    if precision is None:
        return known[0]
    if precision not in known:
        every = [name for names in PRECISIONS.values() for name in names]
        what = f"a network of {dtype} cannot be computed in {precision!r}"
        if precision not in every:
            raise ConfigError(message("compile: no such precision", **unknown("precision", precision, every)))
        do = f"make the RNN with dtype={precision!r}" if precision in DTYPES else "make the RNN with dtype='float32'"
        raise ConfigError(message(what, got=precision, expected=" or ".join(known), do=do))
    return precision


def stored_name(precision: str, gpu: bool, weights: object) -> str:
    """The dtype of products' weights on a GPU or a CPU, from its name or a torch dtype; "" for None, "" and what
    the precision has anyway. Raises ConfigError for another."""
    name = "" if weights is None else str(weights).removeprefix("torch.").removesuffix("fn")
    if name in ("", precision):
        return ""
    if name not in STORED:
        raise ConfigError(message("compile: no such dtype of weights", **unknown("dtype", str(weights), STORED)))
    here = STORED_ON_GPUS if gpu else STORED_ON_CPUS
    if name not in here:
        this, do = "a GPU" if gpu else "a CPU", f"one of {', '.join(here)}, or leave weights out"
        raise ConfigError(message(f"{name} weights are not for this target", got=f"{this} as the target", do=do))
    if precision not in here[name]:
        do = f"make the RNN with dtype='{here[name][-1]}', or leave weights out"
        expected = f"precision {' or '.join(here[name])}"
        raise ConfigError(message(f"{name} weights need another precision", got=precision, expected=expected, do=do))
    return name

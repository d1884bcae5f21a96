"""Safetensors files as arrays with the dtypes that they were written in, bfloat16 too, which NumPy lacks.

In: paths from users; files are data and may be damaged or hostile. Out: `Tensor`s by name, each read when it is asked
for; or WeightError. The safetensors library compares every size in a file with the file's own before anything is read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_rnn.budget import Spending, is_shape
from tvm_rnn.errors import WeightError, message

# safetensors' name of a dtype and NumPy's; bfloat16 is read as its 16 bits.
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "|b1"}
DTYPES |= {f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)}


@dataclass(frozen=True)
class Tensor:
    """One array of a file: where it lies, in bytes from the file's beginning."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    def read(self) -> np.ndarray:
        """The array; bfloat16 as float32 of the same values. Raises WeightError for a dtype that NumPy has not."""
        if self.dtype not in DTYPES:
            got, expected = self.dtype, ", ".join(DTYPES)
            raise WeightError(message("an array of an unknown dtype", where=self.path, got=got, expected=expected))
        count = math.prod(self.shape)
        raw = np.fromfile(self.path, DTYPES[self.dtype], count, offset=self.start)
        if raw.size != count:
            raise WeightError(message("the file has become shorter", where=self.path, do="read it again"))
        if self.dtype == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.reshape(self.shape)


def open_safetensors(source: str | os.PathLike[str]) -> dict[str, Tensor]:
    """What a .safetensors file holds, by name; nothing is read yet. Raises WeightError where it is no such file."""
    from safetensors import SafetensorError, safe_open

    path = os.fspath(source)
    if not os.path.isfile(path):
        raise WeightError(message("no such weights file", got=path, do="check the path"))
    try:
        with safe_open(path, framework="np"):
            pass  # that has checked the header
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            end = os.fstat(file.fileno()).st_size
            found: Any = Spending(path, end, WeightError).json(file.read(size), "its header")
        header: Mapping[str, Any] = {name: row for name, row in found.items() if name != "__metadata__"}
        return {name: _tensor(path, row, 8 + size, end) for name, row in header.items()}
    except (SafetensorError, ValueError, KeyError, TypeError, OSError, OverflowError) as reason:
        do = "write it with safetensors.numpy.save_file"
        raise WeightError(message("not a safetensors file", where=path, got=str(reason), do=do)) from None


def _tensor(path: str, row: Mapping[str, Any], first: int, end: int) -> Tensor:
    """One row of the header, checked once more: JSON may have a name twice, and readers differ in which one counts."""
    shape, (start, stop) = tuple(row["shape"]), row["data_offsets"]
    wanted = math.prod(shape) * np.dtype(DTYPES[row["dtype"]]).itemsize if row["dtype"] in DTYPES else stop - start
    if not is_shape(shape) or not 0 <= start <= stop <= end - first or wanted != stop - start:
        raise ValueError(f"shape {list(shape)} at bytes {start} to {stop} of {end - first}")
    return Tensor(path, row["dtype"], shape, first + start)

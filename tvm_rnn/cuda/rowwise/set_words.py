"""Memory that a persistent kernel finds 0, or marked as not written: set by a kernel, not by a memset.

In: where, how many bytes, a byte. Out: host statements. In a CUDA graph a memset between two kernels takes 4 us, such a
kernel 1.3 (H200); in a stream both take a launch. What is large is the driver's.
"""

from __future__ import annotations

from functools import cache

from tvm import tirx

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.layer.row_kernels import THREADS, elements

LARGE = 1 << 22  # bytes


def set_bytes(host: Host, place: Pointer, count: HostExpr, value: int = 0) -> None:
    """Enqueue: set `count` bytes, whole words of 4, to `value` (0 to 255). None at all is allowed."""
    if str(count) == "0":
        return
    size = host.let("bytes", count)
    with host.when(f"{size} > 0 && {size} <= {LARGE}"):
        word = int.from_bytes(bytes([value] * 4), "little", signed=True)
        host.launch(_kernel(), [place.cast("uint32")], [f"({size} / 4)", word])
    with host.otherwise():
        host.memset(place, size, value)


@cache
def _kernel() -> Kernel:
    def body(w: Writer) -> None:
        row, _, inside = elements(w, 1)
        with w.when(inside):
            w.store(w["words"], tirx.Cast("uint32", w["value"]), row)

    return write("set_words", [("words", "uint32")], [("rows", "int64"), ("value", "int32")], body, threads=THREADS)

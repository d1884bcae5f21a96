"""Memory that a persistent kernel finds 0, or marked as not written: set by a kernel, not by a memset.

In: where, how many bytes, a byte. Out: host statements. In a CUDA graph a memset between two kernels takes 4 us, such a
kernel 1.3 (H200); in a stream both take a launch. What is large is the driver's. The kernel behind it may begin while
it runs, where that knows when it needs the memory: what was written before it is there then.
"""

from __future__ import annotations

from functools import cache

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.layer.row_kernels import THREADS
from tvm_rnn.tir.index import wide

LARGE = 1 << 22  # bytes
EACH = 4  # words of a thread: blocks take longer to begin than to store


def set_bytes(host: Host, place: Pointer, count: HostExpr, value: int = 0, early: bool = False) -> None:
    """Enqueue: set `count` bytes, whole words of 4, to `value` (0 to 255). None at all is allowed.

    early: kernels may be launched while the one before them runs, this one too."""
    if str(count) == "0":
        return
    size = host.let("bytes", count)
    with host.when(f"{size} > 0 && {size} <= {LARGE}"):
        word = int.from_bytes(bytes([value] * 4), "little", signed=True)
        host.launch(_kernel(early), [place.cast("uint32")], [f"({size} / 4)", word])
    with host.otherwise():
        host.memset(place, size, value)


@cache
def _kernel(early: bool) -> Kernel:
    def body(w: Writer) -> None:
        if early:
            w.wait_for_last()
            w.launch_next()  # not before: what that one reads at once may be what was waited for
        rows, block = w["rows"], THREADS * EACH
        cta = I.cta_id([tirx.Cast("int32", tirx.truncdiv(rows + (block - 1), tirx.const(block, "int64")))])
        first = w.keep(wide(cta) * block + wide(I.thread_id([THREADS])))
        for turn in range(EACH):
            with w.when(first + turn * THREADS < rows):
                w.store(w["words"], tirx.Cast("uint32", w["value"]), first + turn * THREADS)

    name, scalars = "set_words_early" if early else "set_words", [("rows", "int64"), ("value", "int32")]
    return write(name, [("words", "uint32")], scalars, body, threads=THREADS, early=early, waits=False)

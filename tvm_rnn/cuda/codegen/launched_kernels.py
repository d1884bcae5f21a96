"""Which kernels of a program some calls launch: a module for these alone needs no others.

In: a `Program`, and calls. Out: names of kernels. The statements of the host program decide it, so these run, on this
machine, as C++ whose launches only say their kernels' names.

A module for any batch size has some forty kernels, of which a call launches seven: a benchmark that draws a network for
each of its calls would wait for the others.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tvm_rnn.errors import BuildError, message
from tvm_rnn.options import Call

from .host_program import Program
from .nvcc import host_compiler

ROOMS = (0, 1 << 20)  # blocks at once of a kernel that needs all of its own: whether they fit, the GPU says


def launched_kernels(program: Program, calls: Sequence[Call], sms: int) -> frozenset[str]:
    """The names of the kernels that packing and these calls of inference launch on a GPU of so many multiprocessors.
    Raises BuildError where there is no C++ compiler."""
    with tempfile.TemporaryDirectory(prefix="tvm_rnn-calls-") as folder:
        source, executable = Path(folder, "calls.cc"), Path(folder, "calls")
        source.write_text("\n".join(_text(program, calls, sms)), encoding="utf-8")
        command = [host_compiler(), "-std=c++17", "-O0", "-w", str(source), "-o", str(executable)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.returncode:
            done = subprocess.run([str(executable)], capture_output=True, text=True, check=False)
        if done.returncode:
            got = (done.stderr or f"exit status {done.returncode}").strip().splitlines()[0]
            raise BuildError(message("the calls of a module cannot be looked at", got=got, do="report this cell"))
    return frozenset(done.stdout.split())


def _text(program: Program, calls: Sequence[Call], sms: int) -> Iterator[str]:
    yield Path(__file__).with_name("dry_run.h").read_text(encoding="utf-8")
    yield "namespace kernels {"
    yield from (f'static Kernel {name}{{"{name}", false}};' for name in program.kernels)
    yield "}"
    arrays = {"input": program.inputs, "state_in": program.states, "state_out": program.states}
    arrays["raw"] = len(program.parameters)
    for number, (name, count) in enumerate(arrays.items()):
        places = ", ".join(f"address({16 * (number + 1) + i})" for i in range(count + 1))
        yield f"static char* {name}[] = {{{places}}};"
    for number, name in enumerate(("output", "packed", "work", "lengths", "reset")):
        yield f"static char* {name} = address({number});"
    yield "static int pack() {"
    yield "  CallState call_state;"
    yield from program.pack.lines
    yield "  return 0;\n}"
    yield "static int sequence(int64_t T, int64_t B, bool has_lengths, bool has_reset, bool starts) {"
    yield f"  const int64_t sms = {sms}, device = 0;"
    yield "  CallState call_state;\n  int64_t at = 0, most = 0;"
    yield from program.layout
    yield from program.sequence.lines
    yield "  return 0;\n}"
    yield "int main() {\n  pack();"
    for room in ROOMS:
        yield f"  room = {room};"
        for call in calls:
            flags = f"{str(call.lengths).lower()}, {str(call.resets).lower()}"
            for starts in ("false", "true"):
                yield f"  sequence({call.steps}, {program.each} * {call.batch}, {flags}, {starts});"
    every = ", ".join(f"&kernels::{name}" for name in program.kernels)
    yield f"  for (const Kernel* kernel : {{{every}}})"
    yield '    if (kernel->launched) std::printf("%s\\n", kernel->name);'
    yield "  return 0;\n}"

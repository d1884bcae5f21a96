"""What a new process works until a compiled layer has answered: `python -m tvm_rnn.bench.run.first_call`.

In: the sizes of an LSTM of `rnn.nn`. Out: CPU seconds of each stage of a process that finds nothing on disk, and of
later ones, which find its code there; records and a table. Python's bytecode is on disk for the later ones, as pip
leaves it. PyTorch's own import is a stage of its own, and no part of the sum.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tvm_rnn.errors import TvmRnnError, message

from .compare import cpu_facts
from .gpu_suite import Record, writing

STAGES = ("import torch", "import tvm_rnn", "make the layer", "first call", "second call", "its gradients")
COUNTED = STAGES[1:4]  # what the layer costs before it has answered
PROGRAM = """
import json, sys, time
ends = [time.process_time()]
def stage(): ends.append(time.process_time())
import torch; stage()
import tvm_rnn as rnn; stage()
inputs, hidden, layers = map(int, sys.argv[1:])
layer, x = rnn.nn.LSTM(inputs, hidden, layers), torch.zeros(5, 2, inputs); stage()
y, _ = layer(x); stage()
y, _ = layer(x); stage()
y.sum().backward(); stage()
print(json.dumps([b - a for a, b in zip(ends, ends[1:])]))
"""


def run(sizes: Sequence[int] = (64, 128, 2), processes: int = 5, records: str | None = None) -> list[Record]:
    """Start the processes, one after the other, and return the records.

    sizes: inputs, hidden units, layers. processes: that find the code on disk, of which the median counts. records: a
    file of lines of JSON to write. Raises TvmRnnError where a process fails."""
    found = list[Record]()
    with tempfile.TemporaryDirectory(prefix="tvm_rnn-first-") as scratch, writing(found, records) as write:
        write({"kind": "facts", **cpu_facts(1), "clock": "CPU time of the process"})
        times = [_process(sizes, scratch) for _ in range(1 + processes)]
        for cache, of in (("empty", times[:1]), ("warm", times[1:])):
            seconds = {name: round(statistics.median(own), 3) for name, *own in zip(STAGES, *of, strict=True)}
            total = round(
                statistics.median(sum(dict(zip(STAGES, own, strict=True))[n] for n in COUNTED) for own in of), 3
            )
            point = f"lstm-i{sizes[0]}-h{sizes[1]}-l{sizes[2]}"
            write({"kind": "point", "point": point, "cache": cache, "seconds": seconds, "total": total})
    return found


def _process(sizes: Sequence[int], folder: str) -> list[float]:
    """CPU seconds of each stage of one process that keeps what it compiles in the folder."""
    own = {"TVM_RNN_CACHE": os.path.join(folder, "code"), "PYTHONPYCACHEPREFIX": os.path.join(folder, "bytecode")}
    own |= {"OMP_NUM_THREADS": "1", "TVM_RNN_NUM_THREADS": "1"}
    environment = {**os.environ, **own}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", PROGRAM, *map(str, sizes)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TvmRnnError(message("a process of the layer failed", got=(done.stderr.strip().splitlines() or [""])[-1]))
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    return times


def table(records: Sequence[Record]) -> str:
    """Markdown: the stages, with an empty cache and a warm one."""
    points = [record for record in records if record["kind"] == "point"]
    lines = ["| CPU seconds | " + " | ".join(f"{point['cache']} cache" for point in points) + " |"]
    lines.append("|---" * (len(points) + 1) + "|")
    for name in STAGES:
        lines.append(f"| {name} | " + " | ".join(f"{point['seconds'][name]:.2f}" for point in points) + " |")
    lines.append(f"| {', '.join(COUNTED)} | " + " | ".join(f"**{point['total']:.2f}**" for point in points) + " |")
    return "\n".join(lines)


def main() -> None:
    """The command: words of the shell in, a table out."""
    parser = argparse.ArgumentParser(description="What a new process works until a compiled layer has answered.")
    parser.add_argument("--input-size", type=int, default=64)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--num-layers", type=int, default=2)
    parser.add_argument("--processes", type=int, default=5, help="that find the code on disk; their median counts")
    parser.add_argument("--records", help="a file of records to write")
    given = parser.parse_args()
    sizes = given.input_size, given.hidden_size, given.num_layers
    print(table(run(sizes, given.processes, given.records)))


if __name__ == "__main__":
    main()

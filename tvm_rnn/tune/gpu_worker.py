"""The process that measures candidates on the GPU: `python -m tvm_rnn.tune.gpu_worker`, started by `gpu_measure.py`.

In: requests as lines of JSON on stdin: {"facts": true}, or a point of a plan with the files to measure. Out: lines of
JSON on stdout: {"stage", "framework"} (here the file) as each stage begins, then {"rows": [a row per file]}. It is a
process of its own for the reasons that `bench/run/gpu_worker.py` gives.
"""

from __future__ import annotations

import os
import statistics

from tvm_rnn.bench.measure.gpu_graphs import (
    Captured,
    Run,
    capture,
    memory_of,
    poison,
    rounds_us,
    run_poisoned,
    same_bits,
)
from tvm_rnn.bench.peers.gpu import prepare_tvm_rnn
from tvm_rnn.bench.peers.gpu_problem import GpuProblem
from tvm_rnn.bench.run.gpu_worker import REPEATS, Bench, Exact, errors, main
from tvm_rnn.bench.suites.gpu import Point
from tvm_rnn.errors import TvmRnnError
from tvm_rnn.oracle.tolerance import tolerance
from tvm_rnn.worker_process import Reply, Request


class Candidates(Bench):
    """Candidates of points; the oracle of the last point is kept for its next candidate."""

    point: Point | None = None
    problem: GpuProblem
    expected: Exact

    def measure(self, request: Request) -> list[Reply]:
        """A row per file: us (of the whole sequence), spread and error, or the reason why there is none."""
        import torch

        point = Point.from_dict(request["point"])
        if self.point != point:
            torch.cuda.empty_cache()
            self.problem = self._problem(point, {"module": None, "compile_seconds": 0.0})
            self.expected, self.point = self._oracle(self.problem), point
        found: dict[str, Reply] = {}
        graphs: dict[str, Captured] = {}
        for file in request["files"]:
            found[file] = {"file": file}
            try:
                self._stage("preparing", file)
                run = self._run(os.path.join(request["folder"], file))
                self._stage("checking", file)
                graphs[file] = self._checked(run, found[file], bool(request.get("final")))
            except torch.AcceleratorError:
                raise  # the context is lost, and this process with it
            except Exception as reason:  # whatever a candidate raises is its own fault
                torch.cuda.synchronize()  # raises where the context is lost
                first = next((line for line in str(reason).splitlines() if line.strip()), "")
                found[file]["reason"] = f"{type(reason).__name__}: {first}"
        self._stage("timing", request["files"][0])
        with torch.no_grad():
            times = rounds_us(graphs, request["rounds"]) if graphs else {}
        torch.cuda.synchronize()
        for file, own in times.items():
            median = statistics.median(own)
            found[file] |= {"us": round(median, 3), "spread": round((max(own) - min(own)) / median, 4)}
        return list(found.values())

    def _run(self, path: str) -> Run:
        from dataclasses import replace

        (run,) = prepare_tvm_rnn(replace(self.problem, module=path)).runs.values()
        return run

    def _checked(self, run: Run, row: Reply, repeatedly: bool) -> Captured:
        """The function as graph. Raises TvmRnnError where its result is wrong or differs from time to time."""
        import torch

        with torch.no_grad():
            if repeatedly:
                memory = memory_of(run)
                first = run_poisoned(run, memory)
                if not all(same_bits(first, run_poisoned(run, memory)) for _ in range(REPEATS)):
                    raise TvmRnnError("the result differs from run to run")
            captured = capture(run)
            poison(captured.result)
            captured.graph.replay()
        _, relative = errors(captured.result, self.expected)
        limit = tolerance(self.problem.point.precision, self.problem.point.steps)
        row["error"] = relative
        if not relative <= limit:
            raise TvmRnnError(f"wrong: error {relative:.2g}, at most {limit:.2g} is allowed")
        return captured


if __name__ == "__main__":
    main(Candidates)

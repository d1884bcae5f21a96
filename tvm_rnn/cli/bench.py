"""`tvm-rnn bench`: a module on the CPU beside its peers, or a suite of networks on a CPU or a GPU.

In: words from the user's shell. Out: a table, JSON, Markdown, a file of records, a picture. Four ways to use it:
`bench MODULE`; `bench --suite NAME` on this CPU; for a GPU `bench --suite NAME --build DIR` to compile, where the
compiler is, and `bench --suite NAME --modules DIR` to measure, where the GPU is (no compiler needed).
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tvm_rnn.errors import BuildError, ConfigError, message

from .console import print_json, print_rich, progress

CPU_PEERS = "torch,onnxruntime,openvino,numpy"
SUITE_HELP = (
    "Measure a suite. On this CPU: cpu-grid, streaming, fastrnns, deepbench, zoo or ablation. With --build or "
    "--modules on a GPU: gpu-grid, blog, deepbench, flashrnn, zoo or ablation."
)
PEERS_HELP = (
    f"Peers, comma-separated. [{CPU_PEERS}; also torch-loop, torch-compile; of a GPU: torch, or any of "
    "torch,cudnn,torch-compile,triton,flashrnn]"
)
TRAINING_HELP = "Time forward and backward passes of MODULE, on CPU or GPU, and torch's."
ONLY_HELP = "Points by words of their names: h256,b16,b64,lstm,bf16. Words of one kind are alternatives."

Suite = Annotated[str | None, typer.Option("--suite", metavar="NAME", help=SUITE_HELP)]
STREAM_HELP = "One step a call, as a stream is served: percentiles of a call's time."
Stream = Annotated[bool, typer.Option("--stream", help=STREAM_HELP)]


def bench(
    module: Annotated[
        str | None, typer.Argument(metavar="[MODULE]", help="A .so file of `compile`, for a CPU.")
    ] = None,
    against: Annotated[str | None, typer.Option("--against", help=PEERS_HELP)] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps of the sequence (T).")] = 100,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Rows (B).")] = 1,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads for everyone. [all CPUs]")] = None,
    stream: Stream = False,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Alternating rounds; their median counts.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable results, nothing else.")] = False,
    suite: Suite = None,
    build: Annotated[str | None, typer.Option("--build", metavar="DIR", help="Compile the suite's modules.")] = None,
    modules: Annotated[str | None, typer.Option("--modules", metavar="DIR", help="Measure the modules there.")] = None,
    only: Annotated[str, typer.Option("--only", metavar="WORDS", help=ONLY_HELP)] = "",
    limit: Annotated[float | None, typer.Option("--limit", min=1, help="Seconds for the run, or per module.")] = None,
    target: Annotated[str, typer.Option("--target", help="The GPU that --build compiles for.")] = "nvidia-h200",
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Compilations at a time. [one per CPU]")] = None,
    records: Annotated[
        str | None, typer.Option("--records", metavar="FILE", help="Write records as they come.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    plot: Annotated[str | None, typer.Option("--plot", metavar="FILE", help="Draw the ratios: an .svg file.")] = None,
    training: Annotated[bool, typer.Option("--training", help=TRAINING_HELP)] = False,
) -> None:
    """Time a module beside its peers, or a suite of networks on a CPU or GPU: same weights, same input.

    On a CPU each framework has a process of its own, and they take turns. On a GPU everyone is a CUDA graph, and their
    replays take turns. Results are compared with float64 first: what differs is not timed.

    [bold]Examples[/]

    $ tvm-rnn bench lstm.so --against torch,onnxruntime --steps 100 --batch 16 --threads 2

    $ tvm-rnn bench lstm.so --training --steps 100 --batch 16

    $ tvm-rnn bench --suite cpu-grid --only lstm,b1,b16 --threads 1

    $ tvm-rnn bench --suite gpu-grid --build modules --only lstm,bf16

    $ tvm-rnn bench --suite gpu-grid --modules modules --only lstm,bf16 --records grid.jsonl --limit 300
    """
    if training and (suite is not None or against is not None or stream):
        raise typer.BadParameter("--training times one MODULE, beside torch")
    if (module is None) == (suite is None):
        raise typer.BadParameter("give a MODULE to time on the CPU, or --suite to measure many networks")
    if suite is not None and build is not None and modules is not None:
        raise typer.BadParameter("--build DIR compiles a suite, --modules DIR measures it: one after the other")
    if module is not None:
        sizes = {"steps": steps, "batch": batch, "threads": threads, "rounds": rounds}
        sizes |= {} if training else {"stream": stream}
        _module(module, None if training else _words(against or CPU_PEERS), as_json, sizes)
    elif build is not None:
        _build(str(suite), only, build, as_json, {"target": target, "jobs": jobs, "limit": limit or 600.0})
    else:
        shown = {"as_json": as_json, "markdown": markdown, "plot": plot}
        peers = tuple(_words(against or (CPU_PEERS if modules is None else "torch")))
        options = {"against": peers, "limit": limit, "rounds": rounds, "threads": threads, "stream": stream}
        _suite(str(suite), only, modules, records, options, shown)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _module(module: str, peers: list[str] | None, as_json: bool, sizes: dict[str, Any]) -> None:
    """peers: None where forward and backward passes are timed."""
    from tvm_rnn.bench.run.compare import compare
    from tvm_rnn.bench.run.training import compare_training

    with progress(as_json) as stage:
        if peers is None:
            report = compare_training(module, progress=stage, **sizes)
        else:
            report = compare(module, peers, progress=stage, **sizes)
    if as_json:
        print_json(report.as_dict())
    else:
        print_rich(report.table())


def _build(name: str, only: str, folder: str, as_json: bool, options: dict[str, Any]) -> None:
    from tvm_rnn.bench.run.build_suite import build
    from tvm_rnn.bench.suites import gpu as suites
    from tvm_rnn.explain.tables import plain_table

    every, started = suites.suite(name), time.perf_counter()
    with progress(as_json) as stage:
        index = build(suites.select(every, only), folder, every=every, progress=stage, **options)
    failed = [row["reason"] for row in index.values() if "reason" in row]
    if as_json:
        print_json(index)
    else:
        table = plain_table("network", "seconds", "result")
        for network, row in index.items():
            table.add_row(network, str(row.get("seconds", "")), row.get("reason") or row["file"])
        print_rich(table, f"{len(index) - len(failed)} of {len(index)} in {time.perf_counter() - started:.0f} s")
    if failed and len(failed) == len(index):
        raise BuildError(message("none of the modules could be compiled", got=failed[0]))


def _suite(
    name: str, only: str, modules: str | None, records: str | None, options: dict[str, Any], shown: dict[str, Any]
) -> None:
    """On this CPU, or modules on the GPU."""
    from tvm_rnn.bench.run import cpu_suite, gpu_suite
    from tvm_rnn.bench.run import plot as bench_plot
    from tvm_rnn.bench.run import tables as bench_report
    from tvm_rnn.bench.suites import cpu as suites_cpu
    from tvm_rnn.bench.suites import gpu as suites

    if shown["plot"] and not shown["plot"].endswith(".svg"):
        raise ConfigError(message("--plot draws one kind of file", got=shown["plot"], expected="a name ending in .svg"))
    every = suites.suite(name, suites_cpu.SUITES if modules is None else suites.SUITES)
    points = suites.select(every, only)
    with progress(shown["as_json"]) as stage:
        more: dict[str, Any] = {"records": records, "every": every, "progress": stage}
        if modules is None:
            options["stream"] = options["stream"] or name in suites_cpu.STREAMS
            found = cpu_suite.run(points, cpu_suite.Options(**options), **more)
        else:
            own = {name: value for name, value in options.items() if name not in ("threads", "stream")}
            found = gpu_suite.run(points, modules, gpu_suite.Options(**own), **more)
    report = bench_report.report(found)
    if shown["plot"]:
        with open(shown["plot"], "w") as file:
            file.write(bench_plot.plot(report))
    if shown["as_json"]:
        print_json(found)
    elif shown["markdown"]:
        print(report.markdown())
    else:
        print_rich(report.table())

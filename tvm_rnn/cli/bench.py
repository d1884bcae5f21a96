"""`tvm-rnn bench`: a module on the CPU beside its peers, or a suite of networks on a CPU or a GPU.

In: words from the user's shell. Out: a table, JSON, Markdown, a file of records, a picture. Four ways to use it:
`bench MODULE`; `bench --suite NAME` on this CPU; for a GPU `bench --suite NAME --build DIR` to compile, where the
compiler is, and `bench --suite NAME --modules DIR` to measure, where the GPU is (no compiler needed); with both, each
module is measured while the next ones are compiled.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from tvm_rnn.errors import BuildError, ConfigError, message, unknown

from . import completion
from .console import progress, show
from .options import Jobs, Json, Rows, Steps, grouped

if TYPE_CHECKING:
    from tvm_rnn.bench.run.build_suite import Ready
    from tvm_rnn.bench.suites.gpu import Point

MODELS, COMPILE, CORTEX_M = "models", "compile", "cortex-m"
CPU_PEERS = "torch,onnxruntime,openvino,numpy"
SUITE_HELP = (
    "Measure a suite. On this CPU: cpu-grid, cpu-random, streaming, audio, browser, cortex-m (instructions in QEMU), "
    "generate, fastrnns, deepbench, zoo, ablation, linear, heads, models (whole ones, of packages) or compile (CPU "
    "seconds that compiling takes). "
    "With --build or --modules on a GPU: gpu-grid, any-batch, off-grid, random, generate, images, spikes, blog, "
    "deepbench, flashrnn, heads, members, zoo, ablation or linear."
)
PEERS_HELP = (
    f"Peers, comma-separated. [{CPU_PEERS}; also ncnn, tract, litert, tflite-micro, torch-loop, torch-compile, "
    "torch-cuda-graph; on a GPU torch, cudnn, cudnn-fp16, torch-compile, triton, flashrnn, and for modules that "
    "generate also torch-cuda, torch-cuda-compile, torch-cuda-graph]"
)
TRAINING_HELP = "Time forward and backward passes of MODULE, on CPU or GPU, and torch's."
ONLY_HELP = "Points by words of their names: h256,b16,b64,lstm,bf16. Words of one kind are alternatives."
POINTS_HELP = "Points from number A up to B, in the suite's order: a part of a long run. [all]"

STREAM_HELP = (
    "One step a call, as a stream is served: percentiles of a call's time. With models: C programs, on one thread."
)
PACKAGES_HELP = (
    "The folder of the models suite's packages [where Python finds them]; for browser: node_modules; for cortex-m: "
    "CMSIS-NN's sources."
)
DEVICE_HELP = "Where the models suite is measured; on a GPU its torch models alone."
RTNEURAL_HELP = "Sources of RTNeural, to be built and measured in the audio suite."
MODULE_HELP = "A .so file of `compile`, for a CPU."


@dataclass(frozen=True)
class Timing:
    """What is timed, and how often."""

    against: Annotated[str | None, typer.Option(metavar="NAMES", help=PEERS_HELP)] = None
    steps: Steps = 100
    batch: Rows = 1
    threads: Annotated[int | None, typer.Option(metavar="N", min=1, help="Threads for everyone. [all CPUs]")] = None
    stream: Annotated[bool, typer.Option("--stream", help=STREAM_HELP)] = False
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="Alternating rounds; their median counts.")] = 7
    training: Annotated[bool, typer.Option("--training", help=TRAINING_HELP)] = False

    def peers(self, usual: str) -> list[str]:
        """The peers' names; usual: where none were given."""
        return [word.strip() for word in (self.against or usual).split(",") if word.strip()]


@dataclass(frozen=True)
class SuiteOptions:
    """Which networks are measured, and which part of the work is done here."""

    suite: Annotated[str | None, typer.Option(metavar="NAME", help=SUITE_HELP, autocompletion=completion.suites)] = None
    build: Annotated[str | None, typer.Option(metavar="DIR", help="Compile the suite's modules.")] = None
    modules: Annotated[str | None, typer.Option(metavar="DIR", help="Measure the modules there.")] = None
    only: Annotated[str, typer.Option(metavar="WORDS", help=ONLY_HELP)] = ""
    points: Annotated[str, typer.Option(metavar="A:B", help=POINTS_HELP)] = ""
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Seed of the networks that random and cpu-random draw. [0]")
    ] = None
    limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=1, help="Seconds for the run, or per module.")
    ] = None
    target: Annotated[str, typer.Option(metavar="TARGET", help="The GPU that --build compiles for.")] = "nvidia-h200"
    arch: Annotated[str, typer.Option(metavar="NAMES", help="Archs for --build, e.g. compute_80.")] = ""
    jobs: Jobs = None
    rtneural: Annotated[str | None, typer.Option(metavar="DIR", help=RTNEURAL_HELP)] = None
    packages: Annotated[str | None, typer.Option(metavar="DIR", help=PACKAGES_HELP)] = None
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help=DEVICE_HELP)] = "cpu"


@dataclass(frozen=True)
class Shown:
    """Where results go."""

    as_json: Json = False
    records: Annotated[str | None, typer.Option(metavar="FILE", help="Write records as they come.")] = None
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Draw the ratios: an .svg file.")] = None


@grouped
def bench(
    timing: Timing,
    suite: SuiteOptions,
    shown: Shown,
    module: Annotated[str | None, typer.Argument(metavar="[MODULE]", help=MODULE_HELP)] = None,
) -> None:
    """Time a module beside its peers, or a suite of networks on a CPU or GPU: same weights, same input.

    On a CPU each framework has a process of its own, and they take turns. On a GPU everyone is a CUDA graph, and their
    replays take turns. Results are compared with float64 first: what differs is not timed. A module that was compiled
    to generate is timed generating.

    **Examples**

    $ tvm-rnn bench lstm.so --against torch,onnxruntime --steps 100 --batch 16 --threads 2

    $ tvm-rnn bench lstm.so --training --steps 100 --batch 16

    $ tvm-rnn bench --suite cpu-grid --only lstm,b1,b16 --threads 1

    $ tvm-rnn bench --suite generate --only v256 --against torch,torch-compile

    $ tvm-rnn bench --suite audio --rtneural RTNeural --records audio.jsonl

    $ tvm-rnn bench --suite browser --packages node_modules --records browser.jsonl

    $ tvm-rnn bench --suite cortex-m --packages CMSIS-NN --records cortex-m.jsonl

    $ tvm-rnn bench --suite models --packages DIR --threads 1 --records models.jsonl

    $ tvm-rnn bench --suite models --stream --only silero --packages DIR --records frames.jsonl

    $ tvm-rnn bench --suite compile --only lstm,rwkv7 --records compile.jsonl

    $ tvm-rnn bench --suite gpu-grid --build modules --only lstm,bf16

    $ tvm-rnn bench --suite gpu-grid --modules modules --only lstm,bf16 --records grid.jsonl --limit 300

    $ tvm-rnn bench --suite random --seed 1 --points 0:50 --build modules --modules modules --limit 300
    """
    _check(module, timing, suite)
    if module is not None:
        _module(module, timing, shown)
    elif suite.suite == MODELS:
        _models(suite, timing, shown)
    elif suite.suite == COMPILE:
        _compile_times(suite, shown)
    elif suite.suite == CORTEX_M:
        _cortex_m(suite, shown)
    elif suite.build is not None and suite.modules is None:
        _build(suite, suite.build, shown)
    else:
        _suite(suite, timing, shown)


def _check(module: str | None, timing: Timing, suite: SuiteOptions) -> None:
    """Whether options go together. Raises BadParameter, and ConfigError for a suite that is not there."""
    if suite.rtneural is not None and suite.suite != "audio":
        raise typer.BadParameter("--rtneural DIR is for --suite audio")
    if timing.training and (suite.suite is not None or timing.against is not None or timing.stream):
        raise typer.BadParameter("--training times one MODULE, beside torch")
    if (module is None) == (suite.suite is None):
        raise typer.BadParameter("give a MODULE to time on the CPU, or --suite to measure many networks")
    both = suite.suite is not None and suite.build is not None and suite.modules is not None
    if both and (suite.build != suite.modules or suite.suite == "generate"):
        raise typer.BadParameter("--build DIR --modules DIR is for one folder, and not for --suite generate")
    if suite.points and suite.suite in (None, MODELS, COMPILE, CORTEX_M):
        raise typer.BadParameter("--points A:B is a part of a suite's networks")
    if suite.packages is not None and suite.suite not in (MODELS, "browser", CORTEX_M):
        raise typer.BadParameter("--packages DIR is for --suite models, browser or cortex-m")
    if suite.device not in ("cpu", "cuda") or (suite.device != "cpu" and suite.suite != MODELS):
        raise typer.BadParameter("--device is cpu, or cuda for the torch models of --suite models")
    if suite.suite is not None:
        _check_suite(suite.suite, suite.build is not None or suite.modules is not None)


def _check_suite(name: str, on_gpu: bool) -> None:
    """Whether there is such a suite, and it is measured where it was asked for. Raises ConfigError."""
    from tvm_rnn.bench.suites import cpu as suites_cpu
    from tvm_rnn.bench.suites import gpu as suites

    cpu = {*suites_cpu.SUITES, MODELS, COMPILE}
    if name not in cpu | suites.SUITES.keys():
        raise ConfigError(message("--suite: no such suite", **unknown("suite", name, cpu | suites.SUITES.keys())))
    if not on_gpu and name not in cpu:
        do = "--build DIR compiles its modules, then --modules DIR measures them where the GPU is"
        raise ConfigError(message(f"--suite {name} is measured on a GPU", got="neither --build nor --modules", do=do))
    if on_gpu and name not in suites.SUITES:
        do = "leave --build and --modules out"
        raise ConfigError(message(f"--suite {name} is measured on a CPU", got="--build or --modules", do=do))


def _module(module: str, timing: Timing, shown: Shown) -> None:
    """One module beside its peers, or its forward and backward passes beside torch's."""
    from tvm_rnn.bench.run.compare import compare
    from tvm_rnn.bench.run.training import compare_training

    steps, batch, rounds, threads = timing.steps, timing.batch, timing.rounds, timing.threads
    with progress(shown.as_json) as stage:
        if timing.training:
            report = compare_training(module, steps=steps, batch=batch, threads=threads, rounds=rounds, progress=stage)
        else:
            report = compare(
                module,
                timing.peers(CPU_PEERS),
                steps=steps,
                batch=batch,
                threads=threads,
                rounds=rounds,
                stream=timing.stream,
                progress=stage,
            )
    show(shown.as_json, report.as_dict(), report.table())


def _models(suite: SuiteOptions, timing: Timing, shown: Shown) -> None:
    """Whole models of packages: ONNX files beside ONNX Runtime, torch models beside torch."""
    from tvm_rnn.bench.run import models_suite, onnx_files, onnx_streams, whole_models

    own = models_suite.chosen(suite.only.replace(",", " ").split(), suite.packages, suite.device)
    if timing.stream:
        own, timing = replace(own, models=[]), replace(timing, threads=1)
    options = onnx_files.Options(timing.threads, suite.limit, timing.rounds)
    one = onnx_streams.measured if timing.stream else None
    with progress(shown.as_json) as stage:
        found = models_suite.run(own, options, shown.records, one=one, progress=stage)
    tables = (onnx_streams.table(found),) if timing.stream else onnx_files.table(found) if own.files else ()
    show(shown.as_json, found, *tables, *([whole_models.table(found)] if own.models else []))


def _compile_times(suite: SuiteOptions, shown: Shown) -> None:
    """CPU seconds of compiling, for inference and with training."""
    from tvm_rnn.bench.run import compile_times
    from tvm_rnn.bench.suites.compile_times import networks

    options = compile_times.Options(suite.jobs or 1, suite.limit)
    with progress(shown.as_json) as stage:
        found = compile_times.run(list(networks(suite.only)), options, shown.records, progress=stage)
    show(shown.as_json, found, *compile_times.table(found))


def _cortex_m(suite: SuiteOptions, shown: Shown) -> None:
    """Instructions of a step on a microcontroller, in an emulator."""
    from tvm_rnn.bench.run import cortex_m_suite
    from tvm_rnn.bench.suites import cpu, gpu
    from tvm_rnn.plain_c.folder import write_c

    points, packages = gpu.select(cpu.cortex_m(), suite.only), suite.packages
    with progress(shown.as_json) as stage:
        found = cortex_m_suite.run(points, write_c, shown.records, limit=suite.limit, packages=packages, progress=stage)
    show(shown.as_json, found, cortex_m_suite.table(found))


def _build(suite: SuiteOptions, folder: str, shown: Shown) -> None:
    """The modules of a suite, compiled into a folder."""
    from tvm_rnn.bench.run.build_suite import build
    from tvm_rnn.bench.suites import gpu as suites
    from tvm_rnn.explain.tables import plain_table
    from tvm_rnn.frontends.spec import parse_names

    every, started = suites.suite(str(suite.suite), seed=suite.seed), time.perf_counter()
    with progress(shown.as_json) as stage:
        index = build(
            suites.select(suites.part(every, suite.points), suite.only),
            folder,
            every=every,
            target=suite.target,
            arch=parse_names(suite.arch),
            jobs=suite.jobs,
            limit=suite.limit or 600.0,
            progress=stage,
            alone=suite.suite in suites.DRAWN,
        )
    failed = [row["reason"] for row in index.values() if "reason" in row]
    table = plain_table("network", "seconds", "result")
    for network, row in index.items():
        table.add_row(network, str(row.get("seconds", "")), row.get("reason") or row["file"])
    done = f"{len(index) - len(failed)} of {len(index)} in {time.perf_counter() - started:.0f} s"
    show(shown.as_json, index, table, done)
    if failed and len(failed) == len(index):
        raise BuildError(message("none of the modules could be compiled", got=failed[0]))


def _building(suite: SuiteOptions, points: list[Point], every: list[Point]) -> AbstractContextManager[Ready]:
    """The same in a process beside this one."""
    from tvm_rnn.bench.run.build_suite import building
    from tvm_rnn.bench.suites import gpu as suites
    from tvm_rnn.frontends.spec import parse_names

    return building(
        points,
        str(suite.build),
        every=every,
        target=suite.target,
        arch=parse_names(suite.arch),
        jobs=suite.jobs,
        alone=suite.suite in suites.DRAWN,
    )


def _suite(suite: SuiteOptions, timing: Timing, shown: Shown) -> None:
    """On this CPU, or modules on the GPU."""
    from tvm_rnn.bench.run import generation_suite, gpu_suite
    from tvm_rnn.bench.run import plot as bench_plot
    from tvm_rnn.bench.run import tables as bench_report
    from tvm_rnn.bench.suites import cpu as suites_cpu
    from tvm_rnn.bench.suites import gpu as suites
    from tvm_rnn.npy_files import text_writer, write_whole
    from tvm_rnn.vega_lite import check_plot

    if shown.plot:
        check_plot(shown.plot)
    name = str(suite.suite)
    every = suites.suite(name, suites_cpu.SUITES if suite.modules is None else suites.SUITES, suite.seed)
    points = suites.select(suites.part(every, suite.points), suite.only)
    with progress(shown.as_json) as stage:
        if suite.modules is None:
            from tvm_rnn.bench.run import audio_suite, browser_suite, cpu_suite  # no sooner: they need the compiler

            on_cpu = cpu_suite.Options(
                tuple(timing.peers(suites_cpu.PEERS.get(name, CPU_PEERS))),
                threads=timing.threads,
                limit=suite.limit,
                rounds=timing.rounds,
                stream=timing.stream or name in suites_cpu.STREAMS,
            )
            if name == "audio":
                found = audio_suite.run(points, on_cpu, shown.records, rtneural=suite.rtneural, progress=stage)
            elif name == "browser":
                found = browser_suite.run(points, on_cpu, shown.records, packages=suite.packages, progress=stage)
            else:
                found = cpu_suite.run(points, on_cpu, shown.records, every=every, progress=stage)
        else:
            peers = tuple(timing.peers(suites.PEERS.get(name, "torch")))
            on_gpu = gpu_suite.Options(peers, limit=suite.limit, rounds=timing.rounds)
            own = (points, suite.modules, on_gpu, shown.records)
            if suite.build is not None:
                with _building(suite, points, every) as ready:
                    found = gpu_suite.run(*own, every=every, ready=ready, progress=stage)
            else:
                of_kind = generation_suite if name == "generate" else gpu_suite
                found = of_kind.run(*own, every=every, progress=stage)
    report = bench_report.report(found, worst_first=name in suites.DRAWN)
    if shown.plot:
        write_whole({shown.plot: text_writer(bench_plot.plot(report))})
    if shown.markdown and not shown.as_json:
        print(report.markdown())
    else:
        show(shown.as_json, found, report.table())

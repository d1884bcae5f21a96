"""Time a module's forward_train and backward beside torch's: the same weights, inputs and gradients.

In: a .so file that was compiled for training, sizes. Out: a `Report` as compare.py's, of one row for the module and one
for torch.nn's layer. Gradients are compared with the float64 oracle first, over at most CHECKED steps; what differs is
not timed. On a GPU both are CUDA graphs whose replays take turns; on a CPU both run in this process, in turn, with
pauses so that one's threads sleep before the other's begin. Of a point of a GPU's suite the same, as records.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tvm_rnn.bench.measure.gpu_graphs import capture, replay_us
from tvm_rnn.bench.peers import images, neurons, torch_training
from tvm_rnn.bench.peers.models import GpuProblem, Unsupported, in_a_line, in_one_piece, net_of
from tvm_rnn.errors import ConfigError, TvmRnnError, WeightError, message
from tvm_rnn.network.rnn import RNN
from tvm_rnn.oracle.reference import reference
from tvm_rnn.oracle.torch_graph import Rows
from tvm_rnn.runtime.runtime import load, read_container
from tvm_rnn.worker_process import Reply

from .compare import OURS, SETTLE_SECONDS, Report, Row, run_facts, spread

if TYPE_CHECKING:
    import torch

CHECKED = 16  # steps that the oracle differentiates, of at most MOST_ROWS rows: seconds for large layers
MOST_ROWS = 8
MOST_FLOPS = 1e11  # of what the oracle differentiates: fewer rows and steps of images
# Largest relative error of a gradient in the Euclidean norm.
LIMITS = {"float64": 1e-10, "float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
MOST_MOVED = 0.2
BOTH = "both passes"
SEED = 1  # of the masks of a network with regularisers
Run = Callable[[], object]
Array = Any  # of NumPy or torch, as the module takes it
Nested = Any  # gradients, in tuples and dicts


def compare_training(
    module: str | os.PathLike[str],
    *,
    steps: int = 100,
    batch: int = 16,
    threads: int | None = None,
    rounds: int = 7,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """One step of training without its optimiser: y and all gradients, microseconds per time step.

    Raises ConfigError for a module that does not train or is of no cell of the zoo, WeightError for one without
    weights, LoadError for the file.
    """
    tell, path = progress or (lambda text: None), os.path.abspath(os.fspath(module))
    manifest, weights = read_container(path)
    if "forward_train" not in manifest.entry_points:
        do = "compile it with --training"
        raise ConfigError(message("the module does not train", where=path, got=[*manifest.entry_points], do=do))
    if not {item.name for item in manifest.weights} <= weights.keys():
        do = "compile it with weights (--seed 0 or --weights w.safetensors)"
        raise WeightError(message("a module without weights cannot be compared", where=path, do=do))
    try:
        net = net_of(manifest).load({item.name: weights[item.name] for item in manifest.weights})
    except Unsupported as reason:
        do = "call forward_train and backward, and time them"
        raise ConfigError(message("only cells of the zoo are compared", got=str(reason), do=do)) from None
    threads = threads or len(os.sched_getaffinity(0))
    bench = (_OnGpu if "variants" in manifest else _OnCpu)(path, net, threads)
    tell("computing the oracle")
    flops = 3 * float(manifest.flops_per_row)
    sizes = checked(steps, batch, flops)
    error = bench.check(*sizes)
    limit = bench.limit(manifest.get("precision", ""), error, *sizes)
    if not error <= limit:
        raise ConfigError(message("the gradients differ from the oracle", got=f"{error:.1e}", expected=f"<= {limit}"))
    tell("measuring")
    busy = [os.getloadavg()[0]]
    found = bench.measure(steps, batch, rounds)
    ours = statistics.median(found[OURS][1]) / steps
    rows = list[Row]()
    for name, (_, times) in found.items():  # FLOPs of training: of inference, three times
        median = statistics.median(times) / steps
        mine = name == OURS
        figures = (flops * batch / median / 1e3, None if mine else median / ours, error if mine else None)
        rows.append(Row(name, "", "training", median, spread(times), *figures))
    rows += [Row("torch", reason=bench.reason)] if "torch" not in found else []
    busy.append(os.getloadavg()[0])
    facts = run_facts(path, manifest, busy, steps=steps, batch=batch, threads=threads, rounds=rounds)
    return Report(tuple(rows), bench.facts(facts))


def measure_on_gpu(
    problem: GpuProblem, rounds: int, frameworks: Sequence[str] = (), begin: Callable[[str, str], None] | None = None
) -> dict[str, Reply]:
    """Records of both passes, by framework, as the worker of a GPU's suite has them: times, or the reason why not.
    frameworks: of these all that are in `torch_training` run beside the module and torch's own layers. begin: told
    each stage of the work, and whose it is."""
    point, work, facts = problem.point, {"bytes": problem.bytes}, Reply()
    try:
        if problem.module is None:
            raise Unsupported("no module was built for it")
        bench = _OnGpu(problem.module, problem.net, 1)
        bench.begin = begin or bench.begin
        bench.reset, bench.loops = problem.reset, tuple(n for n in frameworks if n in torch_training.NAMES)
        bench.module.load_weights(problem.net.weights)
        flops = 3 * float(bench.module.manifest.get("flops_per_row") or 0)
        facts = {"version": bench.module.manifest.versions["tvm_rnn"], "flops_per_row": flops}
        sizes = checked(point.steps, point.batch, flops)
        error = bench.check(*sizes)
        limit = bench.limit(point.precision, error, *sizes)
        if not error <= limit:
            raise Unsupported(f"error {error:.2g} of a gradient, at most {limit:.2g} is allowed")
        found = bench.measure(point.steps, point.batch, rounds)
    except (Unsupported, TvmRnnError) as reason:
        return {OURS: {"framework": OURS, **facts, **work, "reason": str(reason).splitlines()[0]}}
    rows = {}
    for name, (config, times) in found.items():
        us = statistics.median(times)
        timing = {"us": us, "us_per_step": us / point.steps, "spread": spread(times), "config": config}
        rows[name] = {"framework": name, **(facts | {"error": error} if name == OURS else {}), **timing, **work}
    missing = {"torch": {"framework": "torch", "reason": bench.reason, **work}} if bench.reason else {}
    missing |= {name: {"framework": name, "reason": why, **work} for name, why in bench.failed.items()}
    return {**missing, **rows}


def checked(steps: int, batch: int, flops: float) -> tuple[int, int]:
    """Of how many steps and rows the oracle computes gradients; flops: of a row in a step. At least two of each, where
    there are as many."""
    rows = min(batch, MOST_ROWS, max(2, int(MOST_FLOPS / (2 * max(flops, 1)))))
    return min(steps, CHECKED, max(2, int(MOST_FLOPS / (rows * max(flops, 1))))), rows


class _OnCpu:
    """Both in this process. reset: [T, B], where rows begin anew. loops: further frameworks; failed: why one of them
    does not run. begin: told each stage, and whose it is."""

    begin: Callable[[str, str], None] = staticmethod(lambda stage, framework: None)
    reset: torch.Tensor | None = None
    loops: tuple[str, ...] = ()
    failed: Mapping[str, str] = {}

    def __init__(self, path: str, net: RNN, threads: int) -> None:
        self.net, self.threads, self.reason = net, threads, ""
        self.module: Any = load(path)  # one that trains, on a CPU or a GPU
        self._set_threads()

    def _set_threads(self) -> None:
        self.module.threads = self.threads

    def facts(self, found: Reply) -> Reply:
        return found

    def given(self, value: np.ndarray) -> Array:
        return value.astype(self.net.dtype)

    def check(self, steps: int, batch: int) -> float:
        """The largest relative error of a gradient."""
        x, gy = self._arrays(steps, batch)
        found = self._gradients(x, gy)
        expected = self._expected([plain(value) for value in x], plain(gy))
        return max(_error(a, b) for a, b in zip(_flat(found), expected, strict=True))

    def _expected(self, x: list[np.ndarray], gy: np.ndarray) -> list[np.ndarray]:
        """Exact gradients."""
        names, reset = [a.name for a in self.net.cell.inputs], self._rows(*gy.shape[:2]).get("reset")
        more = {} if reset is None else {"reset": reset.cpu().numpy()}
        given = dict(zip(names, x, strict=True)), None, gy, None
        return _flat(reference(self.net, SEED).gradients(*given, **more))

    def limit(self, precision: str, error: float, steps: int, batch: int) -> float:
        """How large an error may be: more than the table has where rounding inputs alone moves exact gradients as far,
        but never more than MOST_MOVED."""
        own = LIMITS["float16" if precision == "tf32" else self.net.dtype]
        if error <= own:
            return own
        x, gy = self._arrays(steps, batch)
        rng, exact = np.random.default_rng(1), [plain(value) for value in x]
        moved = [value * (1 + ROUNDING[self.net.dtype] * rng.uniform(-1, 1, value.shape)) for value in exact]
        found = [self._expected(given, plain(gy)) for given in (exact, moved)]
        return own + min(MOST_MOVED, 2 * max(_error(b, a) for a, b in zip(*found, strict=True)))

    def _arrays(self, steps: int, batch: int) -> tuple[list[Array], Array]:
        rng = np.random.default_rng(0)
        shapes = list(self.net.input_shapes.values())
        x = [self.given(rng.uniform(-1, 1, (steps, batch, *shape))) for shape in shapes]
        return x, self.given(rng.uniform(-1, 1, (steps, batch, *self.net.output_shape)))

    def _gradients(self, x: list[Array], gy: Array) -> Nested:
        more = self._rows(*x[0].shape[:2]) | ({"seed": SEED} if "masks" in self.module.manifest else {})
        _, _, tape = self.module.forward_train(x[0] if len(x) == 1 else tuple(x), **more)
        return self.module.backward(tape, gy)

    def _rows(self, steps: int, batch: int) -> Reply:
        """Resets of so many steps and rows, as the module takes them; none, where there are none."""
        return {} if self.reset is None else {"reset": self.reset[:steps, :batch].contiguous()}

    def _loop(self, name: str, x: list[Array], gy: Array) -> Run:
        """The cell's equations by torch."""
        import torch

        above, inputs = torch.as_tensor(gy), [torch.as_tensor(value) for value in x]
        return torch_training.both_passes(self.net, name, inputs, above, Rows(reset=self.reset))

    def _torch(self, x: list[Array], gy: Array) -> dict[str, Run]:
        """The same by torch, in each way that may be its quickest; none, and `reason`, where it has no such layer."""
        try:
            import torch

            if self.reset is not None:
                raise ConfigError("its layers know no resets")
            layers = self._layers()
        except (ImportError, ConfigError, Unsupported) as reason:
            self.reason = str(reason).splitlines()[0]
            return {}
        above = torch.as_tensor(gy)

        def run(layer: torch.nn.Module, leaf: torch.Tensor) -> torch.Tensor:
            for value in (leaf, *layer.parameters()):
                value.grad = None
            y, _ = layer(leaf)
            y.backward(above)
            return cast("torch.Tensor", y)

        leaf = torch.as_tensor(x[0]).clone().requires_grad_(True)
        return {name: partial(run, layer, leaf) for name, layer in layers.items()}

    def _layers(self) -> dict[str, torch.nn.Module]:
        import torch

        from tvm_rnn.frontends.torch import to_torch_layer

        torch.set_num_threads(self.threads)
        return {BOTH: to_torch_layer(self.net).train()}

    def measure(self, steps: int, batch: int, rounds: int) -> dict[str, tuple[str, list[float]]]:
        """The best configuration of each framework, and its microseconds."""
        x, gy = self._arrays(steps, batch)
        self.begin("preparing", OURS)
        timers = {(OURS, BOTH): self.timer(lambda: self._gradients(x, gy))}
        for config, run in self._torch(x, gy).items():
            self.begin("preparing", "torch")
            try:
                timers["torch", config] = self.timer(run)
            except Exception as reason:  # its compiler may raise anything, and ours is to be reported
                self.reason = f"{config}: {in_a_line(reason)}"
        for name in self.loops:
            self.begin("preparing", name)
            try:
                timers[name, BOTH] = self.timer(self._loop(name, x, gy))
            except Exception as reason:
                self.failed = {**self.failed, name: in_a_line(reason)}
        self.begin("timing", OURS)
        times: dict[tuple[str, str], list[float]] = {key: [] for key in timers}
        for _ in range(rounds):
            for key, timer in timers.items():
                times[key].append(timer())
        found: dict[str, tuple[str, list[float]]] = {}
        for (name, config), own in sorted(times.items(), key=lambda item: statistics.median(item[1])):
            found.setdefault(name, (config, own))
        return {name: found[name] for name in dict.fromkeys(name for name, _ in timers)}

    def timer(self, run: Run) -> Callable[[], float]:
        """What times a call, in microseconds, after the other's threads have gone to sleep."""
        run()

        def once() -> float:
            time.sleep(SETTLE_SECONDS)
            run()
            start = time.perf_counter()
            run()
            return (time.perf_counter() - start) * 1e6

        return once


class _OnGpu(_OnCpu):
    """Both as CUDA graphs."""

    def _set_threads(self) -> None:
        import torch

        self.torch = torch
        tf32 = self.module.manifest["precision"] == "tf32"
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32

    def facts(self, found: Reply) -> Reply:
        versions = {**found["versions"], "torch": self.torch.__version__}
        return {**found, "cpu": self.torch.cuda.get_device_name(), "versions": versions}

    def given(self, value: np.ndarray) -> Array:
        return self.torch.as_tensor(value, device="cuda").to(getattr(self.torch, self.net.dtype))

    def _layers(self) -> dict[str, torch.nn.Module]:
        if images.knows(self.net):
            dtype = getattr(self.torch, self.net.dtype)
            return {f"{BOTH}, {name}": layer.cuda() for name, layer in images.layers(self.net, dtype).items()}
        if self.net.members:
            from tvm_rnn.bench.peers import members

            return {f"{BOTH}, {name}": layer.train() for name, layer in members.layers(self.net, "cuda").items()}
        if neurons.knows(self.net):
            return {f"{BOTH}, {name}": own for name, own in neurons.layers(getattr(self.torch, self.net.dtype)).items()}
        return {name: in_one_piece(layer.cuda()) for name, layer in super()._layers().items()}

    def timer(self, run: Run) -> Callable[[], float]:
        captured = capture(run)
        return lambda: replay_us(captured, 1)


def plain(value: Array) -> np.ndarray:
    """In float64, on the CPU."""
    return np.asarray(value.double().cpu() if hasattr(value, "cpu") else value, np.float64)


def _flat(found: Nested) -> list[np.ndarray]:
    if isinstance(found, dict):
        return [part for name in sorted(found) for part in _flat(found[name])]
    if isinstance(found, list | tuple):
        return [part for value in found for part in _flat(value)]
    return [plain(found)]


def _error(got: np.ndarray, expected: np.ndarray) -> float:
    error = float(np.linalg.norm(got - expected) / max(float(np.linalg.norm(expected)), 1e-30))
    return error if np.isfinite(error) else float("inf")

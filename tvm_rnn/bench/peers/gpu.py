"""The frameworks of a GPU benchmark, each ready to be captured in a CUDA graph: ours, torch, cuDNN, torch.compile,
Triton, FlashRNN.

In: a `GpuProblem`: a point of a suite, its network with weights, its inputs on the GPU. Out: `Prepared`: functions
of no arguments, (y [T, B, D*H], state or None). All have the same weights, inputs and dtype; `Unsupported` says what a
framework lacks. Whatever takes long, such as a peer's own compiler, happens in the first call.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from tvm_rnn.oracle.torch_graph import TorchModel

from . import images, neurons
from .models import TORCH_CELLS, GpuProblem, Prepared, Unsupported, imported, in_one_piece, torch_layer

if TYPE_CHECKING:
    import torch

# Sizes of a Triton program's tile (rows of the batch, hidden units, depth): each is a configuration that is timed.
TRITON_TILES = ((16, 16, 128), (16, 32, 64), (64, 32, 64), (64, 16, 128))
AGAIN_SECONDS = 1.0  # a compiler that catches what stops it is stopped again
FLASHRNN_KERNELS = ("cuda_fused", "cuda")


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise Unsupported in the body once it has taken so long. For the main thread; between two steps of Python."""
    stopped = Unsupported(f"its compiler was stopped after {seconds:g} s")
    late = []

    def stop(_number: int, _frame: FrameType | None) -> None:
        late.append(True)
        raise stopped

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
    try:
        yield
    except Exception:
        if not late:
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if late:  # a compiler may have made another exception of it, or have gone on with less
        raise stopped


def prepare_tvm_rnn(problem: GpuProblem) -> Prepared:
    """This project's module, called as its user calls it."""
    from tvm_rnn.runtime.runtime import load

    if problem.module is None:
        raise Unsupported("no module was built for it")
    module = load(problem.module)
    module.load_weights(problem.net.weights)
    x = problem.inputs if len(problem.inputs) > 1 else problem.inputs[0]
    manifest = module.manifest
    ran = regime(manifest, problem.point.batch, problem.point.steps)
    facts = {"regime": ran, "flops_per_row": manifest.get("flops_per_row")}
    lengths = None if problem.lengths is None else problem.lengths.long()  # as kernels read them
    run = partial(module, x, lengths=lengths, reset=problem.reset)
    return Prepared(manifest.versions["tvm_rnn"], {"compiled": run}, facts)


def regime(manifest: Mapping[str, Any], batch: int, steps: int) -> str:
    """How a module's steps run at one B and T, in a few words, for layers that differ one after the other.

    The manifest's rows are in the order in which a call tries them; those of a whole time loop say up to which B.
    """

    def fits(row: Mapping[str, Any]) -> bool:
        wave = "least_batch" in row  # else layers one by one run: step by step, where there are too few steps
        if "most" not in row or (wave and (steps < row["least_steps"] or batch < row["least_batch"])):
            return False
        longest = {int(rows): most for rows, most in row.get("most_steps", {}).items()}
        if longest and steps > longest[min((rows for rows in longest if batch <= rows), default=max(longest))]:
            return False
        return row["most"] is None or batch <= int(row["most"])

    rows, found = manifest["templates"], []
    for layer in sorted({layer for row in rows for layer in row.get("layers", [0])}):
        own = [row for row in rows if layer in row.get("layers", [0])]
        whole = next(filter(fits, own), None)
        if whole is None or steps < whole.get("least_steps", 1):
            groups = [row for row in own if "most" not in row and str(row.get("unit", "")).startswith("step")]
            names = dict.fromkeys(row["template"] for row in groups)
            found += [f"step by step: {', '.join(names)}"] if names else []
        else:
            phases = f", {whole['phases']} phases" if whole.get("phases", 1) > 1 else ""
            found.append(f"{'a wave of ' if 'least_batch' in whole else ''}{whole['template']}{phases}")
    return "; ".join(dict.fromkeys(found))


def prepare_torch(problem: GpuProblem) -> Prepared:
    """torch.nn, which calls cuDNN, in evaluation mode. Lengths: rows are packed before, and y is padded behind it."""
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    point, net = problem.point, problem.net
    _without_resets(problem)
    if images.knows(net) and problem.lengths is None:
        return _prepare_images(problem)
    if net.members and problem.lengths is None:
        return _prepare_members(problem)
    if neurons.knows(net) and problem.lengths is None:
        (x,) = problem.inputs
        runs = {name: partial(own, x) for name, own in neurons.layers(x.dtype).items()}
        return Prepared(f"{torch.__version__}, spikingjelly {neurons.version()}", runs, compiling=tuple(runs))
    if point.cell not in TORCH_CELLS:
        raise Unsupported(f"it has no cell {point.cell}")
    layer = in_one_piece(torch_layer(net).to(problem.device))
    (x, *_), lengths = problem.inputs, None if problem.lengths is None else problem.lengths.cpu()

    def run() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        y, last = layer(x if lengths is None else pack_padded_sequence(x, lengths))
        y = y if lengths is None else pad_packed_sequence(y)[0]
        states = [state.name for state in net.cell.states]
        return y, dict(zip(states, last if isinstance(last, tuple) else (last,), strict=True))

    cudnn = torch.backends.cudnn.version()
    return Prepared(f"{torch.__version__}, cuDNN {cudnn}", {"torch.nn": run})


def _prepare_images(problem: GpuProblem) -> Prepared:
    """torch's convolutions, which are cuDNN's, and the rest of the cell pointwise, in both orders of axes."""
    import torch

    (x,) = problem.inputs
    runs = {name: partial(layer.to(x.device), x) for name, layer in images.layers(problem.net, x.dtype).items()}
    version = f"{torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    return Prepared(version, runs, compiling=tuple(name for name in runs if "compiled" in name))


def _prepare_members(problem: GpuProblem) -> Prepared:
    """A layer of torch.nn for each member."""
    import torch

    from . import members

    (x,) = problem.inputs
    runs = {name: partial(layer, x) for name, layer in members.layers(problem.net, problem.device).items()}
    return Prepared(f"{torch.__version__}, cuDNN {torch.backends.cudnn.version()}", runs)


def prepare_cudnn(problem: GpuProblem, converted: bool = False) -> Prepared:
    """cuDNN through its own API, with each of its algorithms. converted: float32 multiplied as float16."""
    from . import cudnn as peers_cudnn

    _without_resets(problem)
    runs = peers_cudnn.models(problem, peers_cudnn.CONVERTED if converted else peers_cudnn.MATHS)
    compiling = [name for name, model in runs.items() if model.compiles]
    families = {name: run.algorithm for name, run in runs.items()}
    return Prepared(f"cuDNN {peers_cudnn.load().version}", runs, compiling=compiling, families=families)


def _without_resets(problem: GpuProblem) -> None:
    if problem.reset is not None:
        raise Unsupported("it knows no resets")


def prepare_torch_loop(problem: GpuProblem) -> Prepared:
    """The cell's equations in torch's operations, one after the other; what inputs allow is done before the loop."""
    import torch

    model = TorchModel(problem.net, problem.dtype, problem.device)
    run = partial(model, problem.inputs, problem.lengths, problem.reset)
    return Prepared(torch.__version__, {"input product hoisted": run})


def prepare_torch_compile(problem: GpuProblem) -> Prepared:
    """torch.compile of the same: of one step, and of what is done before the loop."""
    import torch

    torch._dynamo.reset()
    compiled = partial(torch.compile, dynamic=False, fullgraph=True)
    model = TorchModel(problem.net, problem.dtype, problem.device, compiled)
    runs = {"input product hoisted": partial(model, problem.inputs, problem.lengths, problem.reset)}
    return Prepared(torch.__version__, runs, compiling=tuple(runs))


def prepare_triton(problem: GpuProblem) -> Prepared:
    """A Triton kernel per step: the recurrent product and the rest of the cell; cuBLAS before the loop."""
    with imported("triton"):
        import triton

        from .triton import CELLS, TritonModel
    if problem.point.cell not in CELLS:
        raise Unsupported(f"nobody has written a kernel for {problem.point.cell}")
    _without_resets(problem)
    if problem.lengths is not None:
        raise Unsupported("its kernels know no lengths")
    model = TritonModel(problem)
    fitting = [tile for tile in TRITON_TILES if tile[0] <= max(16, problem.point.batch)]
    names = {f"tile {'x'.join(map(str, tile))}": tile for tile in fitting}
    runs = {name: partial(model, tile) for name, tile in names.items()}
    return Prepared(triton.__version__, runs, compiling=tuple(runs))


def prepare_flashrnn(problem: GpuProblem) -> Prepared:
    """FlashRNN's kernels, which take the input product as given: torch computes it here."""
    import torch

    with imported("flashrnn"):
        from flashrnn import flashrnn
    _without_resets(problem)
    point = problem.point
    whole = problem.lengths is None and point.layers == point.directions == 1
    if point.cell not in ("lstm", "elman") or not whole:
        raise Unsupported("it has one layer, in one direction, of an LSTM or Elman's network, without lengths")
    gates, hidden = (4 if point.cell == "lstm" else 1), point.hidden
    W, R, b = (problem.weight(name, 0, 0) for name in "WRb")
    R, b = R.reshape(gates, 1, hidden, hidden), b.reshape(gates, 1, hidden)
    x = problem.inputs[0].transpose(0, 1).contiguous()  # its arrays have the batch first

    def run(backend: str, recurrent: torch.Tensor) -> tuple[torch.Tensor, None]:
        product = torch.nn.functional.linear(x, W.reshape(-1, point.input))
        product = product.reshape(point.batch, point.steps, gates, 1, hidden)
        # Without dtype it computes in bfloat16, whatever it is given.
        how = {"function": point.cell, "backend": backend, "dtype": point.dtype}
        states, _ = flashrnn(product, recurrent, b, **how)
        return states[0].reshape(point.batch, point.steps, hidden).transpose(0, 1), None

    runs = {}
    for name in FLASHRNN_KERNELS:
        runs[name] = partial(run, name, R)
        runs[f"{name}, transposed"] = partial(run, name, R.transpose(2, 3).contiguous())
    try:
        version = importlib.metadata.version("flashrnn")
    except importlib.metadata.PackageNotFoundError:  # a folder on the path
        version = "unknown"
    return Prepared(version, runs, compiling=tuple(runs))


FRAMEWORKS: dict[str, Callable[[GpuProblem], Prepared]] = {
    "tvm_rnn": prepare_tvm_rnn,
    "torch": prepare_torch,
    "cudnn": prepare_cudnn,
    "cudnn-fp16": partial(prepare_cudnn, converted=True),
    "torch-loop": prepare_torch_loop,
    "torch-compile": prepare_torch_compile,
    "triton": prepare_triton,
    "flashrnn": prepare_flashrnn,
}

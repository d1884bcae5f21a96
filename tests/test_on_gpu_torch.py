"""Layers of torch on a real GPU: drop-ins and cells on CUDA tensors, in torch's graphs, and in CUDA graphs.

In: `rnn.nn` layers, whose code is in a folder beforehand where there is no compiler (TVM_RNN_MODULES, as in
gpu_modules.py): it is filled for nvidia-h200, as users fill a cache for another machine.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.compiler import compiled_files
from tvm_rnn.runtime import gpu_arrays

torch = pytest.importorskip("torch")
nn = pytest.importorskip("tvm_rnn.torch_layer.nn")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:The CUDA Graph is empty"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
]

X, H, T, B = 24, 40, 9, 5
LIMITS = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
BACKENDS = ["eager", "aot_eager", "cudagraphs", "inductor"]


def ready(layer: Any, monkeypatch: pytest.MonkeyPatch, autocast: tuple[str, ...] = (), net: Any = None) -> Any:
    """The layer on the GPU, its code in the folder. Skips the test where there is no GPU. net: the only one that the
    test calls; compiling takes a minute for each."""
    folder = os.environ.get("TVM_RNN_MODULES")
    if folder:
        cache = Path(folder, "cache")
        monkeypatch.setattr(compiled_files, "fill", _once(compiled_files.fill))
        from tvm_rnn.torch_layer import fill_cache

        monkeypatch.setattr(fill_cache, "fill", compiled_files.fill)
        fill_cache.fill_cache(net or layer, "nvidia-h200", cache, autocast=autocast)
        monkeypatch.setenv("TVM_RNN_CACHE", str(cache))
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    return layer.cuda()


def _once(fill: Callable[..., Path]) -> Callable[..., Path]:
    """A file that is there stays: its name has the sources."""

    def filled(net: Any, target: str, folder: Path) -> Path:
        path = folder / f"{compiled_files._shared_name(net, True)}{compiled_files.MARK}{target}.so"
        return path if path.exists() else fill(net, target, folder)

    return filled


def lstm(**options: Any) -> Any:
    return rnn.nn.LSTM(X, H, **options)


def cell() -> Any:
    return rnn.nn.Cell(rnn.cells.lstm, X, H)  # the same network, so the same code


KINDS: dict[str, Callable[[], Any]] = {"drop-in": lstm, "cell": cell}


class Model(torch.nn.Module):
    """A layer among others."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(X, X), layer

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).tanh())[0].square()


def poison() -> None:
    """What torch's allocator gives next is NaN."""
    blocks = [torch.full((1 << size,), float("nan"), device="cuda") for size in range(6, 22) for _ in range(4)]
    del blocks


def close(found: Any, expected: Any, limit: float) -> None:
    difference = float((found.detach().double().cpu() - expected.detach().double().cpu()).norm())
    assert difference <= limit * max(float(expected.detach().double().norm()), 1e-6)


@pytest.fixture
def dynamo() -> Any:
    import torch._dynamo

    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("state", [False, True], ids=["from zeros", "from a state"])
def test_results_and_gradients_every_time(state: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ready(lstm(), monkeypatch)
    peer = torch.nn.LSTM(X, H, dtype=torch.float64)
    peer.load_state_dict({name: value.double().cpu() for name, value in ours.state_dict().items()})
    for turn in range(20):
        draw = torch.Generator().manual_seed(turn)
        leaves = [torch.randn(T, B, X, generator=draw)]
        leaves += [torch.randn(1, B, H, generator=draw) for _ in range(2 * state)]
        found = []
        for layer, place, kind in ((ours, "cuda", torch.float32), (peer, "cpu", torch.float64)):
            poison() if place == "cuda" else None
            own = [value.to(place, kind).requires_grad_() for value in leaves]
            y, (h, c) = layer(own[0], tuple(own[1:]) or None)
            loss = y.square().sum() + h.sum() + (c * 0.5).sum()
            found.append([y, h, c, *torch.autograd.grad(loss, [*own, *layer.parameters()])])
        for one, two in zip(*found, strict=True):
            assert one.is_cuda
            close(one, two, LIMITS[torch.float32])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_without_gradients_calls_have_the_parameters_of_now(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that go a shorter way, as an earlier one of their shapes; whatever changed the parameters."""
    ours = ready(getattr(rnn.nn, kind)(X, H), monkeypatch, autocast=("bfloat16",))
    whole, unserved = list[object](), nn._unserved

    def counted(*call: Any) -> Any:
        whole.append(call)
        return unserved(*call)

    monkeypatch.setattr(nn, "_unserved", counted)
    peer = getattr(torch.nn, kind)(X, H, dtype=torch.float64)
    optimizer = torch.optim.SGD(ours.parameters(), 0.1)

    def check(x: Any, state: Any = None, limit: float = LIMITS[torch.float32]) -> int:
        """How many calls went the whole way."""
        peer.load_state_dict({name: value.double().cpu() for name, value in ours.state_dict().items()})
        own = None if state is None else tuple(part.double().cpu() for part in state)
        own = own[0] if own is not None and kind == "GRU" else own
        hx, before = state if state is None or kind == "LSTM" else state[0], len(whole)
        (y, last), (expected_y, expected) = ours(x, hx), peer(x.double().cpu(), own)
        pairs = zip((last,) if kind == "GRU" else last, (expected,) if kind == "GRU" else expected, strict=True)
        for one, two in ((y, expected_y), *pairs):
            close(one, two, limit)
        return len(whole) - before

    x, state = torch.randn(T, B, X, device="cuda"), [torch.randn(1, B, H, device="cuda") for _ in range(2)]
    with torch.no_grad():
        assert check(x) == 1 and check(x) == 0 and check(torch.randn_like(x)) == 0
        ours.weight_hh_l0.data.mul_(0.5)
        ours.bias_hh_l0[3] += 1.0
        assert check(x) == 0
        assert check(x, state) == 1 and check(x, state) == 0 and check(x) == 1
        assert check(x[:4]) == 1 and check(x[:4]) == 0 and check(x[:, :2]) == 1 and check(x[:, :2]) == 0
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            assert check(x[:, :2]) == 0
        torch.cuda.current_stream().wait_stream(stream)
        with torch.autocast("cuda", torch.bfloat16):
            assert check(x, limit=LIMITS[torch.bfloat16]) == 1 and check(x, limit=LIMITS[torch.bfloat16]) == 0
        assert check(x) == 1 and check(x) == 0
    ours(x)[0].square().sum().backward()
    optimizer.step()
    with torch.no_grad():
        check(x)
        ours.weight_ih_l0.data = torch.randn_like(ours.weight_ih_l0)
        assert check(x) == 0
        ours.weight_ih_l0 = torch.nn.Parameter(torch.randn_like(ours.weight_ih_l0))
        assert check(x) == 0


def test_packed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ready(lstm(), monkeypatch)
    peer = torch.nn.LSTM(X, H).cuda()
    peer.load_state_dict(ours.state_dict())
    x, lengths = torch.randn(T, B, X, device="cuda"), torch.tensor([3, 9, 1, 9, 5])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    (one, first), (two, second) = ours(packed), peer(packed)
    close(one.data, two.data, 1e-3)  # cuDNN's products are TF32
    close(first[1], second[1], 1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_compile_without_a_break(kind: str, backend: str, dynamo: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(ready(KINDS[kind](), monkeypatch)).cuda()
    model(torch.randn(T, B, X, device="cuda"))  # a cell goes into graphs once it has been called
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(5):  # the first ones warm up, the next are captured and replayed
        x = torch.randn(T, B, X, device="cuda", requires_grad=True)
        found = []
        for run in (compiled, model):
            poison()
            y = run(x)
            found.append(
                [y.detach().clone(), *(g.clone() for g in torch.autograd.grad(y.sum(), [x, *model.parameters()]))]
            )
        for one, two in zip(*found, strict=True):
            close(one, two, 1e-5)
        with torch.no_grad():
            close(compiled(x), model(x), 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_exported_programs(kind: str, dynamo: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any number of steps and rows; in training mode with gradients."""
    model, x = Model(ready(KINDS[kind](), monkeypatch)).cuda().eval(), torch.randn(T, B, X, device="cuda")
    sizes = ({0: torch.export.Dim("T", min=2), 1: torch.export.Dim("B", min=2)},)
    program = torch.export.export(model, (x,), dynamic_shapes=sizes, strict=False).module()
    other = torch.randn(T + 4, B - 2, X, device="cuda")
    close(program(other), model(other), 1e-5)
    trained = torch.export.export(model.train(), (x,), strict=False).module()
    x.requires_grad_()
    (one,), (two,) = (torch.autograd.grad(run(x).sum(), [x]) for run in (trained, model))
    close(one, two, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_traces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Model(ready(KINDS[kind](), monkeypatch)).cuda(), torch.randn(T, B, X, device="cuda")
    traced = torch.jit.trace(model, x)
    other = torch.randn(T + 1, B, X, device="cuda", requires_grad=True)
    for one, two in zip(*(torch.autograd.grad(run(other).sum(), [other]) for run in (traced, model)), strict=True):
        close(one, two, 1e-5)


@pytest.mark.parametrize("flagged", [False, True])
def test_opcheck(flagged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_rnn.torch_layer import graph_ops

    # Not all bytes of a tape are written: what is compared must begin the same.
    monkeypatch.setattr(gpu_arrays.GpuArrays, "lasting", lambda own, size: own.zeros((size,), "uint8"))
    layer = ready(cell(), monkeypatch)
    x, *state = (torch.randn(*shape, device="cuda") for shape in ((T, B, X), (1, B, H), (1, B, H)))
    y, _ = layer(x, tuple(state))
    weights = [value.detach().requires_grad_() for value in layer.weights().values()]
    rows = [torch.tensor([9, 3, 2, 1, 9], device="cuda")] * flagged
    numbers, name = [int(flagged), 0, 0, 0], layer._code.name
    tensors = [*(value.clone().requires_grad_() for value in (x, *state)), *weights, *rows]
    torch.library.opcheck(graph_ops.steps_recorded, (name, tensors, numbers))
    plain = [value.detach() for value in tensors]
    torch.library.opcheck(graph_ops.steps, (name, plain, numbers))
    found = graph_ops.steps_recorded(name, plain, numbers)
    above, read = [value.clone() for value in found[:3]], layer._code.read
    rest = [*plain[:read], *plain[3:]]
    torch.library.opcheck(graph_ops.gradients, (name, found[3:], above, rest, [*numbers, T, B]))
    if not flagged:
        close(found[0], y, 1e-6)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "compiled"])
def test_autocast(graph: bool, dynamo: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's layer: results in autocast's dtype, gradients of float32 parameters in float32."""
    ours = ready(lstm(), monkeypatch, ("bfloat16",))
    peer = torch.nn.LSTM(X, H, dtype=torch.float64).cuda()
    peer.load_state_dict({name: value.double() for name, value in ours.state_dict().items()})
    x = torch.randn(T, B, X, device="cuda")
    run = torch.compile(ours, backend="aot_eager", fullgraph=True) if graph else ours
    with torch.autocast("cuda", torch.bfloat16):
        y, (h, c) = run(x)
    assert {y.dtype, h.dtype, c.dtype} == {torch.bfloat16}
    other, (last, _) = peer(x.double())
    close(y, other, LIMITS[torch.bfloat16])
    close(h, last, LIMITS[torch.bfloat16])
    y.float().square().sum().backward()
    other.square().sum().backward()
    for one, two in zip(ours.parameters(), peer.parameters(), strict=True):
        assert one.grad.dtype == torch.float32
        close(one.grad, two.grad, LIMITS[torch.bfloat16])


def captured(step: Callable[[], Any]) -> Any:
    """A CUDA graph of a step, which has run three times before."""
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_step_of_training_in_a_cuda_graph(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward, backward and Adam: replays are the steps that torch makes one after the other."""
    made, x = ready(KINDS[kind](), monkeypatch), torch.randn(T, B, X, device="cuda")
    found = []
    for replays in (False, True):
        torch.manual_seed(0)
        model = torch.nn.ModuleList([copy.deepcopy(made), torch.nn.Linear(H, 1)]).cuda()
        optimiser = torch.optim.Adam(model.parameters(), 1e-2, capturable=True)

        def step(model: Any = model, optimiser: Any = optimiser) -> None:
            optimiser.zero_grad(set_to_none=True)
            (model[1](model[0](x)[0]) - 1.0).square().mean().backward()
            optimiser.step()

        graph = captured(step) if replays else None
        for _ in range(5 if replays else 8):
            graph.replay() if graph else step()
        torch.cuda.synchronize()
        found.append([value.detach().clone() for value in model.parameters()])
    for eager, replayed in zip(*found, strict=True):
        close(replayed, eager, 1e-5)


def test_dropout_is_drawn_in_each_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    net = rnn.RNN(rnn.cells.elman, X, H, 2, dropout=0.5)
    layer = ready(rnn.nn.RNN(X, H, 2, dropout=0.5), monkeypatch, net=net)
    x, results = torch.randn(T, B, X, device="cuda"), []

    def step() -> None:
        y, _ = layer(x)
        y.sum().backward()
        results[:] = [y.detach()]

    graph = captured(step)
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append(results[0].cpu().numpy().copy())
    assert all(np.isfinite(one).all() for one in seen)
    assert not np.array_equal(seen[0], seen[1]) and not np.array_equal(seen[1], seen[2])

"""graph_ops: compiled steps in graphs of torch's: compile, export, trace: results and gradients of the layer without.

In: a to_torch layer and a drop-in, both float64. Most tests are broad: torch's Dynamo alone takes seconds to import.
"""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import ConfigError
from tvm_rnn.oracle.tolerance import assert_close

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]

X, H, T, B = 3, 4, 5, 3
KINDS = ["to_torch", "drop-in"]


@pytest.fixture(scope="module")
def layers(kept_code: Path) -> dict[str, Any]:
    """A layer of each kind; tests work on copies, which share the code."""
    net = rnn.RNN(rnn.cells.elman, X, H, dtype="float64").init(0)
    return {"to_torch": rnn.to_torch(net, names="torch"), "drop-in": rnn.nn.LSTM(X, H, dtype=torch.float64)}


@pytest.fixture
def dynamo() -> Iterator[None]:
    """Dynamo as one sets it for drop-ins: they are torch's classes, which it refuses else."""
    import torch._dynamo

    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        yield
    torch._dynamo.reset()


class Model(torch.nn.Module):
    """A layer among others. y alone is returned: states are a dict here, a tuple there."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(X, X, dtype=torch.float64), copy.deepcopy(layer)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).tanh())[0].square()


def given(steps: int = T, batch: int = B) -> Any:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(steps, batch, X, dtype=torch.float64, generator=draw).requires_grad_()


def compare(found: Callable[[Any], Any], model: Any, x: Any) -> None:
    """Results and gradients with those of the model without a graph."""
    wanted = [x, *model.parameters()]
    own, other = found(x), model(x)
    assert_close(own.detach(), other.detach(), "float64", T)
    pairs = zip(torch.autograd.grad(own.sum(), wanted), torch.autograd.grad(other.sum(), wanted), strict=True)
    for one, two in pairs:
        assert_close(one, two, "float64", T)


@pytest.mark.broad
@pytest.mark.parametrize("kind", KINDS)
def test_traces(layers: dict[str, Any], kind: str) -> None:
    """torch.jit.trace, with gradients too; in eval mode without."""
    model = Model(layers[kind])
    compare(torch.jit.trace(model, given()), model, given(7, 2))
    found = torch.jit.trace(model.eval(), given())(given(7, 2))
    assert_close(found.detach(), model(given(7, 2)).detach(), "float64", T)


@pytest.mark.broad
@pytest.mark.parametrize("mode", ["real", "symbolic"])
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_of_make_fx(layers: dict[str, Any], kind: str, mode: str) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    model = Model(layers[kind])
    graph = make_fx(model, tracing_mode=mode, _allow_non_fake_inputs=True)(given(T, 2))
    assert "tvm_rnn.steps_recorded" in graph.code
    compare(graph, model, given(7, 4) if mode == "symbolic" else 2 * given(T, 2))


@pytest.mark.broad
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::torch.jit.TracerWarning")  # torch's own
@pytest.mark.parametrize("kind", KINDS)
def test_onnx_files_are_of_torchs_operators(layers: dict[str, Any], kind: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model, x, path = Model(layers[kind]).eval().float(), given().detach().float(), str(tmp_path / "model.onnx")
    export = partial(torch.onnx.export, model, (x,), path, input_names=["x"], dynamo=False)
    if kind == "to_torch":
        with pytest.raises(ConfigError, match=r"no compiled steps of this[\s\S]*torch.onnx.export"):
            export()
        return
    export(dynamic_axes={"x": {0: "T", 1: "B"}})
    (found,) = onnxruntime.InferenceSession(path).run(None, {"x": x.numpy()})
    assert_close(found, model(x).detach(), "float32", T)


@pytest.mark.broad
@pytest.mark.parametrize("stated", [False, True], ids=["from zeros", "from a state"])
def test_opcheck(layers: dict[str, Any], stated: bool) -> None:
    from tvm_rnn.torch_layer import graph_ops

    layer = copy.deepcopy(layers["to_torch"])
    weights = [value.detach().requires_grad_() for value in layer.weights().values()]
    state = [torch.randn(1, B, H, dtype=torch.float64).requires_grad_()] * stated
    lengths, reset = (torch.tensor([5, 3, 2]), torch.rand(T, B) < 0.2) if stated else (None, None)
    rows, numbers = [value for value in (lengths, reset) if value is not None], [int(stated), int(stated), 0, 0]
    name, tensors = layer._code.name, [given(), *state, *weights, *rows]
    torch.library.opcheck(graph_ops.steps_recorded, (name, tensors, numbers))
    plain = [value.detach() for value in tensors]
    torch.library.opcheck(graph_ops.steps, (name, plain, numbers))
    y, h, tape = graph_ops.steps_recorded(name, plain, numbers)
    torch.library.opcheck(graph_ops.gradients, (name, [tape], [y, h], plain[1 + stated :], [*numbers, T, B]))


@pytest.mark.broad
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("kind", KINDS)
def test_compile_without_a_break(layers: dict[str, Any], dynamo: None, kind: str, backend: str) -> None:
    model = Model(layers[kind])
    compare(torch.compile(model, backend=backend, fullgraph=True), model, given())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_aotinductor_makes_runs_here(layers: dict[str, Any], dynamo: None, kind: str, tmp_path: Path) -> None:
    """In a process of Python: the steps are an operation that Python registers."""
    model, x = Model(layers[kind]).eval(), given().detach()
    program = torch.export.export(model, (x,), strict=False)
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    assert_close(torch._inductor.aoti_load_package(path)(2 * x), model(2 * x).detach(), "float64", T)


@pytest.mark.broad
def test_two_layers_of_the_same_shapes(dynamo: None) -> None:
    """A graph that was made for one is not the other's."""
    for cell in (rnn.cells.elman, rnn.cells.elman_relu):
        model = Model(rnn.to_torch(rnn.RNN(cell, X, H, dtype="float64").init(0)))
        compare(torch.compile(model, backend="eager", fullgraph=True), model, given())


@pytest.mark.broad
def test_dropout_is_drawn_in_each_call(kept_code: Path, dynamo: None) -> None:
    net = rnn.RNN(rnn.cells.elman, X, H, 2, dtype="float64", dropout=0.5).init(0)
    for layer in (rnn.to_torch(net), rnn.nn.RNN(X, H, 2, dropout=0.5, dtype=torch.float64)):
        model, x = Model(layer), given()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.manual_seed(0)
        y = compiled(x)
        assert not torch.equal(y, compiled(x))
        torch.manual_seed(0)
        expected = model(x)
        assert torch.equal(y, expected)
        pair = [torch.autograd.grad(part.sum(), x)[0] for part in (y, expected)]
        assert_close(*pair, "float64", T)


@pytest.mark.broad
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_graphs_do_not_serve(layers: dict[str, Any]) -> None:
    """torch.compile leaves a budget of memory, and drop-ins without allow_rnn, to code outside of its graphs."""
    import torch._dynamo

    torch._dynamo.reset()
    limited = copy.deepcopy(layers["to_torch"])
    limited.max_bytes = 1 << 20
    for layer in (limited, layers["drop-in"]):
        model = Model(layer)
        compare(torch.compile(model, backend="eager"), model, given())
    with pytest.raises(ConfigError, match=r"no compiled steps of this[\s\S]*max_bytes"):
        torch.jit.trace(Model(limited), given().detach())


@pytest.mark.broad
def test_constants_stay_outside_of_graphs() -> None:
    @rnn.cell(constants="k")
    def scaled(x: "I", h: "I", k: "I"):
        return rnn.tanh(x + k * h)

    layer = rnn.to_torch(rnn.RNN(scaled, 3, dtype="float64").init())
    x, k = torch.randn(4, 2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    expected, _ = layer(x, k=k)
    found, _ = torch.compile(lambda x, k: layer(x, k=k), backend="eager")(x, k)
    (a,), (b,) = torch.autograd.grad(expected.sum(), [k]), torch.autograd.grad(found.sum(), [k])
    assert torch.equal(found, expected) and torch.equal(a, b)


@pytest.mark.broad
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
def test_exported_programs(layers: dict[str, Any], dynamo: None, kind: str, strict: bool) -> None:
    """In eval mode for inference, for any number of steps and rows; in training mode with gradients."""
    model, x = Model(layers[kind]).eval(), given()
    sizes = ({0: torch.export.Dim("T", min=2), 1: torch.export.Dim("B", min=2)},)
    program = torch.export.export(model, (x.detach(),), dynamic_shapes=sizes, strict=strict)
    assert_close(program.module()(given(7, 2)).detach(), model(given(7, 2)).detach(), "float64", T)
    model.train()
    trained = torch.export.export(model, (x.detach(),), strict=strict).module()
    compare(trained, trained, x)
    torch.autograd.grad(trained(x).sum(), [x])


@pytest.mark.broad
def test_programs_of_drop_ins_in_another_process(layers: dict[str, Any], tmp_path: Path) -> None:
    """They know the compiled code by its name on disk."""
    model, x = Model(layers["drop-in"]).eval(), given().detach()
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "program.pt2")
    torch.jit.save(torch.jit.trace(model, x), tmp_path / "trace.pt")
    np.save(tmp_path / "x.npy", x.numpy())
    text = """
import sys, numpy, torch, tvm_rnn
tvm_rnn.nn  # registers the operations
folder = sys.argv[1]
x = torch.from_numpy(numpy.load(folder + "/x.npy"))
found = [torch.export.load(folder + "/program.pt2").module()(x), torch.jit.load(folder + "/trace.pt")(x)]
numpy.save(folder + "/y.npy", torch.stack(found).detach().numpy())
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", text, str(tmp_path)], check=True)
    for y in np.load(tmp_path / "y.npy"):
        assert_close(y, model(x).detach(), "float64", T)


@pytest.mark.broad
def test_spawned_processes(layers: dict[str, Any]) -> None:
    """A drop-in goes to another process as torch's layers do, and finds its code on disk."""
    context = torch.multiprocessing.get_context("spawn")
    layer, x = copy.deepcopy(layers["drop-in"]).requires_grad_(False), given().detach()
    with context.Pool(1) as pool:
        y = pool.apply(_run, (pickle.dumps(layer), x.numpy()))
    assert_close(y, layer(x)[0].numpy(), "float64", T)


def _run(layer: bytes, x: np.ndarray) -> np.ndarray:
    found: np.ndarray = pickle.loads(layer)(torch.from_numpy(x))[0].numpy()
    return found


def test_code_that_is_gone_is_named() -> None:
    from tvm_rnn.torch_layer import graph_ops

    with pytest.raises(ConfigError, match=r"not here[\s\S]*got: +another[\s\S]*do:"):
        graph_ops.steps("another", [given().detach()], [0, 0, 0, 0])


def test_torchs_counter_of_flops() -> None:
    """torch counts products alone, ours pointwise work too."""
    theirs = torch.nn.RNN(64, 64)
    x, counts = torch.randn(5, 3, 64, requires_grad=True), list[int]()
    for layer in (theirs, rnn.accelerate(copy.deepcopy(theirs), progress=False)):
        with torch.utils.flop_counter.FlopCounterMode(display=False) as counter, torch.no_grad():
            layer(x)
        counts.append(counter.get_total_flops())
        with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
            layer(x)[0].sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] <= counts[2] < 1.1 * counts[0] and 0.9 * counts[1] < counts[3] < 1.15 * counts[1]

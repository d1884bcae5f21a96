"""rnn.nn: layers of torch.nn run by compiled code: results, gradients, files and errors are torch's own.

In: torch's layers and ours with the same parameters. Most tests share one compiled LSTM in float64.
"""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tvm_rnn as rnn
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.runtime.runtime import Manifest

torch = pytest.importorskip("torch")
nn = pytest.importorskip("tvm_rnn.torch_layer.nn")
FakeTensorMode = pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode
pytestmark = pytest.mark.peers

X, H, T, B = 3, 4, 5, 3
LENGTHS = (2, 5, 3)


@pytest.fixture(scope="module")
def compiled(kept_code: object) -> Any:
    """A layer that has been compiled; while it lives, others of its equations and sizes share the code."""
    layer = rnn.nn.LSTM(X, H, dtype=torch.float64)
    layer(torch.zeros(T, B, X, dtype=torch.float64))
    return layer


def ours_of(theirs: Any) -> Any:
    """Ours with the same arguments and weights."""
    names = ["num_layers", "bias", "batch_first", "dropout", "bidirectional"]
    names += ["proj_size"] * (theirs.mode == "LSTM") + ["nonlinearity"] * theirs.mode.startswith("RNN")
    options = {name: getattr(theirs, name) for name in names}
    own = getattr(rnn.nn, type(theirs).__name__)
    ours = own(theirs.input_size, theirs.hidden_size, dtype=theirs.weight_ih_l0.dtype, **options)
    ours.load_state_dict(theirs.state_dict())
    return ours


def parts(value: Any) -> list[Any]:
    """The tensors of results."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return [torch.nn.utils.rnn.pad_packed_sequence(value)[0]]
    return [part for item in value for part in parts(item)]


def given(layer: Any, kind: str, state: bool) -> tuple[Any, Any, list[Any]]:
    """Input, first state, and the leaves that both are made of."""
    draw = {"dtype": layer.weight_ih_l0.dtype, "generator": torch.Generator().manual_seed(0)}
    x = torch.randn(T, B, X, **draw).requires_grad_()
    rows, out = layer.num_layers * (1 + layer.bidirectional), layer.proj_size or H
    leaves = [torch.randn(rows, B, width, **draw).requires_grad_() for width in (out, H)[: 1 + (layer.mode == "LSTM")]]
    first = [part[:, 0] if kind == "unbatched" else part for part in leaves]
    hx = (tuple(first) if layer.mode == "LSTM" else first[0]) if state else None
    if kind == "packed":
        return torch.nn.utils.rnn.pack_padded_sequence(x, LENGTHS, enforce_sorted=False), hx, [x, *leaves]
    value = x[:, 0] if kind == "unbatched" else x.transpose(0, 1) if layer.batch_first else x
    return value, hx, [x, *leaves]


def gradients(layer: Any, kind: str, state: bool = True) -> tuple[list[Any], list[Any]]:
    """Results, and gradients of all that they are made of."""
    value, hx, leaves = given(layer, kind, state)
    results = parts(layer(value, hx))
    wanted = [*(leaves if state else leaves[:1]), *layer.parameters()]
    draw = torch.Generator().manual_seed(1)
    loss = sum((torch.randn(part.shape, dtype=part.dtype, generator=draw) * part).sum() for part in results)
    return results, [*torch.autograd.grad(loss, wanted)]


def compare(ours: Any, theirs: Any, kind: str, state: bool = True) -> None:
    for found, expected in zip(gradients(ours, kind, state), gradients(theirs, kind, state), strict=True):
        assert [part.shape for part in found] == [part.shape for part in expected]
        for own, other in zip(found, expected, strict=True):
            assert_close(own.detach(), other.detach(), str(other.dtype).removeprefix("torch."), T)


@pytest.mark.parametrize("state", [True, False], ids=["from a state", "from zeros"])
@pytest.mark.parametrize("kind", ["batched", "unbatched", "packed"])
def test_results_and_gradients_are_torchs(compiled: Any, kind: str, state: bool) -> None:
    theirs = torch.nn.LSTM(X, H, dtype=torch.float64)
    compare(ours_of(theirs), theirs, kind, state)


@pytest.mark.parametrize("kind", ["batched", "unbatched"])
def test_with_the_batch_first(compiled: Any, kind: str) -> None:
    theirs = torch.nn.LSTM(X, H, batch_first=True, dtype=torch.float64)
    compare(ours_of(theirs), theirs, kind)


STACK = {"num_layers": 2, "bidirectional": True}


@pytest.mark.broad
@pytest.mark.slow_after(3)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("GRU", {"batch_first": True, **STACK}),
        ("RNN", {"nonlinearity": "relu", "bias": False}),
        ("RNN", STACK),
        ("LSTM", {"proj_size": 2, **STACK}),
        ("LSTM", {"bias": False}),
        ("GRU", {"bias": False}),
    ],
    ids=str,
)
def test_every_kind_is_torchs(compiled: Any, kind: str, options: dict[str, Any]) -> None:
    theirs = getattr(torch.nn, kind)(X, H, dtype=torch.float64, **options)
    ours = ours_of(theirs)
    for form in ("batched", "unbatched", "packed"):
        compare(ours, theirs, form)
        compare(ours, theirs, form, state=False)
    with torch.no_grad():
        value, hx, _ = given(ours, "batched", True)
        assert_close([*map(_numbers, parts(ours(value, hx)))], [*map(_numbers, parts(theirs(value, hx)))], "float64", T)


def _numbers(part: Any) -> Any:
    return part.detach().numpy()


def test_a_layer_is_torchs_in_all_else(compiled: Any) -> None:
    theirs = torch.nn.LSTM(X, H, dtype=torch.float64)
    ours = ours_of(theirs)
    assert isinstance(ours, torch.nn.LSTM)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    assert repr(ours) == f"tvm_rnn.{theirs!r}"
    assert (ours.hidden_size, ours.mode, ours.proj_size) == (H, "LSTM", 0)
    ours.flatten_parameters()
    assert rnn.from_torch(ours).weights.keys() == rnn.from_torch(theirs).weights.keys()
    with pytest.raises(ValueError, match="proj_size argument is only supported for LSTM"):
        rnn.nn.GRU(X, H, proj_size=2)


def test_copies_and_pickles(compiled: Any) -> None:
    x = torch.randn(T, B, X, dtype=torch.float64)
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled)), again):
        assert torch.equal(other(x)[0], compiled(x)[0])
        with torch.no_grad():
            other.weight_hh_l0.mul_(0.5)
        assert not torch.equal(other(x)[0], compiled(x)[0])


def test_weights_from_elsewhere(compiled: Any) -> None:
    """functional_call and parametrizations give other tensors than the layer's own."""
    x = torch.randn(T, B, X, dtype=torch.float64)
    half = {name: (p.detach() * 0.5).requires_grad_() for name, p in compiled.named_parameters()}
    theirs = torch.nn.LSTM(X, H, dtype=torch.float64)
    found, expected = (torch.func.functional_call(layer, half, (x,))[0] for layer in (compiled, theirs))
    assert_close(found.detach(), expected.detach(), "float64", T)
    own, other = (torch.autograd.grad(y.square().sum(), [*half.values()]) for y in (found, expected))
    assert_close([*map(_numbers, own)], [*map(_numbers, other)], "float64", T)
    theirs.load_state_dict(compiled.state_dict())
    pair = [torch.nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0") for layer in (ours_of(theirs), theirs)]
    for layer in pair:
        with torch.no_grad():
            layer.parametrizations.weight_hh_l0.original0.mul_(2.0)
    compare(*pair, "batched")


@pytest.mark.broad
def test_gradients_of_gradients_are_torchs(compiled: Any) -> None:
    theirs = torch.nn.LSTM(X, H, dtype=torch.float64)
    for kind in ("batched", "packed"):
        found = []
        for layer in (ours_of(theirs), theirs):
            value, hx, leaves = given(layer, kind, True)
            (slope,) = torch.autograd.grad(parts(layer(value, hx))[0].sum(), leaves[0], create_graph=True)
            found.append([*torch.autograd.grad(slope.square().sum(), [*leaves, *layer.parameters()])])
        for own, other in zip(*found, strict=True):
            assert_close(own, other, "float64", T)


@pytest.mark.broad
def test_gradients_of_gradients_with_dropout() -> None:
    """Of the masks that the call drew."""
    layer, x = ours_of(torch.nn.GRU(X, H, 2, dropout=0.5, dtype=torch.float64)), torch.randn(T, B, X).double()

    def run(value: Any) -> Any:
        torch.manual_seed(3)
        return layer(value)[0]

    assert torch.autograd.gradgradcheck(run, (x.requires_grad_(),), fast_mode=True)


def _cast(layer: Any, x: Any) -> Any:
    with torch.autocast("cpu"):
        return layer.float()(x.float())[0].double()


def _half(layer: Any, x: Any) -> Any:
    return layer.half()(x.half())[0].double()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("run", "why"),
    [
        (_cast, "autocast"),
        (_half, "torch.float16 on cpu"),
    ],
)
def test_what_compiled_code_does_not_serve_is_torchs_own(run: Any, why: str) -> None:
    theirs = torch.nn.LSTM(X, H, dtype=torch.float64).requires_grad_(False)
    ours, x = ours_of(theirs).requires_grad_(False), torch.randn(T, B, X, dtype=torch.float64)
    try:
        expected = run(theirs, x)
    except RuntimeError as reason:  # oneDNN has no LSTM of bfloat16 for CPUs without AVX-512
        pytest.skip(f"torch's own layer fails here: {reason}")
    with pytest.warns(UserWarning, match=rf"torch's own code ran this layer[\s\S]*{why}"):
        found = run(ours, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="torch's own")  # it is told once
        run(ours, x)
        assert torch.equal(found, expected)


@pytest.mark.broad
def test_calls_of_shapes_alone_say_nothing() -> None:
    """What a layer returns is asked before it has memory: on the meta device, and of fake tensors."""
    layer, x = rnn.nn.LSTM(X, H, device="meta"), torch.empty(T, B, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y, (h, _) = layer(x.to("meta"))
        with FakeTensorMode(allow_non_fake_inputs=True):
            fake = ours_of(torch.nn.LSTM(X, H))(torch.empty(T, B, X))[0]
    assert y.is_meta and y.shape == fake.shape == (T, B, H) and h.shape == (1, B, H)


@pytest.mark.filterwarnings("ignore:.*own code ran:UserWarning")
def test_an_ensemble_of_weights() -> None:
    """torch.func.vmap over parameters, for which torch's own layers have no rule."""
    layer, x = ours_of(torch.nn.LSTM(X, H, dtype=torch.float64)), torch.randn(T, B, X, dtype=torch.float64)
    members = {name: torch.stack([value, value / 2]) for name, value in layer.named_parameters()}

    def run(own: Any) -> Any:
        return torch.func.functional_call(layer, own, (x,))[0]

    found = torch.func.vmap(run)(members)
    for number, y in enumerate(found):
        expected = run({name: value[number] for name, value in members.items()})
        assert_close(y.detach(), expected.detach(), "float64", T)


@pytest.mark.parametrize("negated", ["x", "weight", "gradient"])
def test_negated_views(compiled: Any, negated: str) -> None:
    """The imaginary part of a conjugate is a view whose memory has the other sign."""
    theirs, made = torch.nn.LSTM(X, H, dtype=torch.float64), []
    ours = ours_of(theirs)

    def turned(value: Any) -> Any:
        return torch.complex(value, -value).conj().imag

    for layer in (ours, theirs):
        weight, x = layer._parameters.pop("weight_hh_l0").detach().requires_grad_(), torch.ones(T, B, X).double()
        layer.weight_hh_l0 = turned(weight) if negated == "weight" else weight
        y, _ = layer(turned(x) if negated == "x" else x)
        above = torch.ones_like(y)
        made.append([y, *torch.autograd.grad(y, [weight], turned(above) if negated == "gradient" else above)])
        assert turned(x).is_neg()
    for own, other in zip(*made, strict=True):
        assert_close(own.detach(), other.detach(), "float64", T)


@pytest.mark.broad
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_tangents(compiled: Any) -> None:
    """torch's own LSTM has none on a CPU. A product with the gradient of the transposed map is the same number."""
    ours, x = ours_of(torch.nn.LSTM(X, H, dtype=torch.float64)), torch.randn(T, B, X, dtype=torch.float64)
    along, above = torch.randn_like(x), torch.randn(T, B, H, dtype=torch.float64)

    def run(value: Any) -> Any:
        return ours(value)[0]

    y, found = torch.func.jvp(run, (x,), (along,))
    again, linear = torch.func.linearize(run, x)
    (back,) = torch.func.vjp(run, x)[1](above)
    assert_close((found * above).sum().detach(), (back * along).sum().detach(), "float64", T)
    assert_close(linear(along).detach(), found.detach(), "float64", T)
    for value in (y, again):
        assert_close(value.detach(), run(x).detach(), "float64", T)


def test_one_node_of_torch_fx(compiled: Any) -> None:
    ours, x = ours_of(torch.nn.LSTM(X, H, dtype=torch.float64)), torch.randn(T, B, X, dtype=torch.float64)
    graph = torch.fx.symbolic_trace(torch.nn.Sequential(ours))
    assert [node.op for node in graph.graph.nodes] == ["placeholder", "call_module", "output"]
    assert torch.equal(graph(x)[0], ours(x)[0])


def test_wrong_calls_are_torchs_errors() -> None:
    theirs = torch.nn.LSTM(X, H)
    ours, x, h = ours_of(theirs), torch.randn(T, B, X), torch.zeros(1, B, H)
    calls: Sequence[tuple[Any, Any]] = [
        (x[..., :2], None),
        (x[0, 0], None),
        (x.double(), None),
        (x[:0], None),
        (x, (h[:, :1], h)),
        (x, (h[0], h[0])),
        (x[0], (h, h)),
        (x, h),
    ]
    for value, hx in calls:
        assert _raised(ours, value, hx) == _raised(theirs, value, hx)
    gru = torch.nn.GRU(X, H)
    assert _raised(ours_of(gru), x, (h,)) == _raised(gru, x, (h,))  # two states are an LSTM's


def _raised(layer: Any, value: Any, hx: Any) -> tuple[type[Exception], str]:
    try:
        layer(value, hx)
    except Exception as reason:
        return type(reason), str(reason)
    raise AssertionError("nothing was raised")


@pytest.mark.broad
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_script_is_torchs_layer() -> None:
    theirs = torch.nn.LSTM(X, H)
    own, other = (torch.nn.Sequential(layer) for layer in (ours_of(theirs), theirs))
    x = torch.randn(T, B, X)
    assert torch.equal(torch.jit.script(own)(x)[0], torch.jit.script(other)(x)[0])


def test_many_gradients_at_once(compiled: Any) -> None:
    theirs = torch.nn.LSTM(X, H, dtype=torch.float64)
    found = []
    for layer in (ours_of(theirs), theirs):
        value, hx, leaves = given(layer, "batched", True)
        y = parts(layer(value, hx))[0]
        each = torch.randn(4, *y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(0))
        found.append([*torch.autograd.grad(y, leaves, each, is_grads_batched=True)])
    for own, other in zip(*found, strict=True):
        assert_close(own, other, "float64", T)


def test_what_cannot_be_compiled_is_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_rnn.torch_layer import nn

    def fails(*given: object) -> None:
        raise rnn.BuildError("no linker")

    monkeypatch.setattr(nn, "compiled_once", fails)
    theirs, x = torch.nn.LSTM(X, H), torch.randn(T, B, X)
    with pytest.warns(UserWarning, match="no linker"):
        assert torch.equal(ours_of(theirs)(x)[0], theirs(x)[0])


@pytest.mark.broad
def test_dropout_between_layers(compiled: Any) -> None:
    """In training as often as torch's, by its seed, and scaled; in eval mode not at all, with gradients there too."""
    p, theirs = 0.25, torch.nn.RNN(X, 1, 2, dropout=0.25, nonlinearity="relu", dtype=torch.float64)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.fill_(0.0)
        theirs.bias_ih_l0.fill_(1.0)
        theirs.weight_ih_l1.fill_(1.0)
    ours, x = ours_of(theirs), torch.zeros(200, 40, X, dtype=torch.float64)
    torch.manual_seed(3)
    y = ours(x)[0]
    torch.manual_seed(3)
    assert torch.equal(y, ours(x)[0])
    assert not torch.equal(y, ours(x)[0])
    assert {round(v, 6) for v in y.detach().unique().tolist()} == {0.0, round(1 / (1 - p), 6)}
    assert abs((y == 0).double().mean().item() - p) < 0.02
    assert torch.equal(ours.eval()(x)[0], theirs.eval()(x)[0])
    with pytest.warns(UserWarning, match=r"dropout=1.0"):
        other = rnn.nn.LSTM(X, H, 2, dropout=1.0)
        other(torch.zeros(T, B, X))


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("layer", ["rnn.nn.LSTM(3, 4)", "rnn.nn.Cell(rnn.cells.lstm, 3, 4)"])
def test_first_calls_of_the_next_process_import_little(layer: str, kept_code: Path) -> None:
    """Neither a compiler nor Dynamo, each of which takes longer than all the rest."""
    text = f"""
import sys, torch, tvm_rnn as rnn
y, _ = ({layer})(torch.zeros(2, 1, 3))
y.sum().backward()
print(*(name for name in ("tvm", "torch._dynamo") if name in sys.modules))
"""
    for _ in range(2):
        found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert not found.stdout.split()


@pytest.mark.broad
@pytest.mark.filterwarnings("ignore:torch's own operations ran:UserWarning", "ignore:torch's own code ran:UserWarning")
def test_gradients_of_each_sample() -> None:
    """By vmap of grad, for which torch's own layers raise an error: those of one sample after the other."""
    layer, x = ours_of(torch.nn.GRU(X, H, batch_first=True, dtype=torch.float64)), torch.randn(B, T, X).double()

    def loss(weights: Any, row: Any) -> Any:
        return torch.func.functional_call(layer, weights, (row[None],))[0].square().sum()

    weights = {name: value.detach() for name, value in layer.named_parameters()}
    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x)
    for n, row in enumerate(x):
        given = {name: value.clone().requires_grad_() for name, value in weights.items()}
        expected = torch.autograd.grad(loss(given, row), [*given.values()])
        for (name, of_each), wanted in zip(found.items(), expected, strict=True):
            assert torch.allclose(of_each[n], wanted, rtol=1e-9, atol=1e-12), name


# --- calls like an earlier one on a GPU, which is a stand-in here -----------------------------------------------------


class Lent:
    """A module that is lent weights, and gives back what it was called with."""

    manifest = Manifest(dtype="float32")

    def __init__(self) -> None:
        self.weights, self.calls = dict[str, Any](), 0

    def use_there(self, weights: dict[str, Any], ways: Sequence[str]) -> None:
        assert ways == ("sequence",)
        self.weights = {name: value.detach().clone() for name, value in weights.items()}

    def __call__(self, x: Any, state: Any) -> tuple[Any, dict[str, Any]]:
        self.calls += 1
        return x * 2, state or {"h": x[:1] + 1, "c": x[:1] + 2}


OPTIONS = [("LSTM", {"num_layers": 2, "bidirectional": True}), ("LSTM", {"proj_size": 2}), ("GRU", {}), ("RNN", {})]


@pytest.mark.parametrize(("kind", "options"), OPTIONS)
def test_a_gpu_is_lent_parameters_and_sums_of_biases(kind: str, options: dict[str, Any]) -> None:
    layer = getattr(rnn.nn, kind)(X, H, **options)
    form = nn.form_of_layer(layer, kind)
    net = nn._network(form, nn.Use("cuda", torch.float32, True, 0.0))
    module, here = Lent(), torch.device("cpu")
    call = nn.InferenceOnGpu(net, module, form, torch.float32)
    assert not call.take(layer._parameters, here)  # they are to have gradients
    with torch.no_grad():
        for _ in range(2):
            assert call.take(layer._parameters, here)
            expected = nn.net_weights(net.weight_shapes, form, dict(layer.named_parameters()))
            assert module.weights.keys() == expected.keys()
            for name, value in expected.items():
                assert torch.equal(module.weights[name].reshape(value.shape), value), name
            for value in layer.parameters():
                value.data.add_(1.0)
        assert not call.take(layer._parameters, torch.device("meta"))
        assert not call.take(layer.double()._parameters, here)
        layer.float().weight_ih_l0 = torch.nn.Parameter(torch.rand(X, len(layer.weight_ih_l0)).T)
        assert not call.take(layer._parameters, here)


def test_a_call_on_a_gpu_like_an_earlier_one_goes_a_shorter_way(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = rnn.nn.LSTM(X, X).requires_grad_(False), torch.rand(T, B, X)
    form = nn.form_of_layer(layer, "LSTM")
    net = nn._network(form, nn.Use("cuda", torch.float32, True, 0.0))
    module, state = Lent(), (torch.rand(1, B, X), torch.rand(1, B, X))
    monkeypatch.setattr(nn, "_place", lambda values: "cuda")
    monkeypatch.setattr(nn, "_unserved", lambda *call: "")  # torch's own code takes all others
    own = nn._own.setdefault(layer, nn.Own())

    def ours(values: Any, hx: Any = None) -> bool:
        """Whether the module ran a call."""
        before = module.calls
        result = layer(values, hx)
        if module.calls > before:
            assert torch.equal(result[0], values * 2) and isinstance(result[1], tuple)
        return module.calls > before

    assert not ours(x)
    own.before = nn._facts(layer, x, ()), nn.InferenceOnGpu(net, module, form, torch.float32)
    assert ours(x) and ours(x.clone())
    layer.weight_hh_l0.data.fill_(3.0)
    assert ours(x) and bool((module.weights["R_l0"] == 3.0).all())
    assert not ours(x[:2]) and not ours(x[:, :1]) and not ours(x, state) and not ours(x.clone().requires_grad_())
    layer.requires_grad_(True)
    assert not ours(x)
    with torch.no_grad():
        assert ours(x)
    layer.requires_grad_(False)
    layer.train(not layer.training)
    assert not ours(x)
    layer.train(not layer.training)
    weight = layer.weight_hh_l0
    assert not torch.equal(torch.func.functional_call(layer, {"weight_hh_l0": weight * 2}, (x,))[0], x * 2)
    own.before = nn._facts(layer, x, state), own.before[1]
    assert ours(x, state) and not ours(x)

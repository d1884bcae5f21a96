"""Gradients are torch's: of torch.nn's layers by their own backward, of every other cell by autograd through its ops.

In: the oracle in float64, and torch in float64. Three cells are written here a second time as plain torch code.
"""

from __future__ import annotations

from typing import Any

import headed_cells as headed
import numpy as np
import pytest
from derivatives import Case, autograd, draw, named, oracle
from networks import flags, network
from peer_problems import problem_of

import tvm_rnn as rnn
from tests.test_torch_equality import torch_layer
from tvm_rnn import cell, cells, clip, einsum, layer_norm, maximum, outer, softmax, tanh, where
from tvm_rnn.bench.peers.models import TORCH_CELLS, Problem, loaded
from tvm_rnn.frontends.torch import state_arrays
from tvm_rnn.oracle.tolerance import assert_close

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers

STEPS, BATCH = 7, 5
LENGTHS = np.array([4, 7, 1, 6, 7])
STACKS = {
    "1 layer": {"num_layers": 1},
    "2 layers both ways": {"num_layers": 2, "bidirectional": True},
}
EVERY_STACK = pytest.mark.parametrize("stack", STACKS)


def t64(value: Any, gradient: bool = False) -> Any:
    return torch.tensor(np.asarray(value, np.float64), requires_grad=gradient)


def layer_gradients(net: rnn.RNN, case: Case) -> tuple[Any, Any, dict[str, Any]]:
    """What torch.nn's layer finds for the same weights: of x, of each state in order, of its own parameters."""
    layer = torch_layer(net)
    x = t64(case.x["x"], True)
    begin = [t64(v, True) for v in case.state.values()]
    given, lengths = x, case.rows.get("lengths")
    if lengths is not None:
        given = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    y, end = layer(given, tuple(begin) if len(begin) > 1 else begin[0])
    if lengths is not None:
        y = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=len(x))[0]
    ends = end if isinstance(end, tuple) else (end,)
    loss = (t64(case.gy) * y).sum()
    loss = loss + sum((t64(g) * e).sum() for g, e in zip(case.gstate.values(), ends, strict=True))
    loss.backward()
    return x.grad.numpy(), [v.grad.numpy() for v in begin], {n: p.grad.numpy() for n, p in layer.named_parameters()}


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["all steps", "ragged"])
@EVERY_STACK
@pytest.mark.parametrize("name", TORCH_CELLS)
def test_of_torchs_own_layers(name: str, stack: str, lengths: Any) -> None:
    net = network(name, 3, 4, dtype="float64", **STACKS[stack])
    case = draw(net, STEPS, BATCH, **({} if lengths is None else {"lengths": lengths}))
    gx, gstate, gweights = rnn.reference(net).gradients(case.x, case.state, case.gy, case.gstate, **case.rows)
    expected_x, expected_state, expected = layer_gradients(net, case)
    assert_close(gx, expected_x, "float64", STEPS)
    assert_close(list(gstate.values()), expected_state, "float64", STEPS)
    problem = problem_of(net)
    ours = state_arrays(loaded(Problem("", problem.manifest, gweights, problem.inputs, 1)))
    for key, value in ours.items():
        wanted = expected[key]
        if key.startswith("bias_hh"):  # where it only adds to the other bias we have none: 0
            wanted = np.where(value != 0, wanted, 0.0)
        assert_close(value, wanted, "float64", STEPS, key)


@pytest.mark.few_cells
@pytest.mark.broad_after(len(cells.names()))
@pytest.mark.parametrize("name", cells.names())
@EVERY_STACK
def test_of_every_cell(name: str, stack: str) -> None:
    net = network(name, 3, 4, dtype="float64", **STACKS[stack])
    case = draw(net, 4, 3, **(flags(4, 3) if "both" in stack else {}))
    assert_close(oracle(net, case), autograd(net, case), "float64", 4)


@pytest.mark.parametrize("name", ["lstm", "augru", "mlstm"])
def test_of_the_reverse_direction_alone(name: str) -> None:
    net = network(name, 3, 4, dtype="float64", num_layers=2, reverse=True)
    case = draw(net, STEPS, BATCH, **flags(STEPS, BATCH))
    assert_close(oracle(net, case), autograd(net, case), "float64", STEPS)


# --- cells of our own, written twice ---------------------------------------------------------------------------------


@cell(states="h c", initial={"c": 0.5})
def clipped(x: "I", h: "H", c: "H", *, W: "2 H I", R: "2 H H", p: "H"):
    """max and clip, ties among them; a choice by comparison; a parameter that is read twice."""
    a, b = W @ x + R @ h
    c = maximum(clip(a, -0.3, 0.3), p * c) + where(b > c, b * p, 0.25)
    return tanh(c) - clip(h, -0.1, 0.1), c


def clipped_torch(x: Any, h: Any, c: Any, w: dict[str, Any]) -> tuple[Any, Any]:
    a, b = (x @ w["W"][k].T + h @ w["R"][k].T for k in range(2))
    c = torch.maximum(a.clamp(-0.3, 0.3), w["p"] * c) + torch.where(b > c, b * w["p"], 0.25)
    return c.tanh() - h.clamp(-0.1, 0.1), c


@cell(states="M h", output="h")
def attention(x: "I", M: "H 4", h: "H", *, Q: "4 I", V: "H H", g: "H", b: "H"):
    """A matrix that is read through a softmax; layer norm; a max over an axis."""
    q = softmax(Q @ x)
    h = layer_norm(einsum("ij,j->i", M, q) + V @ h, g, b)
    return tanh(M + outer(h, q)) * rnn.max(M, axis=1, keepdims=True), h


def attention_torch(x: Any, M: Any, h: Any, w: dict[str, Any]) -> tuple[Any, Any]:
    q = (x @ w["Q"].T).softmax(-1)
    h = torch.einsum("bij,bj->bi", M, q) + h @ w["V"].T
    h = torch.nn.functional.layer_norm(h, h.shape[-1:], w["g"], w["b"])
    return torch.tanh(M + h[:, :, None] * q[:, None, :]) * M.amax(dim=-1, keepdim=True), h


@cell(states="h", output="y")
def two_phases(x: "I", h: "2 H", *, W: "H I", U: "2 H H", s: ""):
    """A product that feeds a product, heads, a scalar parameter, no derivative through a comparison."""
    z = tanh(W @ x + einsum("aij,aj->i", U, h))
    return tanh(einsum("aij,j->ai", U, z) * s + h), where(z > 0.1, z, s * z)


def two_phases_torch(x: Any, h: Any, w: dict[str, Any]) -> tuple[Any, Any]:
    z = torch.tanh(x @ w["W"].T + torch.einsum("aij,baj->bi", w["U"], h))
    y = torch.where(z > 0.1, z, w["s"] * z)
    return torch.tanh(torch.einsum("aij,bj->bai", w["U"], z) * w["s"] + h), y


class Spike(torch.autograd.Function):
    """As users of torch write it: a step forwards, a slope of their own backwards."""

    @staticmethod
    def forward(ctx: Any, v: Any, slope: Any) -> Any:
        ctx.save_for_backward(slope(v))
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, *above: Any) -> Any:
        return above[0] * ctx.saved_tensors[0], None


def lif_torch(x: Any, s: Any, v: Any, w: dict[str, Any]) -> tuple[Any, Any]:
    v = 0.95 * v - s + x @ w["W"].T + s @ w["R"].T + w["b"]
    return Spike.apply(v - 1, lambda v: 1 / (1 + 10 * v.abs()) ** 2), v


def alif_torch(x: Any, s: Any, v: Any, a: Any, w: dict[str, Any]) -> tuple[Any, Any, Any]:
    later = 0.995 * a + 0.005 * s
    v = 0.95 * v - (1 + 1.8 * a) * s + x @ w["W"].T + s @ w["R"].T + w["b"]
    return Spike.apply(v - 1 - 1.8 * later, lambda v: 0.3 * torch.relu(1 - v.abs())), v, later


def plif_torch(x: Any, s: Any, v: Any, w: dict[str, Any]) -> tuple[Any, Any]:
    u = (1 - s) * v
    v = u + torch.sigmoid(w["w"]) * (x @ w["W"].T + s @ w["R"].T + w["b"] - u)
    return Spike.apply(v - 1, lambda v: 1 / (1 + (torch.pi * v) ** 2)), v


def slstm_torch(x: Any, h: Any, c: Any, n: Any, m: Any, w: dict[str, Any]) -> tuple[Any, ...]:
    """As the authors have it, heads side by side."""
    gates = torch.einsum("gnhi,bi->gbnh", w["W"], x) + torch.einsum("gnhk,bnk->gbnh", w["R"], h)
    i, f, z, o = gates + w["b"][:, None]
    f = m + torch.nn.functional.logsigmoid(f)
    later = torch.maximum(i, f)
    i, f = torch.exp(i - later), torch.exp(f - later)
    c, n = f * c + i * torch.tanh(z), f * n + i
    h = torch.sigmoid(o) * c / n
    return h, c, n, later, h.flatten(1)


def block_gru_torch(x: Any, a: Any, h: Any, w: dict[str, Any]) -> tuple[Any, Any]:
    """As the authors have it: a block's product reads its part of h beside what all blocks share."""

    def norm(u: Any, scale: Any) -> Any:
        return torch.nn.functional.silu(u * torch.rsqrt(u.square().mean(-1, keepdim=True) + 1e-4) * scale)

    rows, blocks = h.shape[:2]
    a = a / torch.clamp(a.abs(), min=1).detach()
    shared = [u @ w[name].T for name, u in (("V", h.flatten(1)), ("W", x), ("M", a))]
    shared = [norm(u + w["b"][k], w["g"][k]) for k, u in enumerate(shared)]
    joined = torch.cat([h, *(u[:, None].expand(rows, blocks, -1) for u in shared)], -1)
    hidden = torch.einsum("bnk,nhk->bnh", joined, torch.cat([w["U"], *w["C"]], -1)) + w["b_z"]
    z = norm(hidden.flatten(1), w["g_z"]).unflatten(1, h.shape[1:])
    reset, candidate, update = torch.einsum("gnhk,bnk->gbnh", w["R"], z) + w["d"][:, None]
    update = torch.sigmoid(update - 1)
    h = update * torch.tanh(torch.sigmoid(reset) * candidate) + (1 - update) * h
    return h, h.flatten(1)


def m2rnn_torch(x: Any, S: Any, w: dict[str, Any]) -> tuple[Any, Any]:
    """As the authors have it, with matrices of keys times values."""
    q, k = torch.einsum("jnki,bi->jbnk", w["W"], x)
    v = torch.einsum("nhi,bi->bnh", w["V"], x)
    rate = torch.nn.functional.softplus(torch.einsum("ni,bi->bn", w["w"], x) + w["b"])
    f = torch.exp(-w["A"].exp() * rate)[..., None, None]
    S = f * S + (1 - f) * torch.tanh(S @ w["R"] + k[..., None] * v[..., None, :])
    return S, (q[..., None, :] @ S).flatten(1)


def coupled_torch(x: Any, h: Any, s: Any, w: dict[str, Any]) -> tuple[Any, Any, Any]:
    s = torch.tanh(s @ w["S"].T + h.flatten(1) @ w["V"].T)
    u = x @ w["W"].flatten(0, 1).T + s @ w["C"].T
    u = (u * torch.rsqrt(u.square().mean(-1, keepdim=True) + 1e-6) * w["g"]).unflatten(1, h.shape[1:])
    gate, new = torch.einsum("gnij,bnj->gbni", w["R"], h) + w["b"][:, None]
    h = torch.lerp(torch.tanh(u + new), h, torch.sigmoid(gate))
    return h, s, h.flatten(1)


def both_ways_torch(x: Any, S: Any, h: Any, w: dict[str, Any]) -> tuple[Any, Any]:
    read, write, fade = torch.einsum("gkh,bh->gbk", w["Q"], h)
    S = torch.sigmoid(fade)[..., None] * S + torch.softmax(write, -1)[..., None] * (h @ w["U"].T)[:, None]
    S = torch.tanh(S + (S.sum(1) @ w["T"].T)[:, None])
    seen = (torch.softmax(read, -1)[:, None] @ S)[:, 0]
    return S, torch.tanh(x @ w["W"].T + h @ w["R"].T + seen @ w["C"].T)


EAGER: dict[str, tuple[rnn.Cell, Any, int, dict[str, int]]] = {
    "lif": (cells.get("lif"), lif_torch, 0, {}),
    "alif": (cells.get("alif"), alif_torch, 0, {}),
    "plif": (cells.get("plif"), plif_torch, 0, {}),
    "clipped": (clipped, clipped_torch, 0, {}),
    "attention": (attention, attention_torch, 1, {}),
    "two_phases": (two_phases, two_phases_torch, 1, {}),
    "slstm": (cells.get("slstm"), slstm_torch, 4, {"N": 3}),
    "block_gru": (cells.get("block_gru"), block_gru_torch, 1, {"N": 3, "P": 5}),
    "m2rnn": (cells.get("m2rnn"), m2rnn_torch, 1, {"N": 3, "K": 5}),
    "coupled": (headed.coupled, coupled_torch, 2, {"N": 3, "D": 4, "P": 5}),
    "both_ways": (headed.both_ways, both_ways_torch, 1, {"K": 3, "V": 2}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.broad) if n in ("attention", "both_ways") else n for n in EAGER]
)
def test_of_cells_written_in_torch(name: str) -> None:
    """One layer, step by step as a user of torch writes it; some values are equal, so that ties occur."""
    own, eager, out, sizes = EAGER[name]
    net = network(own, 3, 4, dtype="float64", **sizes)
    case = draw(net, STEPS, BATCH)
    for value in (*case.x.values(), *case.state.values()):
        value[:] = np.round(value * 10) / 10
    xs = {n: t64(v, True) for n, v in case.x.items()}
    state = [t64(v, True) for v in case.state.values()]
    weights = {n: t64(v, True) for n, v in net.weights.items()}
    plain = {n.removesuffix("_l0"): v for n, v in weights.items()}
    now, ys = [s[0] for s in state], []
    for t in range(STEPS):
        results = eager(*(x[t] for x in xs.values()), *now, plain)
        now, ys = list(results[: len(state)]), [*ys, results[out]]
    y = rnn.reference(net)(case.x, case.state)[0]
    assert_close(y, torch.stack(ys).detach().numpy(), "float64", STEPS)
    loss = (t64(case.gy) * torch.stack(ys)).sum()
    loss = loss + sum((t64(g)[0] * s).sum() for g, s in zip(case.gstate.values(), now, strict=True))
    loss.backward()
    grads = {n: v.grad.numpy() for n, v in named(xs, dict(zip(case.state, state, strict=True)), weights).items()}
    assert_close(oracle(net, case), grads, "float64", STEPS)

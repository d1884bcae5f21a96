"""Blocks of large models: stand-ins with the parameters of transformers' classes against loops over steps; and these
classes themselves, where transformers is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import target
from tvm_rnn.errors import ConfigError
from tvm_rnn.passes.normalise import normalise
from tvm_rnn.passes.parallelise_time import ParalleliseTime

torch = pytest.importorskip("torch")
F = torch.nn.functional
D, N, M, K, V, WIDTH, T, B = 12, 2, 3, 4, 5, 3, 9, 2


def stand_in(name: str, parameters: dict[str, tuple[int, ...]], **attributes: Any) -> Any:
    """A module of a class of that name, whose parameters lie below modules of theirs, with random values."""
    made = type(name, (torch.nn.Module,), {"__module__": "transformers.models.stand_in"})()
    generator = torch.Generator().manual_seed(3)
    for path, shape in parameters.items():
        *folders, own = path.split(".")
        where = made
        for folder in folders:
            if folder not in dict(where.named_children()):
                where.add_module(folder, torch.nn.Module())
            where = getattr(where, folder)
        value = torch.randn(shape, generator=generator) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.5)
        where.register_parameter(own, torch.nn.Parameter(value))
    for key, value in attributes.items():
        setattr(made, key, value)
    return made


def delta_net(joined: bool) -> Any:
    key, value = N * K, N * M * V
    shapes = {"conv1d.weight": (2 * key + value, 1, WIDTH), "A_log": (N * M,), "dt_bias": (N * M,), "norm.weight": (V,)}
    if joined:
        shapes |= {"in_proj_qkvz.weight": (2 * key + 2 * value, D), "in_proj_ba.weight": (2 * N * M, D)}
    else:
        shapes |= {"in_proj_qkv.weight": (2 * key + value, D), "in_proj_z.weight": (value, D)}
        shapes |= {"in_proj_a.weight": (N * M, D), "in_proj_b.weight": (N * M, D)}
    sizes = {"hidden_size": D, "num_k_heads": N, "num_v_heads": N * M, "head_k_dim": K, "head_v_dim": V}
    more = {"conv_kernel_size": WIDTH, "activation": "silu", "layer_norm_epsilon": 1e-5}
    name = "Qwen3NextGatedDeltaNet" if joined else "Qwen3_5GatedDeltaNet"
    return stand_in(name, shapes | {"out_proj.weight": (D, value)}, **sizes, **more)


def by_steps(m: Any, x: Any) -> Any:
    """The block over x [B, T, D], one head after the other, one step after the other."""
    y = torch.zeros(B, T, D, dtype=torch.float64)
    p = {name: value.detach().double() for name, value in m.named_parameters()}
    for row in range(B):
        if "in_proj_qkvz.weight" in p:
            each = (x[row] @ p["in_proj_qkvz.weight"].T).reshape(T, N, -1)
            q, k, v, z = each.split([K, K, M * V, M * V], dim=2)
            b, a = (x[row] @ p["in_proj_ba.weight"].T).reshape(T, N, 2 * M).split(M, dim=2)
            before = torch.cat([u.reshape(T, -1) for u in (q, k, v)], dim=1)
        else:
            before, z, b, a = (x[row] @ p[f"in_proj_{n}.weight"].T for n in ("qkv", "z", "b", "a"))
        z, b, a = z.reshape(T, N * M, V), b.reshape(T, N * M), a.reshape(T, N * M)
        padded = torch.cat([torch.zeros(WIDTH - 1, before.shape[1], dtype=x.dtype), before])
        taps = p["conv1d.weight"][:, 0]
        u = F.silu(torch.stack([(padded[t : t + WIDTH] * taps.T).sum(0) for t in range(T)]))
        q, k, v = u.split([N * K, N * K, N * M * V], dim=1)
        out = torch.zeros(T, N * M, V, dtype=x.dtype)
        for head in range(N * M):
            S = torch.zeros(K, V, dtype=x.dtype)
            at = head // M
            for t in range(T):
                own_q, own_k = (w[t].reshape(N, K)[at] for w in (q, k))
                own_q, own_k = (w / (w @ w + 1e-6).sqrt() for w in (own_q, own_k))
                S = (-p["A_log"][head].exp() * F.softplus(a[t, head] + p["dt_bias"][head])).exp() * S
                S = S + b[t, head].sigmoid() * torch.outer(own_k, v[t].reshape(N * M, V)[head] - own_k @ S)
                o = own_q @ S / K**0.5
                out[t, head] = o / (o.square().mean() + 1e-5).sqrt() * p["norm.weight"] * F.silu(z[t, head])
        y[row] = out.reshape(T, -1) @ p["out_proj.weight"].T
    return y


L, HEADS = 12, 3


def gemma(activation: str = "GELUTanh") -> Any:
    shapes = {"linear_x.weight": (L, D), "linear_x.bias": (L,), "linear_y.weight": (L, D), "linear_y.bias": (L,)}
    shapes |= {
        "linear_out.weight": (D, L),
        "linear_out.bias": (D,),
        "conv_1d.weight": (L, 1, WIDTH),
        "conv_1d.bias": (L,),
    }
    for gate in ("input_gate", "recurrent_gate"):
        shapes |= {f"rg_lru.{gate}_weight": (HEADS, L // HEADS, L // HEADS), f"rg_lru.{gate}_bias": (HEADS, L // HEADS)}
    made = stand_in("RecurrentGemmaRecurrentBlock", shapes | {"rg_lru.recurrent_param": (L,)})
    made.hidden_size, made.lru_width, made.conv1d_width, made.act_fn = D, L, WIDTH, type(activation, (), {})()
    made.rg_lru.num_attention_heads = HEADS
    return made


def gemma_by_steps(m: Any, x: Any) -> Any:
    p = {name: value.detach().double() for name, value in m.named_parameters()}
    y = torch.zeros(B, T, D, dtype=torch.float64)
    for row in range(B):
        u = x[row] @ p["linear_x.weight"].T + p["linear_x.bias"]
        padded = torch.cat([torch.zeros(WIDTH - 1, L, dtype=x.dtype), u])
        h = torch.zeros(L, dtype=x.dtype)
        for t in range(T):
            conv = (padded[t : t + WIDTH] * p["conv_1d.weight"][:, 0].T).sum(0) + p["conv_1d.bias"]
            gates = []
            for gate in ("input_gate", "recurrent_gate"):
                blocks = zip(conv.reshape(HEADS, -1), p[f"rg_lru.{gate}_weight"], p[f"rg_lru.{gate}_bias"], strict=True)
                gates.append(torch.cat([part @ W + b for part, W, b in blocks]).sigmoid())
            a = (-8.0 * gates[1] * F.softplus(p["rg_lru.recurrent_param"])).exp()
            h = a * h + ((1.0 - a * a).sqrt() if t else 1.0) * conv * gates[0]
            side = F.gelu(x[row, t] @ p["linear_y.weight"].T + p["linear_y.bias"], approximate="tanh")
            y[row, t] = p["linear_out.weight"] @ (h * side) + p["linear_out.bias"]
    return y


CASES = {
    "Qwen3-Next": (lambda: delta_net(True), by_steps),
    "Qwen3.5": (lambda: delta_net(False), by_steps),
    "RecurrentGemma": (gemma, gemma_by_steps),
}


@pytest.mark.parametrize("name", CASES)
def test_a_block_is_its_loop(name: str) -> None:
    make, loop = CASES[name]
    module = make()
    x = torch.randn(B, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y, _ = rnn.reference(rnn.from_torch(module))(x.numpy())
    np.testing.assert_allclose(y, loop(module, x).numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", CASES)
def test_all_of_its_states_are_recurrences_over_time(name: str) -> None:
    net = rnn.from_torch(CASES[name][0](), batch_first=False)
    graph = ParalleliseTime().apply(normalise(net.layers[0].graph), net, target.TABLE["x86-64-v4"])
    assert {n.op for n in graph.results} <= {"scan", "scan_max", "scan_matrix", "delay"}


def test_the_batch_is_first() -> None:
    assert rnn.from_torch(gemma()).batch_first and not rnn.from_torch(gemma(), batch_first=False).batch_first


@pytest.mark.parametrize("wrong", ["hidden_act", "hidden_activation"])
def test_options_that_are_not_supported(wrong: str) -> None:
    module = delta_net(True) if wrong == "hidden_act" else gemma("Mish")
    if wrong == "hidden_act":
        module.activation = "tanh"
    with pytest.raises(ConfigError, match=wrong):
        rnn.from_torch(module, batch_first=False)


@pytest.mark.broad
def test_transformers_own() -> None:
    pytest.importorskip("transformers")
    from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet
    from transformers.models.recurrent_gemma.configuration_recurrent_gemma import RecurrentGemmaConfig
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

    torch.manual_seed(0)
    heads = {"linear_num_key_heads": N, "linear_num_value_heads": N * M}
    sizes = {"linear_key_head_dim": K, "linear_value_head_dim": V, "num_hidden_layers": 1}
    delta = Qwen3NextGatedDeltaNet(Qwen3NextConfig(hidden_size=D, **heads, **sizes), 0)
    griffin = RecurrentGemmaConfig(hidden_size=D, lru_width=L, num_attention_heads=HEADS, num_hidden_layers=1)
    x = torch.randn(B, 70, D)
    places = torch.arange(70)[None].repeat(B, 1)
    for module, more in ((delta, ()), (RecurrentGemmaRecurrentBlock(griffin, 0), (places, None, False))):
        for p in module.parameters():
            torch.nn.init.normal_(p, std=0.5 if p.ndim < 2 else p.shape[-1] ** -0.5)
        with torch.no_grad():
            expected = module(x, *more)
        expected = expected[0] if isinstance(expected, tuple) else expected
        y, _ = rnn.reference(rnn.from_torch(module, batch_first=False))(x.numpy().swapaxes(0, 1))
        np.testing.assert_allclose(y.swapaxes(0, 1), expected.numpy(), rtol=1e-3, atol=1e-5)

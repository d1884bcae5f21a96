"""Recurrent blocks of large models in PyTorch as RNNs: the gated delta nets of Qwen3-Next and Qwen3.5, and the
recurrent block of RecurrentGemma, as Hugging Face's transformers has them.

In: a module, known by the name of its class, and a function that reads a parameter. Out: a cell with all that the block
does from its input to its output (projections, causal convolution, gates, norms), and its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.errors import ConfigError, message
from tvm_rnn.language import functions as f
from tvm_rnn.language.cell import Cell
from tvm_rnn.language.trace import Value

from .built_cells import Values, build_cell

if TYPE_CHECKING:
    import torch

Array = np.ndarray
Read = Callable[[str], Array]  # a parameter by its name in the module
LENGTH_EPS = 1e-6  # of q and k, which are divided by their length


@dataclass(frozen=True)
class Block:
    """A cell with its weights. input_size: features of x and of y."""

    cell: Cell
    input_size: int
    weights: Mapping[str, Array]


def read_block(module: torch.nn.Module, read: Read) -> Block | None:
    """A module of a known class; None for any other. Raises ConfigError for options that are not supported."""
    maker = BLOCKS.get(type(module).__name__) if type(module).__module__.startswith("transformers.") else None
    return None if maker is None else maker(module, read)


def _unsupported(module: object, name: str, got: object, expected: str) -> ConfigError:
    what = f"from_torch: {type(module).__name__} with this {name} is not supported"
    return ConfigError(message(what, got=got, expected=expected, do="write its equations as a cell"))


def _kept(u: Value, past: list[Value], taps: Value) -> Value:
    """A causal convolution over time, a number for each feature: past has the last steps, the latest first."""
    total = taps[-1] * u
    for age, old in enumerate(past, 1):
        total = total + taps[-1 - age] * old
    return total


# --- gated delta nets -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeltaSizes:
    """heads: of keys; groups: value heads for each; width: steps of the convolution; eps: of the norm."""

    inputs: int
    heads: int
    groups: int
    keys: int
    values: int
    width: int
    eps: float

    @property
    def channels(self) -> int:
        """Of q, k and v, side by side."""
        return self.heads * (2 * self.keys + self.groups * self.values)

    def cell(self) -> Cell:
        N, M, K, V, C, D = self.heads, self.groups, self.keys, self.values, self.channels, self.inputs
        doc = "Gated DeltaNet (Yang, Kautz & Hatamizadeh 2025) with its projections, convolution, gate and norm."
        states = {"S": f"{N} {M} {K} {V}", **{f"u{age}": f"{C}" for age in range(1, self.width)}}
        params = {
            "W": f"{C} {D}",
            "c": f"{self.width} {C}",
            "w": f"2 {N} {M} {D}",
            "A": f"{N} {M}",
            "d": f"{N} {M}",
            "Z": f"{N} {M} {V} {D}",
            "a": f"{V}",
            "O": f"{D} {N * M * V}",
        }
        return build_cell("gated_delta_block", doc, {"x": f"{D}"}, states, params, self.equations, output="y")

    def equations(self, v: Values) -> tuple[Value, ...]:
        N, M, K, V, x, S = self.heads, self.groups, self.keys, self.values, v["x"], v["S"]
        past = [v[f"u{age}"] for age in range(1, self.width)]
        new = v["W"] @ x
        u = f.silu(_kept(new, past, v["c"]))
        q, k = f.reshape(u[: N * K], (N, K)), f.reshape(u[N * K : 2 * N * K], (N, K))
        value = f.reshape(u[2 * N * K :], (N, M, V))
        q, k = (r / f.reshape(f.sqrt(f.einsum("nk,nk->n", r, r) + LENGTH_EPS), (N, 1)) for r in (q, k))
        strength, decay = (f.einsum("nmi,i->nm", v["w"][i], x) for i in (0, 1))
        decay = f.exp(-f.exp(v["A"]) * f.softplus(decay + v["d"]))
        S = f.reshape(decay, (N, M, 1, 1)) * S
        read = f.einsum("nk,nmkv->nmv", k, S)
        written = f.reshape(f.sigmoid(strength), (N, M, 1)) * (value - read)
        S = S + f.reshape(k, (N, 1, K, 1)) * f.reshape(written, (N, M, 1, V))
        o = f.einsum("nk,nmkv->nmv", K**-0.5 * q, S)
        o = o / f.sqrt(f.mean(o * o, axis=-1, keepdims=True) + self.eps) * v["a"]
        o = o * f.silu(f.einsum("nmvi,i->nmv", v["Z"], x))
        return S, *[new, *past][: len(past)], v["O"] @ f.reshape(o, (N * M * V,))


def _delta_block(module: torch.nn.Module, read: Read, split: Callable[[DeltaSizes, Read], dict[str, Array]]) -> Block:
    if module.activation not in ("silu", "swish"):
        raise _unsupported(module, "hidden_act", module.activation, "silu")
    sizes = DeltaSizes(
        inputs=module.hidden_size,
        heads=module.num_k_heads,
        groups=module.num_v_heads // module.num_k_heads,
        keys=module.head_k_dim,
        values=module.head_v_dim,
        width=module.conv_kernel_size,
        eps=float(module.layer_norm_epsilon),
    )
    N, M = sizes.heads, sizes.groups
    weights = {
        **split(sizes, read),
        "c": read("conv1d.weight")[:, 0].T,
        "A": read("A_log").reshape(N, M),
        "d": read("dt_bias").reshape(N, M),
        "a": read("norm.weight"),
        "O": read("out_proj.weight"),
    }
    return Block(sizes.cell(), sizes.inputs, weights)


def _joined(sizes: DeltaSizes, read: Read) -> dict[str, Array]:
    """Qwen3-Next has q, k, v and the gate of each key head side by side, and so write strengths and decays."""
    N, M, K, V, D = sizes.heads, sizes.groups, sizes.keys, sizes.values, sizes.inputs
    q, k, v, gate = np.split(read("in_proj_qkvz.weight").reshape(N, -1, D), [K, 2 * K, 2 * K + M * V], axis=1)
    w = read("in_proj_ba.weight").reshape(N, 2, M, D).swapaxes(0, 1)
    W = np.concatenate([part.reshape(-1, D) for part in (q, k, v)])
    return {"W": W, "w": w, "Z": gate.reshape(N, M, V, D)}


def _apart(sizes: DeltaSizes, read: Read) -> dict[str, Array]:
    """Qwen3.5 has them one after the other."""
    N, M, V, D = sizes.heads, sizes.groups, sizes.values, sizes.inputs
    w = np.stack([read(f"in_proj_{name}.weight").reshape(N, M, D) for name in "ba"])
    return {"W": read("in_proj_qkv.weight"), "w": w, "Z": read("in_proj_z.weight").reshape(N, M, V, D)}


# --- RecurrentGemma ---------------------------------------------------------------------------------------------------

ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "gelu_pytorch_tanh": lambda x: 0.5 * x * (1.0 + f.tanh((2.0 / np.pi) ** 0.5 * (x + 0.044715 * x * x * x))),
    "gelu": f.gelu,
    "silu": f.silu,
    "relu": f.relu,
}


@dataclass(frozen=True)
class LruSizes:
    """features: of the recurrence; heads: blocks of the gates' matrices; width: steps of the convolution."""

    inputs: int
    features: int
    heads: int
    width: int
    activation: str

    def cell(self) -> Cell:
        D, L, N = self.inputs, self.features, self.heads
        doc = "The recurrent block of Griffin (De et al. 2024): a convolution and RG-LRU, and a gate beside them."
        states = {"h": f"{L}", "begun": "", **{f"u{age}": f"{L}" for age in range(1, self.width)}}
        block = L // N
        params = {
            "X": f"{L} {D}",
            "b_x": f"{L}",
            "Y": f"{L} {D}",
            "b_y": f"{L}",
            "c": f"{self.width} {L}",
            "b_c": f"{L}",
            "G": f"2 {N} {block} {block}",
            "b_g": f"2 {N} {block}",
            "A": f"{L}",
            "O": f"{D} {L}",
            "b_o": f"{D}",
        }
        return build_cell("recurrent_gemma_block", doc, {"x": f"{D}"}, states, params, self.equations, output="y")

    def equations(self, v: Values) -> tuple[Value, ...]:
        L, N, x = self.features, self.heads, v["x"]
        past = [v[f"u{age}"] for age in range(1, self.width)]
        new = v["X"] @ x + v["b_x"]
        u = _kept(new, past, v["c"]) + v["b_c"]
        heads = f.reshape(u, (N, L // N))
        i, r = (f.sigmoid(f.einsum("nij,ni->nj", v["G"][at], heads) + v["b_g"][at]) for at in (0, 1))
        log_a = -8.0 * f.reshape(r, (L,)) * f.softplus(v["A"])
        scale = f.where(v["begun"] > 0.5, f.sqrt(-f.expm1(2.0 * log_a)), 1.0)  # the first step's input counts whole
        h = f.exp(log_a) * v["h"] + scale * (u * f.reshape(i, (L,)))
        gate = ACTIVATIONS[self.activation](v["Y"] @ x + v["b_y"])
        y = v["O"] @ (h * gate) + v["b_o"]
        return h, f.maximum(v["begun"], 1.0), *[new, *past][: len(past)], y


def _gemma_block(module: torch.nn.Module, read: Read) -> Block:
    name = getattr(module.act_fn, "__name__", "") or type(module.act_fn).__name__
    names = {"GELUTanh": "gelu_pytorch_tanh", "PytorchGELUTanh": "gelu_pytorch_tanh", "GELUActivation": "gelu"}
    known = {**names, "SiLU": "silu", "SiLUActivation": "silu", "ReLU": "relu"}
    if name not in known:
        raise _unsupported(module, "hidden_activation", name, ", ".join(ACTIVATIONS))
    lru = module.rg_lru
    sizes = LruSizes(module.hidden_size, module.lru_width, lru.num_attention_heads, module.conv1d_width, known[name])
    gates = ("rg_lru.input_gate", "rg_lru.recurrent_gate")
    weights = {
        "X": read("linear_x.weight"),
        "b_x": read("linear_x.bias"),
        "Y": read("linear_y.weight"),
        "b_y": read("linear_y.bias"),
        "c": read("conv_1d.weight")[:, 0].T,
        "b_c": read("conv_1d.bias"),
        "G": np.stack([read(f"{gate}_weight") for gate in gates]),
        "b_g": np.stack([read(f"{gate}_bias") for gate in gates]),
        "A": read("rg_lru.recurrent_param"),
        "O": read("linear_out.weight"),
        "b_o": read("linear_out.bias"),
    }
    return Block(sizes.cell(), sizes.inputs, weights)


BLOCKS: Mapping[str, Callable[[torch.nn.Module, Read], Block]] = {
    "Qwen3NextGatedDeltaNet": lambda module, read: _delta_block(module, read, _joined),
    "Qwen3_5GatedDeltaNet": lambda module, read: _delta_block(module, read, _apart),
    "RecurrentGemmaRecurrentBlock": _gemma_block,
}

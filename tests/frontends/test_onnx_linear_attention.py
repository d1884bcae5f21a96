"""LinearAttention nodes: the standard's own tests, every rule with grouped heads against plain loops, and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import meets, standard_cases

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError
from tvm_rnn.frontends.onnx_linear_attention import RULES

B, T, N, G, K, V = 2, 5, 2, 3, 4, 3
SIZES = {"query": N * G * K, "key": N * K, "value": N * V, "decay": N, "beta": N}


def attention(sizes: Mapping[str, int] = SIZES, rule: str = "gated_delta", **more: Any) -> onnx.ModelProto:
    """A node behind an Identity of each input, so that shapes must be inferred; query, key, ... of the given widths."""
    names = ["query", "key", "value", *RULES.get(rule, ())]
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["B", "T", sizes[n]]) for n in names]
    past = helper.make_tensor_value_info("past", TensorProto.FLOAT, ["B", N, K, V])
    inputs = [f"{n}_" if n in names else "" for n in ("query", "key", "value", "past", "decay", "beta")]
    inputs[3] = "past"
    options = {"q_num_heads": N * G, "kv_num_heads": N, "update_rule": rule} | more
    nodes = [helper.make_node("Identity", [n], [f"{n}_"]) for n in names]
    nodes.append(helper.make_node("LinearAttention", inputs, ["y", "S"], name="attention", **options))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "S")]
    graph = helper.make_graph(nodes, "g", [*kinds, past], ends)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 27)])


def by_steps(rule: str, scale: float, given: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    S = given["past"].astype(np.float64)
    q, k, v = (given[n].reshape(B, T, -1, d) for n, d in (("query", K), ("key", K), ("value", V)))
    y = np.zeros((B, T, N * G, V))
    for t in range(T):
        new = v[:, t]
        if "decay" in RULES[rule]:
            S = np.exp(given["decay"][:, t].reshape(B, N, -1, 1)) * S
        if "beta" in RULES[rule]:
            new = given["beta"][:, t][..., None] * (new - np.einsum("bnk,bnkv->bnv", k[:, t], S))
        S = S + np.einsum("bnk,bnv->bnkv", k[:, t], new)
        y[:, t] = scale * np.einsum("bhk,bhkv->bhv", q[:, t], np.repeat(S, G, axis=1))
    return y.reshape(B, T, -1), S


def drawn(sizes: Mapping[str, int] = SIZES) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    given = {n: 0.5 * rng.standard_normal((B, T, size)).astype(np.float32) for n, size in sizes.items()}
    given["decay"] = -np.abs(given["decay"])
    return given | {"past": rng.standard_normal((B, N, K, V)).astype(np.float32)}


@pytest.mark.parametrize("wide", [False, True], ids=["a decay per head", "a decay per key"])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_its_loop(rule: str, wide: bool) -> None:
    sizes = {**SIZES, "decay": N * K, "beta": 1} if wide else SIZES
    scale, given = (0.25, drawn(sizes)) if wide else (K**-0.5, drawn(sizes))
    model = attention(sizes, rule, **({"scale": scale} if wide else {}))
    feeds = {i.name: given[i.name] for i in model.graph.input}
    found = rnn.reference(rnn.from_onnx(model)).run(feeds)
    for name, value in zip(("y", "S"), by_steps(rule, scale, given), strict=True):
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_the_standards_own_tests() -> None:
    cases = standard_cases("LinearAttention")
    assert len(cases) >= 5
    for case in cases:
        meets(case, rnn.reference(rnn.from_onnx(case.model)).run, rtol=1e-3, atol=1e-3)


@pytest.mark.broad
def test_compiled() -> None:
    model, given = attention(), drawn()
    found = rnn.compile(rnn.from_onnx(model)).run({i.name: given[i.name] for i in model.graph.input})
    for name, value in zip(("y", "S"), by_steps("gated_delta", K**-0.5, given), strict=True):
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "options", "reason"),
    [
        (SIZES, {"rule": "sideways"}, "update_rule 'sideways' is none of linear, gated"),
        (SIZES, {"kv_num_heads": 4}, "the first is a multiple of the second"),
        (SIZES, {"q_num_heads": 0}, "the first is a multiple of the second"),
        ({**SIZES, "key": 7}, {}, "key has 7 features, 2 heads do not divide them"),
        ({**SIZES, "query": 48}, {}, "query has 48 features, expected 6 heads of 4"),
        ({**SIZES, "decay": 5}, {}, "decay has 5 features, expected 2 or 8"),
        ({**SIZES, "beta": 5}, {}, "beta has 5 features, expected 2 or 1"),
        ({**SIZES, "value": "W"}, {}, "the last of a size that is known"),
    ],
)
def test_what_does_not_fit_is_named(sizes: Any, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match="attention") as error:
        rnn.from_onnx(attention(sizes, **options))
    assert reason in str(error.value)


def test_an_input_that_the_rule_needs() -> None:
    model = attention(rule="linear")
    model.graph.node[-1].attribute[2].s = b"gated"
    with pytest.raises(ConfigError, match="update_rule gated needs decay"):
        rnn.from_onnx(model)

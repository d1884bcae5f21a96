"""The operations of graph_ops on a GPU, without one: emulated kernels on torch's tensors.

In: small networks. Out: results, gradients and shapes, beside torch's operations in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated_torch import module, stand_in

import tvm_rnn as rnn

torch = pytest.importorskip("torch")
graph_ops = pytest.importorskip("tvm_rnn.torch_layer.graph_ops")
autograd = pytest.importorskip("tvm_rnn.torch_layer.autograd")
pytestmark = [pytest.mark.peers, pytest.mark.slow]

X, H, T, B = 5, 16, 4, 3
NETS: dict[str, tuple[str, dict[str, Any]]] = {
    "elman": ("elman", {}),
    "backwards": ("lstm", {"reverse": True}),
    "two layers": ("gru", {"num_layers": 2, "bidirectional": True}),
    "dropout": ("elman", {"num_layers": 2, "dropout": 0.3}),
}


@pytest.mark.parametrize("name", NETS)
def test_steps_and_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")
    stand_in(monkeypatch)
    cell, options = NETS[name]
    net = rnn.RNN(getattr(rnn.cells, cell), X, H, **options)
    code = graph_ops.Code(module(net))
    net.init(0)
    weights = [torch.tensor(np.asarray(net.weights[key]), dtype=code.exact) for key in code.weights]
    x, dropping = torch.randn(T, B, X), "dropout" in options
    for flagged in (False, True):
        states = [torch.randn(shape) for shape in code.shapes(B)]
        rows = [torch.tensor([4, 2, 3])] * flagged + [torch.tensor([7])] * dropping
        numbers = [int(flagged), 0, int(dropping), 0]
        tensors = [x, *states, *weights, *rows]
        found = graph_ops._recorded_there(code.name, tensors, numbers)
        _same_form(found, graph_ops._recorded_shapes(code.name, tensors, numbers))
        results, kept = found[: 1 + len(states)], found[1 + len(states) :]
        above = [torch.randn_like(value) for value in results]
        rest = [*[x][: code.read], *weights, *rows]
        given = (code.name, kept, above, rest, [*numbers, T, B])
        gradients = graph_ops._gradients_there(*given)
        _same_form(gradients, graph_ops._gradients_shapes(*given))
        if not dropping:
            plain = graph_ops._steps_there(code.name, tensors, numbers)
            assert all(torch.equal(one, two) for one, two in zip(plain, results, strict=True))
        leaves = [value.double().requires_grad_() for value in (x, *states, *weights)]
        call: dict[str, Any] = {"lengths": rows[0] if flagged else None, "reset": None}
        call |= {"seed": 7, "first_step": 0} if dropping else {}
        first, last = leaves[: 1 + len(states)], leaves[1 + len(states) :]
        y, ends = autograd.InTorch(net, call)(first[:1], code.named(first[1:]), last)
        outputs = [y, *autograd.flat(ends)]
        expected = torch.autograd.grad(outputs, leaves, [d.double() for d in above])
        for one, two in zip([*results, *gradients], [*outputs, *expected], strict=True):
            assert float((one.double() - two.detach()).norm()) < 1e-5 * float(two.detach().norm())


def _same_form(found: Any, fake: Any) -> None:
    assert [(v.shape, v.dtype, v.stride()) for v in found] == [(v.shape, v.dtype, v.stride()) for v in fake]

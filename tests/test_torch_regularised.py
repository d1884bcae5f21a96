"""to_torch of a network with regularisers: modes, seeds, gradients against the oracle, and data-parallel training.

In: one compiled network with every regulariser, in float64. Several processes train it over gloo, on CPUs.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from derivatives import draw, oracle
from networks import flags, network

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError
from tvm_rnn.oracle.tolerance import assert_close

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers

T, B = 6, 4
OPTIONS: dict[str, Any] = {"dropout": 0.4, "recurrent_dropout": 0.3, "zoneout": 0.2, "weight_drop": 0.35}
NET = network("elman", 3, 5, num_layers=2, dtype="float64", **OPTIONS)
PLAIN = network("elman", 3, 5, num_layers=2, dtype="float64")


@pytest.fixture(scope="module")
def layer() -> Any:
    return rnn.to_torch(NET)


def x_of(case: Any) -> Any:
    return torch.tensor(case.x["x"], requires_grad=True)


@pytest.mark.broad
def test_gradients_in_training_are_the_oracles(layer: Any) -> None:
    case = draw(NET, T, B, **flags(T, B))
    case.training.update(seed=12, first_step=3)
    x = x_of(case)
    layer.train().zero_grad()
    y, last = layer(x, **case.rows, **case.training)
    loss = (torch.tensor(case.gy) * y).sum() + sum((torch.tensor(g) * last[n]).sum() for n, g in case.gstate.items())
    loss.backward()
    case.state.update(NET.initial_state(B))
    found = {"x": x.grad, **{n: p.grad for n, p in layer.named_parameters()}}
    expected = oracle(NET, case)
    assert_close(found, {name: expected[name] for name in found}, "float64", T)


@pytest.mark.broad
def test_eval_mode_is_inference(layer: Any) -> None:
    case = draw(NET, T, B)
    layer.eval()
    y, _ = layer(x_of(case))
    np.testing.assert_array_equal(y.detach().numpy(), layer.compiled()(case.x)[0])
    assert_close(y.detach().numpy(), rnn.reference(NET)(case.x)[0], "float64", T)
    assert y.requires_grad
    with pytest.raises(ConfigError, match="in training mode"):
        y.sum().backward()
    with torch.no_grad():
        np.testing.assert_array_equal(layer(x_of(case))[0].numpy(), y.detach().numpy())
    layer.train()


@pytest.mark.broad
def test_seeds_come_from_torchs_generator(layer: Any) -> None:
    x = x_of(draw(NET, T, B))
    layer.train()

    def run() -> Any:
        return layer(x)[0].detach().numpy()

    torch.manual_seed(5)
    one, two = run(), run()
    assert (one != two).any()
    torch.manual_seed(5)
    np.testing.assert_array_equal(run(), one)
    with torch.no_grad():  # masks act without gradients, too
        np.testing.assert_array_equal(run(), two)
    np.testing.assert_array_equal(*(layer(x, seed=3)[0].detach().numpy() for _ in range(2)))


@pytest.mark.broad
def test_checkpoints_make_the_same_masks_again(layer: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    x, found = x_of(draw(NET, T, B)), []
    layer.train()
    for again in (False, True):
        torch.manual_seed(8)
        layer.zero_grad()
        y = checkpoint(lambda v: layer(v)[0], x, use_reentrant=False) if again else layer(x)[0]
        y.square().sum().backward()
        found.append([p.grad.clone() for p in layer.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.slow
def test_a_copy_and_a_network_without_regularisers(layer: Any) -> None:
    x = x_of(draw(NET, T, B))
    twin = copy.deepcopy(layer)
    assert torch.equal(layer.train()(x, seed=1)[0], twin.train()(x, seed=1)[0])
    plain = rnn.to_torch(PLAIN)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert torch.equal(plain.train()(x)[0], plain.eval()(x)[0])
    assert torch.equal(torch.get_rng_state(), state)  # it draws no seed


def test_layers_of_torch_have_dropout_alone() -> None:
    made = rnn.to_torch_layer(network("gru", 3, 4, num_layers=2, dropout=0.25))
    assert made.dropout == 0.25 and not made.training
    with pytest.raises(ConfigError, match="zoneout"):
        rnn.to_torch_layer(network("gru", 3, 4, zoneout=0.1))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["replicated", "sharded"])
@pytest.mark.parametrize("regularised", [False, True], ids=["plain", "regularised"])
def test_data_parallel_training_over_gloo(regularised: bool, way: str, tmp_path: Path) -> None:
    """Two processes with half of the rows each, in DistributedDataParallel and in FSDP2: their parameters after some
    steps of SGD are, bit for bit, each other's, and those of one process with all rows; with masks those of one process
    that runs both halves."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no torch.distributed with gloo")
    from train_parallel import WORK, alone, spawn

    first, expected = WORK["gloo"].net(regularised).weights, alone("gloo", regularised, 2)
    found = spawn("gloo", tmp_path, regularised, way=way)
    for name, value in expected.items():
        assert torch.equal(found[0][name], found[1][name])
        assert_close(found[0][name].numpy(), value.numpy(), "float64", T, name)
        assert not torch.equal(value, torch.tensor(first[name]))

"""rnn.nn.Cell: any cell as a layer of torch's kind: its results are those of to_torch, in the form of torch's layers.

In: small cells in float64. Code is compiled once, and found again by layers of the same equations and sizes.
"""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest

import tvm_rnn as rnn
from tvm_rnn import cells
from tvm_rnn.oracle.tolerance import assert_close

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers

X, H, T, B = 3, 4, 5, 2


def made(cell: Any = cells.lstm, **options: Any) -> Any:
    torch.manual_seed(0)
    return rnn.nn.Cell(cell, X, H, dtype=torch.float64, **options)


@pytest.fixture(scope="module")
def layer(kept_code: object) -> Any:
    found = made()
    found(torch.zeros(T, B, X, dtype=torch.float64))
    return found


def drawn(*shape: int) -> Any:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()


def close(own: Any, other: Any) -> None:
    assert_close(own.detach(), other.detach(), "float64", T)


def oracle(layer: Any, x: Any, state: Any = None, **rows: Any) -> Any:
    """y and the last states of the layer's equations in NumPy."""
    net = copy.deepcopy(layer.net).load({name: part.detach().numpy() for name, part in layer.named_parameters()})
    first = None if state is None else {name: part.detach().numpy() for name, part in state.items()}
    y, last = rnn.reference(net)(x.detach().numpy(), first, **rows)
    return torch.tensor(y), {name: torch.tensor(part) for name, part in last.items()}


def test_called_as_torchs_layers(layer: Any) -> None:
    x, h, c = drawn(T, B, X), drawn(1, B, H), 2 * drawn(1, B, H)
    y, (h_n, c_n) = layer(x, (h, c))
    expected, last = oracle(layer, x, {"h": h, "c": c})
    close(y, expected)
    close(h_n, last["h"])
    close(c_n, last["c"])
    first, (h_1, c_1) = layer(x[:, 0], (h[:, 0], c[:, 0]))
    close(first, y[:, 0])
    close(h_1, h_n[:, 0])
    close(c_1, c_n[:, 0])
    close(layer(x, lengths=[2, 5])[0], oracle(layer, x, lengths=[2, 5])[0])
    close(layer(x)[1][0], oracle(layer, x)[1]["h"])


def test_gradients_are_those_of_the_oracle(layer: Any) -> None:
    weights = dict(layer.named_parameters())
    net = copy.deepcopy(layer.net).load({name: part.detach().numpy() for name, part in weights.items()})
    x = drawn(T, B, X)
    y, (h, c) = layer(x)
    own = torch.autograd.grad(y.square().sum() + (h * c).sum(), [x, *weights.values()])
    above = {"h": c.detach().numpy(), "c": h.detach().numpy()}
    gx, _, expected = rnn.reference(net).gradients(x.detach().numpy(), None, 2 * y.detach().numpy(), above)
    for found, value in zip(own, [gx, *(expected[name] for name in weights)], strict=True):
        close(found, torch.tensor(value))


def test_with_the_batch_first(layer: Any) -> None:
    other, x = made(batch_first=True), drawn(B, T, X)
    assert repr(other).endswith(", batch_first=True)")
    reset = torch.tensor([[False, False, True, False, False], [False] * T])
    y, (h, _) = other(x, reset=reset)
    expected, (wanted, _) = layer(x.transpose(0, 1), reset=reset.T)
    close(y, expected.transpose(0, 1))
    close(h, wanted)
    close(other(x[0])[0], other(x)[0][0])


def test_torch_may_free_parameters_after_a_call(layer: Any) -> None:
    """As FSDP does between calls."""
    own, x = copy.deepcopy(layer), drawn(T, B, X)
    own(x)[0].sum().backward()
    assert all(value.untyped_storage().resizable() for value in own.parameters())


@pytest.mark.parametrize("batch_first", [False, True])
def test_packed_rows(layer: Any, batch_first: bool) -> None:
    """Not in the order of their lengths, from states of their own."""
    own, x, lengths = made(batch_first=batch_first), drawn(T, 3, X), torch.tensor([2, 5, 2])
    state = drawn(1, 3, H), drawn(1, 3, H)
    given = x.transpose(0, 1) if batch_first else x
    packed = torch.nn.utils.rnn.pack_padded_sequence(given, lengths, batch_first, enforce_sorted=False)
    y, last = own(packed, state)
    found, _ = torch.nn.utils.rnn.pad_packed_sequence(y)
    expected, wanted = layer(x, state, lengths=lengths)
    for one, two in zip((found, *last), (expected, *wanted), strict=True):
        close(one, two)
    assert torch.equal(y.sorted_indices, packed.sorted_indices)
    with pytest.raises(rnn.InputError, match="packed x has its lengths"):
        own(packed, state, lengths=lengths)


def test_copies_and_pickles(layer: Any) -> None:
    file, x = io.BytesIO(), drawn(T, B, X)
    torch.save(layer, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), again):
        assert torch.equal(other(x)[0], layer(x)[0])
        assert other.net.cell is cells.lstm
        with torch.no_grad():
            other.W_l0.mul_(2.0)
        assert not torch.equal(other(x)[0], layer(x)[0])
        other.load_state_dict(layer.state_dict())
        assert torch.equal(other(x)[0], layer(x)[0])


def test_begins_with_torchs_generator() -> None:
    assert all(torch.equal(own, other) for own, other in zip(made().parameters(), made().parameters(), strict=True))
    first = made()
    first.reset_parameters()
    assert not torch.equal(first.W_l0, made().W_l0)
    assert rnn.nn.Cell(cells.gru, X, H).W_l0.dtype == torch.get_default_dtype()


def test_refused(layer: Any) -> None:
    with pytest.raises(rnn.InputError, match="on several devices"):
        layer(torch.zeros(T, B, X, dtype=torch.float64, device="meta"))
    with pytest.raises(rnn.ConfigError, match="does not serve these parameters"):
        rnn.nn.Cell(cells.gru, X, H, dtype=torch.float16)(torch.zeros(T, B, X, dtype=torch.float16))
    with pytest.raises(rnn.InputError, match="wrong number of states"):
        layer(drawn(T, B, X), drawn(1, B, H))
    with pytest.raises(rnn.InputError, match="wrong dtype"):
        layer(torch.zeros(T, B, X))
    with pytest.raises(rnn.InputError, match="this layer takes tensors"):
        layer(torch.zeros(T, B, X).numpy())


@rnn.cell(states="h")
def of_here(x: "I", h: "H", *, W: "H I", decay: "H"):
    return h * rnn.sigmoid(decay) + rnn.matvec(W, x)


@pytest.mark.broad
def test_cells_of_every_form(layer: Any) -> None:
    x = drawn(T, B, X)
    own = pickle.loads(pickle.dumps(made(of_here, num_layers=2)))
    y, h = own(x, torch.ones(2, B, H, dtype=torch.float64))
    close(y, oracle(own, x, {"h": torch.ones(2, B, H, dtype=torch.float64)})[0])
    assert h.shape == (2, B, H)
    memory, attention = drawn(B, 3, 5), made(cells.gru_attention, E=5, S=3, A=4, batch_first=True)
    constants = {"memory": memory, "keys": drawn(B, 3, 4), "mask": torch.ones(B, 3, dtype=torch.float64)}
    y, h = attention(x.transpose(0, 1), **constants)
    close(attention(x[:, 0], **{name: value[0] for name, value in constants.items()})[0], y[0])
    own = own.float()
    assert own(x.float())[0].dtype == torch.float32
    dropping = made(cells.gru, num_layers=2, dropout=0.5)
    assert not torch.equal(dropping(x)[0], dropping(x)[0])
    assert torch.equal(dropping.eval()(x)[0], dropping(x)[0])


@pytest.mark.broad
def test_in_graphs_once_it_is_compiled(layer: Any) -> None:
    x = drawn(T, B, X)
    close(torch.compile(layer, backend="eager", fullgraph=True)(x)[0], layer(x)[0])
    close(torch.export.export(copy.deepcopy(layer), (x.detach(),), strict=False).module()(x)[0], layer(x)[0])

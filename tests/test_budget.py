"""What reading a file may take: counted, named, raised by who trusts the file."""

from __future__ import annotations

import json

import pytest

import tvm_rnn as rnn
from tvm_rnn.budget import BYTES_PER_BYTE, Spending, is_shape
from tvm_rnn.errors import ConfigError, InputError


@pytest.mark.parametrize("limit", ["bytes", "nodes", "depth"])
def test_each_limit_is_named_and_says_how_to_raise_it(limit: str) -> None:
    with rnn.Budget(bytes=10, nodes=3, depth=2):
        spending = Spending("m.onnx", error=InputError)
    spending.take("all of it", bytes=10, nodes=3, depth=2)
    text = rf"(?s)m\.onnx.*more.*{limit} of at most .*tvm_rnn\.Budget\({limit}=\d+\)"
    with pytest.raises(InputError, match=text):
        spending.take("more", **{limit: 11})


def test_a_larger_file_may_take_more_bytes() -> None:
    with rnn.Budget(bytes=10):
        Spending(size=5).take("weights", bytes=10 + 5 * BYTES_PER_BYTE)
        with pytest.raises(ConfigError, match="budget"):
            Spending(size=5).take("weights", bytes=11 + 5 * BYTES_PER_BYTE)


def test_a_budget_holds_in_its_block_alone() -> None:
    default = Spending().budget
    with rnn.Budget(depth=7), rnn.Budget(depth=9):
        assert Spending().budget.depth == 9
    with pytest.raises(KeyError), rnn.Budget(depth=7):
        raise KeyError
    assert Spending().budget == default == rnn.Budget()


DEEP, LONG = b"[" * 99_999 + b"]" * 99_999, b"[" + b"0," * 20 + b"0]"


@pytest.mark.parametrize(("text", "limit"), [(DEEP, "depth"), (LONG, "nodes")], ids=["deep", "long"])
def test_json_that_is_deep_or_long(text: bytes, limit: str) -> None:
    with rnn.Budget(nodes=1 << 20 if limit == "depth" else 20), pytest.raises(ConfigError, match=f"{limit} of at most"):
        Spending().json(text, "a config")


def test_json_that_is_small_enough() -> None:
    value = {"a": [1, {"b": None}], "c": "[[,,"}
    assert Spending().json(json.dumps(value).encode(), "a config") == value


def test_shapes_that_numpy_can_have() -> None:
    assert is_shape([]) and is_shape([0, 3]) and is_shape([1 << 20, 1 << 20])
    assert not any(map(is_shape, ([-1], [1] * 33, [0, 1 << 62], [1 << 40, 1 << 40])))

"""kept: names of what training keeps, which network has which, and what is said of others."""

from __future__ import annotations

import pytest

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError
from tvm_rnn.passes.keep_choice import NARROW, check, chosen, most_share, names, share_again, split, why
from tvm_rnn.target import resolve


def test_a_name_has_one_part_or_two() -> None:
    assert split(True) == ("values", "") and split("states") == ("states", "")
    assert split("states:bfloat16") == ("states", NARROW)


def test_networks_of_float32_have_narrow_tapes_on_gpus() -> None:
    assert names("float32", "cuda") == ["values", "states", "values:bfloat16", "states:bfloat16"]
    for dtype, kind in (("bfloat16", "cuda"), ("float64", "cuda"), ("float32", "llvm")):
        assert names(dtype, kind) == ["values", "states"]
        check(True, dtype, kind)
        check(False, dtype, kind)
        with pytest.raises(ConfigError, match=r"float32 alone[\s\S]*here: keep='values'"):
            check("values:bfloat16", dtype, kind)
    check("values:bfloat16", "float32", "cuda")


MEMBERS = ((4, "states"), (8, "values"), (16, "values"))  # of GRUs: 236 us, and 298 where eight run products again


def lstm(hidden: int, layers: int = 1, dtype: str = "bfloat16") -> rnn.RNN:
    return rnn.RNN(rnn.cells.lstm, hidden, hidden, layers, dtype=dtype)


def test_what_is_kept_where_nobody_says() -> None:
    """On a GPU states where running products again is cheap beside the rest, which it is not in float32 without tensor
    cores where weights are large; values of one large layer, beside whose weights they are little."""
    gpu, cpu = resolve("nvidia-h200"), resolve("llvm")
    for net, batch, wanted in (
        (lstm(256), 1, "states"),
        (lstm(256), 32, "states"),
        (lstm(512, 4), 64, "states"),
        (lstm(2560, 2), 64, "states"),
        (lstm(1024), 64, "states"),
        (lstm(2560), 64, "values"),
        (lstm(2560, 2, dtype="float32"), 64, "values"),
        (rnn.RNN(rnn.cells.gru, 1024, 1024, dtype="bfloat16"), 64, "states"),
        *((rnn.RNN(rnn.cells.gru, 128, 128, dtype="bfloat16", members=n), 32, kept) for n, kept in MEMBERS),
    ):
        assert chosen(True, net, gpu, (1, batch)) == chosen("auto", net, gpu, (batch,)) == wanted
        assert (share_again(net, batch) <= most_share(net)) == (wanted == "states")
        assert chosen("values", net, gpu, (batch,)) == "values" and chosen(False, net, gpu) is False
    small = lstm(256, dtype="float32")
    assert chosen(True, small, cpu) == "values" and "CPUs" in why(small, cpu)
    assert "20% of both passes; 22%" in why(lstm(2560, 2), gpu, (64,)) and "18% is" in why(lstm(2560), gpu, (64,))
    large = lstm(2560, 2, dtype="float32")
    assert chosen(True, large, gpu, (64,), "tf32") == "states" != chosen(True, large, gpu, (64,), "float32")
    assert share_again(large, 64, "tf32") < share_again(large, 64) == share_again(large, 64, "float32")


@pytest.mark.parametrize("name", ["value", "values:float16", "states:", ":bfloat16"])
def test_unknown_names_are_errors(name: str) -> None:
    with pytest.raises(ConfigError, match=r"no such choice[\s\S]*values"):
        check(name, "float32", "cuda")


@pytest.mark.parametrize("sizes", [{"N": 8}, {}], ids=str)
def test_products_of_matrix_states_wait_for_no_memory(sizes: dict[str, int]) -> None:
    """They stay in registers; a matrix of each step on the tape would leave no room there for those of a step."""
    net = rnn.RNN(rnn.cells.m2rnn, 32, dtype="bfloat16", H=64, K=64, **sizes)
    assert chosen(True, net, resolve("nvidia-h200"), (16,)) == "states"

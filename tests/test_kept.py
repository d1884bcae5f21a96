"""kept: names of what training keeps, which network has which, and what is said of others."""

from __future__ import annotations

import pytest

from tvm_rnn.errors import ConfigError
from tvm_rnn.kept import NARROW, check, names, split


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


@pytest.mark.parametrize("name", ["value", "values:float16", "states:", ":bfloat16"])
def test_unknown_names_are_errors(name: str) -> None:
    with pytest.raises(ConfigError, match=r"no such choice[\s\S]*values"):
        check(name, "float32", "cuda")

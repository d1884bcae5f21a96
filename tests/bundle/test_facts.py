"""What a bundle says of a module: names that C takes, sizes, places in the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_module import H, Tiny

from tvm_rnn.bundle.facts import MOST_ARRAYS, TAKEN, c_name, initialiser, listed, read_facts
from tvm_rnn.errors import ConfigError
from tvm_rnn.names import identifiers
from tvm_rnn.runtime import runtime


def test_names_of_bundles() -> None:
    assert c_name("lstm_2") == "lstm_2"
    for name in ("2", "a-b", "while", "_x", "ä"):
        with pytest.raises(ConfigError, match="not a name in C"):
            c_name(name)


def test_sizes_and_places(tmp_path: Path) -> None:
    tiny = Tiny(layers=2, extra=True)
    path = tiny.write(tmp_path / "m.so")
    data, manifest = path.read_bytes(), runtime.read_container(path)[0]
    facts = read_facts(data, manifest, "tiny")
    (network,) = facts.networks
    assert [(a.name, a.per_row, a.initial) for a in network.states] == [("h", 2 * H, 0.5), ("m", 5, 0.0)]
    assert [(a.name, a.per_row, a.layout) for a in network.inputs] == [("x", H, f"[batch][{H}]"), ("a", 1, "[batch]")]
    assert network.can_step and network.c_type == "float"
    assert list(network.packed) == [(facts.number[name],) for name in tiny.names]
    start = runtime.FOOTER.unpack(data[-runtime.FOOTER.size :])[4]  # the weights' header begins
    for array in facts.arrays:
        at = start + 8 + facts.header_bytes + array.offset
        np.testing.assert_array_equal(np.frombuffer(data, "f4", H, at), tiny.weights()[array.name])
    assert data[: facts.code_bytes].startswith(b"\x7fELF")


def test_too_many_arrays(tmp_path: Path) -> None:
    inputs = [{"name": f"x{i}", "shape": [1]} for i in range(MOST_ARRAYS)]
    path = Tiny().write(tmp_path / "m.so", inputs=inputs)
    with pytest.raises(ConfigError, match="too many arrays"):
        read_facts(path.read_bytes(), runtime.read_container(path)[0], "tiny")


def test_a_network_that_draws(tmp_path: Path) -> None:
    path = Tiny().write(tmp_path / "m.so", draws=["random.0"])
    with pytest.raises(ConfigError, match="draws random numbers"):
        read_facts(path.read_bytes(), runtime.read_container(path)[0], "tiny")


def test_words() -> None:
    assert [listed(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "nothing",
        "a",
        "a and b",
        "a, b and c",
    ]


def test_names_that_the_programs_use_themselves() -> None:
    for name in ("free", "memory", "time", "i"):
        with pytest.raises(ConfigError, match="not a name in C"):
            c_name(name)
    assert identifiers(["i", "free", "h"], TAKEN) == ["i_", "free_", "h"]


def test_an_array_is_never_empty() -> None:
    assert initialiser([]) == "0" and initialiser([1, 2]) == "1, 2, 0"

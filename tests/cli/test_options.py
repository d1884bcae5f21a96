"""cli_options: what several commands share has a line of help each."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import pytest
from typer.models import ParameterInfo

from tvm_rnn import ConfigError
from tvm_rnn.cli import options as cli_options


def test_every_option_is_explained() -> None:
    found = {
        name: get_args(value) for name, value in vars(cli_options).items() if name[0].isupper() and get_args(value)
    }
    shared = {name: args[1] for name, args in found.items() if len(args) > 1 and isinstance(args[1], ParameterInfo)}
    assert {"Spec", "Target", "Batch", "Json", "PlanFolder"} <= set(shared)
    for name, info in shared.items():
        assert info.help and len(info.help) < 80, name


def test_regularisers_are_options_of_a_command() -> None:
    given: list[tuple[int, Any]] = []

    @cli_options.regularised
    def command(size: int, regularisers: Any = None, last: int = 3) -> None:
        """Do it."""
        given.append((size + last, regularisers))

    assert [*inspect.signature(command).parameters] == ["size", *cli_options.REGULARISERS, "last"]
    assert command.__doc__ == "Do it."
    none = dict.fromkeys(cli_options.REGULARISERS, "")
    command(size=1, last=2, **none)
    command(size=1, last=2, **{**none, "dropout": "0.2", "zoneout": "h=0.1,c=0.05"})
    assert given == [(3, {}), (3, {"dropout": 0.2, "zoneout": {"h": 0.1, "c": 0.05}})]
    with pytest.raises(ConfigError, match=r"--weight-drop[\s\S]*'half'"):
        command(size=1, last=2, **{**none, "weight_drop": "half"})

"""cli_options: what several commands share has a line of help each."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, get_args, get_type_hints

import pytest
import typer
from typer.models import ParameterInfo
from typer.testing import CliRunner

from tvm_rnn import ConfigError
from tvm_rnn.cli import options as cli_options
from tvm_rnn.cli.options import Regularisers


def test_every_option_is_explained() -> None:
    found = {
        name: get_args(value) for name, value in vars(cli_options).items() if name[0].isupper() and get_args(value)
    }
    shared = {name: args[1] for name, args in found.items() if len(args) > 1 and isinstance(args[1], ParameterInfo)}
    for group in (kind for kind in vars(cli_options).values() if isinstance(kind, type) and is_dataclass(kind)):
        hints = get_type_hints(group, include_extras=True)
        shared |= {name: get_args(hint)[1] for name, hint in hints.items() if group is not cli_options.Tuning}
    assert {"Spec", "Target", "Json", "batch", "plan", "dropout"} <= set(shared)
    for name, info in shared.items():
        assert info.help and len(info.help) < 80, name


@dataclass(frozen=True)
class Amount:
    """Of something."""

    count: Annotated[int, typer.Option("--count", help="How many.")] = 3


def test_the_fields_of_a_group_are_options_of_the_command() -> None:
    given: list[tuple[int, Amount, Regularisers]] = []

    @cli_options.grouped
    def command(size: int, regularisers: Regularisers, amount: Amount, last: int = 3) -> None:
        """Do it."""
        given.append((size + last, amount, regularisers))

    names = [field.name for field in fields(Regularisers)]
    assert [*inspect.signature(command).parameters] == ["size", *names, "count", "last"]
    assert command.__doc__ == "Do it."
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, ["4", "--last", "7", "--count", "5", "--zoneout", "h=0.1"])
    assert result.exit_code == 0, result.output
    assert given == [(11, Amount(5), Regularisers(zoneout="h=0.1"))]


def test_regularisers_are_numbers_or_numbers_by_name() -> None:
    assert Regularisers().parsed() == {}
    found = Regularisers(dropout="0.2", zoneout="h=0.1,c=0.05").parsed()
    assert found == {"dropout": 0.2, "zoneout": {"h": 0.1, "c": 0.05}}
    with pytest.raises(ConfigError, match=r"--weight-drop[\s\S]*'half'"):
        Regularisers(weight_drop="half").parsed()

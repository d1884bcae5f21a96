"""cli_options: what several commands share has a line of help each."""

from __future__ import annotations

from typing import get_args

from typer.models import ParameterInfo

from tvm_rnn import cli_options


def test_every_option_is_explained() -> None:
    found = {
        name: get_args(value) for name, value in vars(cli_options).items() if name[0].isupper() and get_args(value)
    }
    shared = {name: args[1] for name, args in found.items() if len(args) > 1 and isinstance(args[1], ParameterInfo)}
    assert {"Spec", "Target", "Batch", "Json", "PlanFolder"} <= set(shared)
    for name, info in shared.items():
        assert info.help and len(info.help) < 80, name

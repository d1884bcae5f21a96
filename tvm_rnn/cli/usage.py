"""How the command line is used, for all commands: what help says, how options may be written, exit codes.

In: what a command raises. Out: one message on stderr and a code: 2 where what was asked for is wrong (a ConfigError:
words, options, files that they name), 1 where it failed, 130 for Ctrl-C.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from tvm_rnn.errors import ConfigError, TvmRnnError

# --input_size is --input-size: Python's names of the same arguments have underscores.
SETTINGS = {"help_option_names": ["-h", "--help"], "token_normalize_func": lambda word: word.replace("_", "-")}
Click = Any  # its contexts and parameters: which click that is, is typer's own affair
MARKUP: Literal["markdown"] = (
    "markdown"  # of help: rich's own would take "[no limit]" for a style, and break lines where sources do
)


class Command(TyperCommand):
    """A command of `tvm-rnn`."""

    def get_params(self, ctx: Click) -> Click:
        return _with_flags(super().get_params(ctx))


class Commands(TyperGroup):
    """All commands; what goes wrong in one becomes a message on stderr and an exit code."""

    def get_params(self, ctx: Click) -> Click:
        return _with_flags(super().get_params(ctx))

    def invoke(self, ctx: Click) -> Click:
        try:
            return super().invoke(ctx)
        except TvmRnnError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _with_flags(params: Click) -> Click:
    """The parameters, of which flags take no value: help would say <bool>."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params

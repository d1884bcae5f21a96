"""looked: the code of a network that was explained; none of a module's."""

from __future__ import annotations

from dataclasses import replace

import tvm_rnn as rnn
from tvm_rnn.compiler.stage_texts import CODE_STAGES
from tvm_rnn.explain.looked import Looked
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve


def test_code_is_made_when_it_is_asked_for() -> None:
    machine = resolve("x86-64-v4")
    own = passed(rnn.RNN(rnn.cells.elman, 3, 5), Options(machine, precision="float32"))
    looked = Looked(own.net, machine, own.stages, own.options)
    assert tuple(name for name, _ in looked.code()) == CODE_STAGES
    assert replace(looked, options=None).code() == []

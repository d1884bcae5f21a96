"""A folder of templates that plant faults in compiled code, for the tests of tuning: what a candidate can do wrong.

In: a folder. Out: a template that takes the place of gemm_cpu, whose knob `fault` is one fault each, and a walk without
a choice, so that the space of a small network is these faults and nothing else.
"""

from __future__ import annotations

import os
from pathlib import Path

SOURCE = '''
"""Products as gemm_cpu makes them, but for a knob whose values plant a fault each."""
import os

from tvm import tirx

from tvm_rnn.schedule import template

OK, WRONG, CRASH, HANG, UNBUILT, SLOW, LAST = range(7)


@template("gemm_cpu", kinds=("gemm",), targets=("llvm",), version=77)
class Faulty:
    @staticmethod
    def configure(unit, target, knob):
        planted = [int(word) for word in os.environ["FAULTS"].split(",")] if unit.region == "step" else []
        default = int(os.environ.get("DEFAULT_FAULT", OK)) if unit.region == "step" else OK
        return {"rows": 4, "panels": 1, "fault": knob("fault", (default, *planted), default)}

    @staticmethod
    def schedule(sch, unit, config):
        fault = config["fault"]
        if fault == UNBUILT:
            raise RuntimeError("a planted error of the compiler")
        for number in range(len(unit.depths)):
            name = f"product_{number}"
            row, panel, gate, lane, k = sch.get_loops(name)
            sch.reorder(k, row, panel, gate, lane)
            sch.vectorize(lane)
            sch.decompose_reduction(name, k)
            if fault:
                plant(sch, k, fault)


def plant(sch, k, fault):
    """Another loop in the place of that over k: one step short, or with a call of the C library in each."""
    loop, extent = sch.get(k), 0
    calls = {CRASH: ("raise", 11), HANG: ("pause",), SLOW: ("usleep", 1), LAST: ("getpid",)}
    if fault == WRONG:
        body, extent = loop.body, loop.extent - 1
    else:
        name, *values = calls[fault]
        call = tirx.call_extern("int32", name, *[tirx.IntImm("int32", value) for value in values])
        body, extent = tirx.SeqStmt([tirx.Evaluate(call), loop.body]), loop.extent
    sch.state.replace(sch.get_sref(k), tirx.For(loop.loop_var, loop.min, extent, loop.kind, body))


@template("walk_cpu", kinds=("walk",), targets=("llvm",), version=77)
class Plain:
    @staticmethod
    def configure(unit, target, knob):
        return {"rows": 64, "layers_first": 0}

    @staticmethod
    def schedule(sch, unit, config):
        pass
'''
OK, WRONG, CRASH, HANG, UNBUILT, SLOW, LAST = range(7)


def plant(folder: Path, *faults: int, default: int = OK) -> dict[str, str]:
    """Write the templates. Returns the variables of a process that finds them; the default is sound unless said."""
    (folder / "planted_templates.py").write_text(SOURCE)
    before = [path for path in os.environ.get("TVM_RNN_SCHEDULES", "").split(os.pathsep) if path]
    own = {"FAULTS": ",".join(map(str, faults)), "DEFAULT_FAULT": str(default), "TVM_RNN_RECORDS": "none"}
    return {**own, "TVM_RNN_SCHEDULES": os.pathsep.join([*before, str(folder)])}

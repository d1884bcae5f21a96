"""schedule: templates are discovered, a user's own come first, knobs answer by name."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tvm_rnn.schedule.schedule_template as discovery
from tvm_rnn import ConfigError
from tvm_rnn.schedule.schedule_template import Knobs, Template, Unit, folders, replayed, space, templates
from tvm_rnn.target import TABLE, Target

pytestmark = pytest.mark.usefixtures("children_without_torch")
OWN = """
from tvm_rnn.schedule import template

@template("mine", kinds=("pointwise", "reduce"), targets=("llvm",))
class Mine:
    @staticmethod
    def configure(unit, target, knob):
        return {"depth": knob("depth", (1, 2), 2)}

    @staticmethod
    def schedule(sch, unit, config):
        if unit.kind == "reduce":
            lane, *reduced = sch.get_loops("partial")
            sch.reorder(*reduced, lane)
            sch.decompose_reduction("partial", reduced[0])
"""
USE = """
import numpy as np, tvm_rnn as rnn
net = rnn.RNN(rnn.cells.lstm_layer_norm, 5, 7).init()
module = rnn.compile(net)
x = np.ones((3, 2, 5), "float32")
assert abs(module(x)[0] - rnn.reference(net)(x)[0]).max() < 1e-5
print(sorted({t["template"] for t in module.manifest.templates}), module.manifest.templates[1]["knobs"])
"""


def test_the_templates_that_ship_are_found() -> None:
    assert {"gemm_cpu", "rows_cpu"} <= set(templates())
    assert (folders()[0] / "gemm_cpu.py").is_file()


@pytest.mark.broad
def test_a_folder_of_ones_own_comes_first(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    environment = {
        **os.environ,
        "TVM_RNN_SCHEDULES": _with(tmp_path),
        "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], *sys.path]),
    }
    done = subprocess.run([sys.executable, "-c", USE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['gemm_cpu', 'mine', 'walk_cpu'] {'depth': 2}"


def _with(folder: Path) -> str:
    """That folder after those that are named already."""
    return os.pathsep.join([*filter(None, [os.environ.get("TVM_RNN_SCHEDULES")]), str(folder)])


def test_a_folder_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_RNN_SCHEDULES", "/no/such/folder")
    monkeypatch.setattr(discovery, "_found", None)
    with pytest.raises(ConfigError, match=r"no such folder of schedules[\s\S]*/no/such/folder"):
        templates()


def test_threads_that_compile_first_at_the_same_time_see_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, load = templates(), discovery._load
    monkeypatch.setattr(discovery, "_found", None)
    monkeypatch.setattr(discovery, "_load", lambda file: time.sleep(0.01) or load(file))
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda _: {*templates()}, range(4))]
    assert found == 4 * [{*whole}]


def test_knobs_answer_with_the_record_or_the_default() -> None:
    knobs = Knobs({"a": 4})
    assert (knobs("a", (1, 2, 4), 2), knobs("b", (1, 2), 2)) == (4, 2)
    assert knobs.space == {"a": (1, 2, 4), "b": (1, 2)} and knobs.chosen == {"a": 4, "b": 2}
    with pytest.raises(ConfigError, match="knob a has no such value"):
        Knobs({"a": 3})("a", (1, 2, 4), 2)


def test_a_value_that_is_no_knob_is_replayed_where_it_is_the_same() -> None:
    def configure(unit: Unit, target: Target, knob: Knobs) -> dict[str, int]:
        return {"fixed": 3, "rows": knob("rows", (1, 2), 1)}

    own = Template("t", ("gemm",), ("llvm",), configure, lambda sch, unit, config: None)
    unit, machine = Unit("gemm", "step", "float32"), TABLE["x86-64-v4"]
    assert list(space(own, unit, machine)) == [{"rows": 1}, {"rows": 2}]
    assert replayed(own, unit, machine, Knobs({"fixed": 3, "rows": 2})) == {"fixed": 3, "rows": 2}
    with pytest.raises(ConfigError, match="t has no knob fixed here"):
        replayed(own, unit, machine, Knobs({"fixed": 4, "rows": 2}))


def test_templates_say_what_they_take() -> None:
    gemm = templates()["gemm_cpu"]
    assert gemm.applies(Unit("gemm", "step", "float32"), TABLE["x86-64"])
    assert not gemm.applies(Unit("reduce", "step", "float32"), TABLE["x86-64"])

"""A kind of product that comes whole from a user's own file, and what our own kinds are named in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from emulated import Case, check_packed_once, kernel_error
from persistent_layers import GPU, step, unit_of

import tvm_rnn.schedule.schedule_template as discovery
from tvm_rnn.cuda.model.choose_geometry import choose_geometry
from tvm_rnn.cuda.model.choose_regime import choose
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.locations import PACKAGE
from tvm_rnn.oracle.tolerance import tolerance
from tvm_rnn.records import Choice, Record, Records

OWN = Path(__file__).parent.parent / "own_schedules"
NAME = "persistent_plain_cuda"


@pytest.fixture
def own_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TVM_RNN_SCHEDULES", str(OWN))
    monkeypatch.setattr(discovery, "_found", None)
    yield
    monkeypatch.setattr(discovery, "_found", None)


@pytest.mark.broad_after(1)
@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize(("cell", "hidden", "options"), [("lstm", 40, {}), ("gru_reset_before", 24, {"reverse": True})])
def test_it_is_chosen_as_the_cheapest_and_computes(cell: str, hidden: int, options: dict[str, bool]) -> None:
    case = Case(cell, hidden, 9, 4, "float32")
    (regime,) = choose(case.layout, GPU, "float32", [9], {})
    assert regime.fact["template"] == NAME and regime.fact["knobs"] == {"ctas": -(-hidden // 16), "rows": 8}
    check_packed_once(regime.geometry)
    kernel = persistent.kernel("k", regime.geometry, case.layout)
    assert kernel_error(case, regime.geometry, kernel, **options) < tolerance("float32", 4)


@pytest.mark.usefixtures("own_folder")
def test_a_record_may_choose_it() -> None:
    choice = Choice(unit_of("lstm", 40, "float32", 9).key, NAME, 1, {"ctas": 5, "rows": 16})
    work = {"cell": "lstm", "hidden": 40, "batch": 9, "precision": "float32"}
    machine = replace(GPU, records=Records([Record(GPU.name, work, (choice,), 1.0, 2.0, date="2026-01-02T03")]))
    found = choose_geometry(step("lstm", 40, "float32"), machine, "float32", 9)
    assert found is not None and found.recorded and found.template == NAME and found.knobs == choice.knobs
    assert found.geometry is not None and (found.geometry.ctas, found.geometry.rows) == (5, 16)


def test_without_its_folder_there_is_no_such_kind() -> None:
    found = choose_geometry(step("lstm", 40, "float32"), GPU, "float32", 9)
    assert found is not None and found.template != NAME


# What a kind of product is made of: the file of its class, those that only kinds use, and the schedules that build it.
KINDS = {
    "MmaSync": {"mma_sync.py", "coded_weights.py", "few_rows.py"},
    "FewRows": {"few_rows.py", "row_by_lanes.py"},
    "RowByLanes": {"row_by_lanes.py"},
    "WgmmaPipelined": {"wgmma_pipelined.py", "bulk_copy_pipeline.py", "wgmma_tiles.py"},
    "WgmmaStaged": {"wgmma_staged.py", "operands_staged.py", "wgmma_tiles.py"},
    "WgmmaSplitK": {"wgmma_split_k.py", "bulk_copy_pipeline.py", "wgmma_tiles.py"},
    "Ffma": {"ffma.py", "operands_staged.py"},
}
PRODUCT = PACKAGE / "cuda" / "persistent" / "product"
SCHEDULES = ("cluster", "grid", "staged", "pooled", "fma")


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_named_in_its_own_files_and_its_schedules(kind: str) -> None:
    own = {PRODUCT / name for name in KINDS[kind]}
    named = re.compile(rf"\b{kind}\b")
    files = {path for path in PACKAGE.rglob("*.py") if named.search(path.read_text())}
    assert files and all(path in own or path.name in {f"persistent_{n}_cuda.py" for n in SCHEDULES} for path in files)


def test_the_kinds_are_all_that_the_folder_has() -> None:
    assert {path.name for path in PRODUCT.glob("*.py")} - {"__init__.py"} == set().union(*KINDS.values())


def test_nobody_but_kinds_imports_a_kind() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.parent == PRODUCT or path.name in {f"persistent_{n}_cuda.py" for n in SCHEDULES}:
            continue
        text = path.read_text()
        if "persistent" not in text or "product" not in text:  # parsing every file takes seconds
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                named = {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
                assert not any("persistent.product" in name for name in named), (path, named)


def test_nobody_asks_which_kind_a_geometry_is() -> None:
    asks = re.compile(r"isinstance\((self\.)?(geometry|made|own), ")
    assert not [path.name for path in (PACKAGE / "cuda").rglob("*.py") if asks.search(path.read_text())]

"""What the command line prints of cells and modules."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from fake_gpu import tiny_manifest
from rich.console import Console, RenderableType

from tvm_rnn import cells
from tvm_rnn.explain.tables import (
    cell_facts,
    cell_page,
    cells_table,
    has_weights,
    manifest_page,
    regularisers_text,
    size_text,
)

MANIFEST: dict[str, Any] = {
    "format": 2,
    "versions": {"tvm_rnn": "0.1.0", "tvm": "0.27"},
    "cell": "lstm_projection",
    "dtype": "float32",
    "num_layers": 2,
    "num_directions": 2,
    "inputs": [{"name": "x", "shape": [7]}],
    "output": {"name": "h", "shape": [5]},
    "states": [
        {"name": "h", "shapes": [[5], [5]], "initial": 0.0},
        {"name": "c", "shapes": [[8], [9]], "initial": 1.0},
    ],
    "weights": [{"name": "W_l0", "shape": [4, 8, 7]}],
    "target": {"name": "llvm", "kind": "llvm", "mcpu": "znver5", "machine": "x86_64", "features": ["avx2"]},
    "entry_points": ["sequence"],
    "batch": [1, 16],
    "workspace": {"fixed": 3, "per_row": 0, "per_tile_row": 4, "per_sequence_row": 0},
    "rows_per_tile": 256,
    "flops_per_row": 2e6,
    "templates": [{"unit": "step gemm", "template": "gemm_cpu", "knobs": {"rows": 4}, "record": "default"}],
    "passes": [],
    "created": "2026-01-01T00:00:00Z",
}


def text_of(renderable: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(renderable)
    return out.getvalue()


def test_every_cell_of_the_zoo_has_a_page_and_facts_that_json_takes() -> None:
    for cell in cells.ZOO.values():
        page = text_of(cell_page(cell))
        assert all(name in page for name in cell.size_names) and cell.name in page
        assert json.loads(json.dumps(cell_facts(cell)))["name"] == cell.name


def test_a_cell_in_one_line_and_in_full() -> None:
    table = text_of(cells_table([cells.get("lstm"), cells.get("gru")]))
    assert len(table.splitlines()) == 3 and "h c" in table
    page = text_of(cell_page(cells.get("lstm_projection")))
    assert "[4, H, P]" in page and "--size P=" in page and "--hidden-size" in page


def test_a_manifest_names_shapes_as_arrays_have_them() -> None:
    text = text_of(manifest_page("m.so", MANIFEST, {"W_l0": np.zeros((4, 8, 7), "float32")}, 57_000))
    for part in ("57.0 KB", "2 layers, both directions", "any, made for 1, 16", "in the file, 896 B", "avx2", "rows=4"):
        assert part in text
    for shape in ("[T, B, 7]", "[T, B, 10]", "[4, B, 5]", "[2, B, 8]", "[2, B, 9]", "[4, 8, 7]"):
        assert shape in text


def test_directions_of_images_are_joined_along_channels() -> None:
    manifest = {**MANIFEST, "inputs": [{"name": "x", "shape": [2, 5, 6]}], "output": {"name": "h", "shape": [3, 5, 6]}}
    text = text_of(manifest_page("m.so", manifest, {}, 57_000))
    assert "[T, B, 2, 5, 6]" in text and "[T, B, 6, 5, 6]" in text


def test_a_manifest_for_gpus_names_them_and_what_kernels_take() -> None:
    text = text_of(manifest_page("m.so", tiny_manifest(archs=("sm_80", "sm_90a")), {"w_l0": np.zeros(3, "f4")}, 57_000))
    for part in ("sm_80 or sm_90a", "precision", "kernels for sm_90a", "cell", "32", "8 B", "2.0 KB"):
        assert part in text
    assert "workspace" not in text and "float32; in the file" in text
    stored = text_of(manifest_page("m.so", {**MANIFEST, "weight_dtype": "int8"}, {}, 1))
    assert "int8; not in the file" in stored
    narrow = tiny_manifest(weight_dtype="float8_e4m3")
    assert "float8_e4m3; in the file" in text_of(manifest_page("m.so", narrow, {"w_l0": np.zeros(3, "f4")}, 57_000))


def test_constants_of_the_equations_are_no_weights() -> None:
    assert not has_weights(MANIFEST, {"constant.0": np.zeros(3)})
    assert "not in the file" in text_of(manifest_page("m.so", MANIFEST, {}, 1))


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (57_049, "57.0 KB"), (3 * 10**12, "3000.0 GB")]
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert size_text(count) == text


def test_a_budget_of_training_is_told() -> None:
    own = {**MANIFEST, "memory": {"max_bytes": 2_000_000}}
    assert "2000000 bytes for training" in text_of(manifest_page("m.so", own, {}, 1))
    assert "budget" not in text_of(manifest_page("m.so", MANIFEST, {}, 1))


def test_regularisers_in_words() -> None:
    own = {"dropout": 0.2, "recurrent_dropout": {"h": 0.25}, "zoneout": {"h": 0.1, "c": 0.05}}
    assert regularisers_text(own) == "dropout 0.2; recurrent dropout h 0.25; zoneout h 0.1, c 0.05"

"""onnx_files: what packages ship is found, and called with what its file says."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tvm_rnn.bench.suites.onnx_files import INSTALL, MODELS, found_in


def test_models_are_found_where_packages_lie(tmp_path: Path) -> None:
    (tmp_path / "dksplit/models").mkdir(parents=True)
    (tmp_path / "dksplit/models/dksplit-int8.onnx").write_bytes(b"")
    ((model, path),) = found_in(str(tmp_path)).items()
    assert model.package == "dksplit" and path.parent.name == "models"


def test_every_model_is_another_and_its_package_is_named() -> None:
    assert len({model.name for model in MODELS}) == len(MODELS)
    named = INSTALL.replace("_", "-")
    assert all(model.package.replace("_", "-") in named for model in MODELS)


def test_inputs_are_of_the_files_dtypes() -> None:
    model = next(own for own in MODELS if own.name == "romanizer encoder")
    found = model.arrays({"src": "int64", "src_mask": "bool"})
    assert found["src"].dtype == np.int64 and found["src"].min() > 0 and found["src"].max() < model.most
    assert found["src_mask"].dtype == np.bool_ and not found["src_mask"].any()
    np.testing.assert_array_equal(found["src"], model.arrays({"src": "int64", "src_mask": "bool"})["src"])

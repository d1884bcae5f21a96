"""runtime_manifest.py: what it finds in manifests of earlier versions, and that its tables are the schema's.

In: the hand-written manifests of a CPU and a GPU module, those of golden/manifests.json, and lies about their fields.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_gpu import tiny_manifest
from msgspec import Struct, structs
from tiny_module import H, Tiny

from tvm_rnn.module_file import schema
from tvm_rnn.runtime import runtime_manifest as tables
from tvm_rnn.runtime.runtime_manifest import problem_of

OLD: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "manifests.json").read_text())
TINY = Tiny(2, extra=True)


def sound(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A manifest, and the arrays of its file."""
    if name == "cpu":
        return TINY.manifest(), TINY.weights()
    if name == "gpu":
        return tiny_manifest(), {"w_l0": np.ones(3, "f4")}
    facts = schema.read(OLD[name])
    assert not isinstance(facts, schema.SeveralNetworks)
    called = facts.calls if isinstance(facts, schema.CpuNetwork) else []
    return OLD[name], {n: np.ones(2, "f4") for call in called for n in call.weights if n.startswith("constant.")}


@pytest.mark.parametrize("name", ["cpu", "gpu", *OLD])
def test_sound_manifests(name: str) -> None:
    assert problem_of(*sound(name)) is None


def changed(value: Any, path: str, new: Any) -> Any:
    """A copy with something else at a path such as "packs.0.offset"."""
    found = place = copy.deepcopy(value)
    *heads, last = [int(word) if word.isdigit() else word for word in path.split(".")]
    for head in heads:
        place = place[head]
    assert last in place if isinstance(place, dict) else last < len(place)
    place[last] = new
    return found


@pytest.mark.parametrize(
    ("name", "path", "new"),
    [
        ("cpu", "num_layers", 3),
        ("cpu", "num_directions", True),
        ("cpu", "dtype", "float16"),
        ("cpu", "inputs", []),
        ("cpu", "inputs.0.shape.0", -5),
        ("cpu", "inputs.1.name", "x"),
        ("cpu", "states.0.initial", "0"),
        ("cpu", "states.0.initial", float("nan")),
        ("cpu", "states.0.shapes.1", 5),
        ("cpu", "weights.0.shape.0", H + 1),
        ("cpu", "weights.0.shape.0", 5.0),
        ("cpu", "packs.1.offset", 2 * H + 1),
        ("cpu", "packs.1.weights.0", "strange"),
        ("cpu", "packed_elements", -1),
        ("cpu", "packed_elements", 1 << 63),
        ("cpu", "workspace.fixed", None),
        ("cpu", "rows_per_tile", 0),
        ("cpu", "target.features", "avx"),
        ("gpu", "variants", []),
        ("gpu", "variants.0.packed_bytes", 2.5),
        ("gpu", "variants.0.parameters.0", ["w_l0"]),
        ("gpu", "variants.0.parameters.0.0", "constant.0"),
        ("cpu_training", "training.backward.finishes.0.offset", 1 << 30),
        ("cpu_training", "training.backward.finishes.0.gradients.0", "strange"),
        ("cpu_training", "training.tape.per_row", "1"),
        ("cpu_training", "masks.weights.0.0", "strange"),
        ("gpu_training", "tape.0.0", -1),
        ("gpu_training", "gradients.0", "strange"),
        ("gpu_training", "variants.0.backward.packed_bytes", -1),
    ],
)
def test_what_is_wrong_is_named(name: str, path: str, new: Any) -> None:
    manifest, arrays = sound(name)
    problem = problem_of(changed(manifest, path, new), arrays)
    # What does not fit together is said of the one or the other.
    assert problem is not None and problem[0].startswith((path.partition(".")[0], "arrays", "states"))


def model() -> dict[str, Any]:
    """A model of two networks."""
    shared = {key: value for key, value in TINY.manifest().items() if key in schema.SHARED}
    own = {key: value for key, value in TINY.manifest().items() if key not in schema.SHARED}
    value = {"name": "v", "dtype": "float32", "shape": None}
    call = {"op": "Network", "node": "n", "inputs": ["v", "", "c"], "outputs": ["y"], "attributes": {"network": 1}}
    constants = [{"name": "c", "array": "constant.model.c"}]
    steps = {"inputs": [value], "outputs": [{**value, "name": "y"}], "constants": constants, "steps": [call]}
    return {**shared, "entry_points": ["run"], "model": steps, "networks": [own, own]}


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("networks", {}),
        ("networks.1.packs.0.offset", -1),
        ("networks.1.packs.0.weights.0", "constant.9"),
        ("model.steps.0.attributes.network", 2),
        ("model.steps.0.inputs.0", "w"),
        ("model.outputs.0.name", "z"),
        ("model.constants.0.array", "constant.model.d"),
    ],
)
def test_a_model_of_several_networks(path: str, new: Any) -> None:
    arrays = {f"{i}.{name}": value for i in range(2) for name, value in TINY.weights().items()}
    arrays["constant.model.c"] = np.ones(2, "f4")
    schema.read(model())
    assert problem_of(model(), arrays) is None
    problem = problem_of(changed(model(), path, new), arrays)
    assert problem is not None and problem[0].startswith(path.split(".")[0])


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        (tables.ARRAY, schema.Array),
        (tables.STATE, schema.State),
        (tables.PACK, schema.Pack),
        (tables.FINISH, schema.Finish),
        (tables.WORKSPACE, schema.Workspace),
        (tables.TAPE, schema.CpuTape),
        (tables.CPU, schema.CpuNetwork),
        (tables.GPU, schema.GpuNetwork),
        (tables.VARIANT, schema.Variant),
        (tables.PARTS, schema.TimeParts),
        (tables.MASKS, schema.Masks),
        (tables.MODEL, schema.Model),
        (tables.FILE, schema.Shared),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_tables_name_fields_of_the_schema(table: dict[str, Any], kind: type[Struct]) -> None:
    """What the runtime asks for, every file of this version has."""
    fields = {field.name: field.required for field in structs.fields(kind)}
    for key in table:
        assert key.rstrip("?") in fields
        assert fields[key.rstrip("?")] or key.endswith("?") or key == "packed_as_inference"

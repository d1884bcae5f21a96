"""module_file/schema.py: manifests that an earlier version wrote are read, and say what those of this version say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_gpu import tiny_manifest
from tiny_module import Tiny

import tvm_rnn as rnn
from tvm_rnn import cells
from tvm_rnn.cpu.lower_network import Lowering
from tvm_rnn.cpu.training.add_entry_points import add_training
from tvm_rnn.cuda import write_module
from tvm_rnn.cuda.plan import network as plan
from tvm_rnn.cuda.training import add_entry_points
from tvm_rnn.errors import BuildError
from tvm_rnn.module_file.schema import CpuNetwork, Facts, GpuNetwork, SeveralNetworks, plain, read
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve

# Of three networks, as written before manifests had types.
OLD: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "manifests.json").read_text())
DROPPED: dict[str, Any] = {"dropout": 0.25, "zoneout": {"h": 0.1}, "weight_drop": {"R": 0.5}}
SAME = "format cell equations dtype num_layers num_directions inputs output states weights target entry_points batch"
SAME += " reverse regularisers masks weight_dtype precision gradients reads_inputs reads_output parts packs"


def on_a_cpu(net: rnn.RNN, training: str = "", stored: str = "") -> Facts:
    machine = resolve("x86-64-v3")
    own = passed(net, Options(machine, (4,), stored=stored, training=training or False))
    lowered = Lowering(net, own.layers, own.options).run()
    facts = lowered.describe()
    if training:
        add_training(own, lowered, facts)
    return facts


def on_a_gpu(net: rnn.RNN, training: str) -> Facts:
    machine = resolve("nvidia-h200")
    own = passed(net, Options(machine, (4,), precision="float16", training=training, targets=(machine,)))
    programs = [plan.plan(own, machine)]
    row = {"kernel": "k", "registers": 3, "stack_bytes": 0, "spill_bytes": 0, "shared_bytes": 0}
    facts = write_module.describe(own, programs, {"sm_90a": [row]})
    add_entry_points.describe(facts, [add_entry_points.plan(own, machine)], {})
    return facts


def new(name: str) -> Facts:
    if name == "cpu_int8":
        return on_a_cpu(rnn.RNN(cells.gru, 5, 7, reverse=True), stored="int8")
    dtype = "float32" if name == "cpu_training" else "float16"
    net = rnn.RNN(cells.lstm, 5, 7, 2, bidirectional=True, dtype=dtype, **DROPPED)
    return on_a_cpu(net, "states") if name == "cpu_training" else on_a_gpu(net, "values")


LOOSE = ("decisions", "templates", "knobs")  # each compilation's own


def form(value: Any) -> Any:
    """Keys and kinds of values; of a list those of its first item."""
    if isinstance(value, dict):
        return {key: form(own) for key, own in value.items() if key not in LOOSE}
    return [form(own) for own in value[:1]] if isinstance(value, list) else type(value)


@pytest.mark.parametrize("name", OLD)
def test_what_is_written_is_what_was_read(name: str) -> None:
    assert json.loads(json.dumps(plain(read(OLD[name])))) == OLD[name]


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("name", OLD)
def test_a_new_manifest_says_the_same(name: str) -> None:
    old, found = OLD[name], json.loads(json.dumps(plain(new(name))))
    for variant in found.get("variants", ()):
        variant.pop("tells_starts", None)  # which came later, too
    assert form(old) == form(found)
    assert found.pop("passes") == ["parallelise_time", *old["passes"]]  # which came later
    for key in SAME.split():
        assert found.get(key) == old.get(key), key


def test_kinds_of_files() -> None:
    assert isinstance(read(Tiny().manifest()), CpuNetwork) and isinstance(read(tiny_manifest()), GpuNetwork)


@pytest.mark.parametrize("arch", ["", "sm_", "90", "compute_90a", "sm_9999999999"])
def test_an_arch_that_is_none(arch: str) -> None:
    manifest: Any = tiny_manifest()
    manifest["variants"][0]["arch"] = arch
    with pytest.raises(BuildError, match="arch"):
        read(manifest)


def test_fields_of_newer_versions_are_left_out() -> None:
    found = read(Tiny().manifest(colour="red", workspace={**Tiny().manifest()["workspace"], "per_day": 3}))
    assert "colour" not in plain(found) and plain(found)["workspace"] == Tiny().manifest()["workspace"]


def test_several_networks_say_once_what_they_share() -> None:
    tiny = Tiny().manifest()
    shared = {key: tiny.pop(key) for key in ("format", "versions", "target", "batch", "passes", "created")}
    model = {"inputs": [], "outputs": [], "constants": [], "steps": []}
    networks = [{**tiny, "sequence": "sequence"}, {**tiny, "sequence": "n1_sequence"}]
    whole = {**shared, "entry_points": ["run"], "model": model, "networks": networks}
    facts = read(whole)
    assert isinstance(facts, SeveralNetworks) and facts.networks[1].sequence == "n1_sequence"
    assert facts.networks[0].target == facts.target and plain(facts) == whole
    networks[1]["rows_per_tile"] = 0
    with pytest.raises(BuildError, match=r"networks\[1\]\.rows_per_tile\n +got: +0\n +expected: `int` >= 1"):
        read(whole)
    with pytest.raises(BuildError, match=r"where: +networks\n +got: +3\n"):
        read({**whole, "networks": 3})

"""explain: the reasons are those of the passes and of the regimes, of a network as of its module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import compiled

import tvm_rnn as rnn
from tvm_rnn import InputError, cell, explain, sigmoid, tanh
from tvm_rnn.options import PASS_NAMES

GPU = "nvidia-h200"


def facts(net: Any, *args: Any, **options: Any) -> dict[str, Any]:
    (found,) = explain(net, *args, **options).facts["networks"]
    json.dumps(found)
    return dict(found)


def zoo(name: str, size: int = 16, layers: int = 1, **options: Any) -> rnn.RNN:
    return rnn.RNN(rnn.cells.get(name), size, size, layers, **options)


def reasons(found: dict[str, Any], stage: str, kind: str = "did_not") -> dict[str, str]:
    return {row["what"]: row["why"] for row in found["passes"][stage][kind]}


def regime(found: dict[str, Any], what: str) -> list[dict[str, Any]]:
    return [row for row in found["regimes"] if row["what"] == what]


def test_what_left_the_loop_and_which_state_keeps_the_rest() -> None:
    found = facts(zoo("lstm"))
    assert list(reasons(found, "hoist_gemms", "did")) == ["W @ x"]
    assert reasons(found, "hoist_gemms") == {"R @ h": "reads h, known only within the loop"}


def test_which_products_became_one_and_which_dependence_keeps_them_apart() -> None:
    found = facts(zoo("gru_reset_before"))
    assert "3 x W @ x" in reasons(found, "combine_gemms", "did")
    why = reasons(found, "combine_gemms")["R_n @ (... * h)"]
    assert "R_n @ (... * h) needs the result of R @ h: another level" in why


def test_products_of_other_widths_and_other_operands_stay_apart() -> None:
    @cell(states="h p", output="p")
    def two(x: "I", h: "H", p: "P", *, R: "H H", Q: "P H", W: "H I"):
        return tanh(W @ x + R @ h), sigmoid(Q @ h)

    why = reasons(facts(rnn.RNN(two, 5, 7, P=3)), "combine_gemms")
    assert why["R @ h"] == "7 units, Q @ h has 3" and why["Q @ h"] == "3 units, R @ h has 7"


def test_what_cannot_be_fused_and_why() -> None:
    why = reasons(facts(zoo("lstm_layer_norm")), "fuse_pointwise")
    assert "a reduction has no epilogue" in why.values()
    assert any(reason.startswith("its shape is [16], of the group that it reads [1]") for reason in why.values())


def test_a_cell_without_products_has_nothing_to_move() -> None:
    @cell(states="h")
    def plain(x: "H", h: "H", *, a: "H"):
        return a * h + x

    found = facts(rnn.RNN(plain, hidden_size=6, input_size=6))
    assert reasons(found, "hoist_gemms") == {"the step": "it has no product and no reduction"}
    assert reasons(found, "combine_gemms") == {"the products": "there are none of a vector"}


def test_tiles_and_their_limit_in_bytes() -> None:
    rows = facts(zoo("lstm"), "x86-64-v4")["passes"]["tile_layers_and_time"]["did"]
    default = next(row for row in rows if row["what"].startswith("by default"))
    assert f"{default['facts']['cache_bytes']} bytes" in default["why"]
    both = facts(zoo("lstm", bidirectional=True), "x86-64-v4")
    assert "goes backwards" in reasons(both, "tile_layers_and_time")["a tile through all layers"]


@pytest.mark.parametrize("name", PASS_NAMES)
def test_a_pass_that_was_left_out_says_so(name: str) -> None:
    assert reasons(facts(zoo("gru"), "x86-64-v4", without=[name]), name)["the whole pass"] == "left out by name"


def test_phases_are_the_groups_in_order() -> None:
    rows = facts(zoo("gru_reset_before"))["phases"]
    assert [(row["region"], row["phase"], row["kind"]) for row in rows] == [
        ("before", 0, "gemm"),
        ("step", 1, "gemm"),
        ("step", 2, "gemm"),
    ]
    assert "the new h" in rows[-1]["with"]


def test_training_says_what_the_tape_keeps() -> None:
    found = facts(zoo("lstm"), "x86-64-v4", training=True, steps=10)
    kept = reasons(found, "differentiate", "did")
    assert "keep state h" in kept and "keep state c" in kept
    own = found["training"]
    sizes = own["tape_bytes"]
    assert own["bytes"] == sizes["fixed"] + sizes["per_row"] + 10 * sizes["per_sequence_row"]
    assert any("backward" in row["subject"].get("kind", "") for row in found["passes"]["hoist_gemms"]["did"])


@pytest.mark.broad
def test_training_has_plans_of_memory() -> None:
    """The table is of all choices of what a tape keeps; a module's is of its own, and says the same of it."""
    net = zoo("lstm", 24)
    found = facts(net, "x86-64-v4", training=True, steps=50, batch=4)["training"]["plans"]
    assert (found["steps"], found["batch"], found["max_bytes"]) == (50, 4, None)
    assert found["chosen"] == found["table"][0] and found["chosen"]["segments"] == 1
    assert found["chosen"]["bytes"] > found["table"][-1]["bytes"] and found["table"][-1]["relative_time"] > 1.2
    budget = found["chosen"]["bytes"] // 2
    own = facts(net, "x86-64-v4", training=True, steps=50, batch=4, max_bytes=budget)["training"]["plans"]
    assert own["chosen"]["bytes"] <= budget and own["chosen"]["steps_again"] > 0 and own["table"] == found["table"]
    states = facts(net, "x86-64-v4", training=True, keep="states", steps=50, batch=4)["training"]
    assert {row["keep"] for row in states["plans"]["table"]} == {"states"}
    with pytest.raises(InputError, match=r"no plan for 50 steps of 4 rows[\s\S]*at least \d+"):
        explain(net, "x86-64-v4", training=True, steps=50, batch=4, max_bytes=1000)


@pytest.mark.broad
def test_regularisers_are_named_and_their_masks_not_kept() -> None:
    net = zoo("lstm", zoneout={"h": 0.1, "c": 0.05})
    own = facts(net, "x86-64-v4", training=True)
    assert own["regularisers"] == {"zoneout": {"h": 0.1, "c": 0.05}}
    assert "mask zoneout.c" in reasons(own, "hoist_gemms", "did")
    assert "keep mask zoneout.c" in reasons(own, "differentiate")
    assert "in training zoneout h 0.1, c 0.05" in str(explain(net, "x86-64-v4", training=True))


@pytest.mark.broad
def test_training_on_a_gpu_has_a_tape_and_regimes_of_its_own() -> None:
    found = facts(zoo("elman", 64, 2, dtype="float16"), GPU, batch=16, training=True, steps=10)
    own = found["training"]
    sizes = own["tape_bytes"]
    assert own["bytes"] == 16 * sizes["per_row"] + 160 * sizes["per_sequence_row"]
    assert sizes["per_sequence_row"] >= 64 * 2  # the lower layer's state, in 16 bits at least; the upper one's is y
    assert "keep state h" in reasons(found, "differentiate", "did")
    assert any(row["subject"].get("training") for row in found["regimes"])
    plans = own["plans"]
    assert plans["chosen"]["bytes"] > own["bytes"] and plans["chosen"]["keep"] in ("values", "states")
    assert "(training" in str(explain(zoo("elman", 64, 2, dtype="float16"), GPU, batch=16, training=True))


@pytest.mark.broad
def test_the_regime_and_what_the_slower_ones_would_take() -> None:
    found = facts(zoo("lstm", 256, dtype="bfloat16"), GPU, batch=16)
    (taken,) = regime(found, "persistent_cluster_cuda")
    (other,) = regime(found, "persistent_grid_cuda")
    assert taken["done"] and not other["done"]
    assert taken["facts"]["predicted_us"] < min(other["facts"]["predicted_us"], taken["facts"]["step_by_step_us"])
    assert taken["facts"]["weights_in_registers_bytes"] + taken["facts"]["weights_in_shared_bytes"] == 4 * 256 * 256 * 2
    assert found["work"][0]["predicted_us"] == pytest.approx(100 * taken["facts"]["predicted_us"])


def test_by_how_many_bytes_a_geometry_does_not_fit() -> None:
    found = facts(zoo("lstm", 4480, dtype="bfloat16"), GPU, batch=64)
    lacks = {row["subject"]["template"]: row for row in regime(found, "a geometry")}
    assert {"persistent_cluster_cuda", "persistent_grid_cuda"} <= set(lacks)
    for row in (row for row in lacks.values() if "facts" in row):
        assert row["facts"]["missing_bytes"] > 0 and str(row["facts"]["missing_bytes"]) in row["why"]
    (steps,) = regime(found, "step by step")
    assert steps["done"] and found["work"][0]["predicted_us"] == pytest.approx(100 * steps["facts"]["predicted_us"])


@pytest.mark.broad
def test_how_much_of_a_large_layer_stays_on_the_chip() -> None:
    found = facts(zoo("gru", 2816, dtype="bfloat16"), GPU, batch=32)
    (taken,) = (row for row in regime(found, "persistent_pooled_cuda") if row["done"])
    kept, every = taken["facts"], 3 * 2816 * 2816 * 2
    assert 0.2 * every < kept["weights_in_shared_bytes"] < 0.5 * every
    assert 0.2 * every < kept["weights_in_registers_bytes"] < 0.5 * every


APART = "a state is not a vector, and heads are not apart: a value of one head reads S of all; "
APART += "as one vector: [W V] @ x is broadcast along heads or their units"


@pytest.mark.parametrize(
    ("net", "target", "what", "why"),
    [
        (zoo("m2rnn", 16, dtype="float32"), GPU, "persistent kernels", APART),
        (zoo("gru", 16, dtype="float64"), GPU, "persistent kernels", "there are none in float64"),
        (zoo("gru", 16, dtype="float16"), GPU, "scan_cuda", "more than pointwise work on a row of units"),
        (zoo("gru", 16, dtype="float16"), GPU, "layers in a wave", "there is one layer"),
    ],
)
def test_why_not_the_faster_regime(net: rnn.RNN, target: str, what: str, why: str) -> None:
    assert [row["why"] for row in regime(facts(net, target, batch=1), what)] == [why]


@pytest.mark.broad
def test_waves_say_what_they_save() -> None:
    found = facts(zoo("lstm", 128, 3, dtype="bfloat16"), GPU, batch=16)
    (row,) = regime(found, "layers in a wave")
    assert row["done"] and row["facts"]["predicted_us"] < row["facts"]["one_by_one_us"] * 1.3
    assert found["graphs"] == [[0, 1, 2]] and len(row["facts"]["layer_times"]) == 3
    assert sum(row["facts"]["layer_times"][-1][0][part] for part in ("exchange", "product", "cells")) == pytest.approx(
        row["facts"]["predicted_us"], rel=0.01
    )
    (work,) = found["work"]
    assert work["exchanges"] == 1 and 0 < work["in_turn_us"] < work["predicted_us"]


@pytest.mark.broad
def test_what_is_known_for_all_steps_waits_for_none() -> None:
    net = rnn.RNN(rnn.cells.gated_delta_net, 16, 64, dtype="bfloat16")
    assert "no step waits for the one before" in str(rnn.explain(net, GPU, batch=1))
    assert "step by step: one launch" in str(rnn.explain(zoo("gru", 16, dtype="float64"), GPU, batch=1))


@pytest.mark.broad
def test_a_module_says_what_its_network_says(tmp_path: Path) -> None:
    net, module = compiled("gru", 4, 8)
    path = tmp_path / "gru.so"
    module.export(path)
    mine, of_module, of_file = facts(net), facts(module), facts(str(path))
    assert of_module["passes"] == of_file["passes"] == mine["passes"]
    assert of_file["phases"] == mine["phases"] and of_file["told"]
    assert of_file["memory"] == mine["memory"]


def test_a_module_of_an_older_version_is_explained_as_far_as_it_can_be(tmp_path: Path) -> None:
    from tiny_module import Tiny

    path = Tiny().write(tmp_path / "old.so")
    found = facts(str(path))
    assert not found["told"] and not found["phases"]
    assert "compile it again" in str(explain(str(path)))


@pytest.mark.broad
def test_a_time_is_measured_where_that_was_asked_for() -> None:
    (row,) = facts(zoo("elman", 8), measure=True, steps=4)["work"]
    assert row["measured_us"] > 0 and row["measured_by"] == "this run, one thread"
    assert 0 < row["share"] < 1.5


@pytest.mark.broad
def test_a_modules_file_is_timed_too(tmp_path: Path) -> None:
    compiled("gru", 4, 8)[1].export(tmp_path / "gru.so")
    (row,) = facts(str(tmp_path / "gru.so"), measure=True, steps=4)["work"]
    assert row["measured_us"] > 0 and "share" in row


def test_what_cannot_be_explained_is_an_error() -> None:
    with pytest.raises(rnn.ConfigError, match="this cannot be explained"):
        explain(np.zeros(3))
    for steps in (0, -1, 1.5, "9", None):
        with pytest.raises(rnn.ConfigError, match="explain: steps"):
            explain(rnn.RNN(rnn.cells.gru, 4, 8), steps=steps)
    with pytest.raises(rnn.ConfigError, match="a module says itself"):
        explain(compiled("gru", 4, 8)[1], batch=4)


def test_a_cell_s_name_is_no_network() -> None:
    with pytest.raises(rnn.ConfigError, match=r"a cell's name is no network[\s\S]*cells.lstm, input_size, hidden_size"):
        explain("lstm")

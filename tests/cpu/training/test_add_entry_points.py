"""Compiled training is the oracle: forward_train's results, and every gradient, of every cell of the zoo.

In: random shapes, T of 0, 1 and 33, layers, directions, lengths and resets, from states that are not the initial ones.
Memory begins as NaN, with guards behind it. Of the sweeps over cells those marked slow take them all.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_odd_equations as odd
from derivatives import draw, named, oracle
from hypothesis import HealthCheck, given, settings
from networks import FEWEST, fitting, flags, network
from poison import poison
from random_equations import Equations, equations
from tvm import tirx

import tvm_rnn as rnn
from tests.oracle.test_reference import restless
from tvm_rnn import cell, cells, einsum, exp, rms_norm, softmax, sum, tanh
from tvm_rnn.cpu.lower_network import Lowering
from tvm_rnn.cpu.training.add_entry_points import _packs_alike, add_training
from tvm_rnn.module_file.schema import Pack
from tvm_rnn.options import PASS_NAMES, Options
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.runtime.runtime_training import TrainingModule
from tvm_rnn.schedule.schedule_template import space
from tvm_rnn.target import resolve
from tvm_rnn.tir.statements import buffer, function, store
from tvm_rnn.tune.workload import Candidate, Trial, able, choice_of

ODD = {name: value for name, value in vars(odd).items() if isinstance(value, rnn.Cell)}
# Between them: every kind of group and of sum, both dtypes, layers and directions, and inputs that all layers read.
# Layers share a graph (I = H, or 2 H where both directions are read): that halves the code.
QUICK: dict[str, tuple[int, dict[str, Any]]] = {
    "lstm": (14, {"num_layers": 3, "bidirectional": True}),
    "gru": (7, {"num_layers": 2, "dtype": "float64"}),
    "mlstm": (5, {"dtype": "float64"}),
}


@functools.cache
def trained(
    c: str | rnn.Cell, inputs: int, hidden: Any, without: tuple[str, ...] = (), **options: Any
) -> tuple[rnn.RNN, TrainingModule]:
    net = network(c, inputs, hidden, **options)
    module = rnn.compile(net, training=True, without=without)
    assert isinstance(module, TrainingModule)
    return net, module


def quick(name: str) -> tuple[rnn.RNN, TrainingModule]:
    inputs, options = QUICK[name]
    return trained(name, inputs, 7, **options)


def check(net: rnn.RNN, module: TrainingModule, steps: int, batch: int, seed: int = 0, **rows: Any) -> None:
    """y, state and gradients are the oracle's, within the table's tolerance."""
    rows = fitting(net, rows)
    case = draw(net, steps, batch, seed, **rows)
    y, state, tape = module.forward_train(case.x, case.state, **rows)
    assert_close((y, state), rnn.reference(net)(case.x, case.state, **rows), net.dtype, max(steps, 1))
    found = named(*module.backward(tape, case.gy, case.gstate))
    assert_close(found, oracle(net, case), net.dtype, max(steps, 1))


def sweep(net: rnn.RNN, module: TrainingModule, monkeypatch: pytest.MonkeyPatch, most: int = 33) -> None:
    guarded = poison(monkeypatch)
    module.load_weights(net.weights)  # packed anew, on poison
    for steps, batch in ((0, 2), (1, 1), (most, 3), (5, 33)):
        check(net, module, steps, batch)
    check(net, module, most, 5, 1, **flags(most, 5))
    check(net, module, 7, 4, 2, lengths=np.array([0, 7, 3, 0]))
    check(net, module, 3, 0)
    guarded()


@pytest.mark.broad
@pytest.mark.parametrize("name", QUICK)
def test_gradients_are_the_oracle_s(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, module = quick(name)
    sweep(net, module, monkeypatch)


@pytest.mark.broad
def test_states_that_begin_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """An output that is no state; reset rows begin again from other values than 0; a sum over carried gradients."""
    net, module = trained(restless, 10, 5, num_layers=2, bidirectional=True, dtype="float64")
    sweep(net, module, monkeypatch)


@pytest.mark.broad
@pytest.mark.parametrize(
    ("c", "dtype"),
    [
        pytest.param(restless, "float64", marks=pytest.mark.slow, id="restless"),
        pytest.param("lstm", "float32", id="lstm"),
    ],
)
def test_the_reverse_direction_alone(c: Any, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From each row's last step to step 0, over tiles of time and layers; as a forward network on flipped steps."""
    net, module = trained(c, 7, 7, num_layers=2, reverse=True, dtype=dtype)
    sweep(net, module, monkeypatch)
    check(net, module, 40, 33, **flags(40, 33))
    case, forward = draw(net, 9, 4), network(c, 7, 7, num_layers=2, dtype=dtype)
    _, _, tape = module.forward_train(case.x, case.state)
    gx, gstate, gweights = module.backward(tape, case.gy, case.gstate)
    flipped = rnn.reference(forward).gradients(case.x["x"][::-1], case.state, case.gy[::-1], case.gstate)
    assert_close(named(gx[::-1], gstate, gweights), named(*flipped), dtype, 9)


@pytest.mark.slow
def test_records_are_used() -> None:
    """What was tuned for inference serves training: any knobs, other ones for each named batch size."""
    net, first, batches = network("lstm", 14, 33, num_layers=2), Trial(), (1, 7)
    machine = replace(resolve("llvm"), records=first)
    own = passed(net, Options(machine, batches, training=True))
    lowered = Lowering(net, own.layers, own.options).run()
    add_training(own, lowered, lowered.describe())
    choices = []
    for number, unit in enumerate(first.asked.values()):
        (own,) = able(unit, machine)
        found = list(space(own, unit, machine))
        if found:
            choices.append(choice_of(own, unit, found[7 * (number + 1) % len(found)]))
    sizes = {c.unit["sizes"]["batch"][0] for c in choices if len(c.unit["sizes"]["batch"]) == 1}
    assert sizes == {1, 7}
    module = rnn.compile(net, batch=batches, training=True, records=Trial(Candidate(tuple(choices))))
    assert isinstance(module, TrainingModule)
    tuned = {row["template"] for row in module.manifest.templates if row["record"].startswith("record")}
    assert tuned >= {"gemm_cpu", "sum_rows_cpu", "walk_cpu"}
    for batch in (1, 7, 33):
        check(net, module, 20, batch, **flags(20, batch))


@pytest.mark.broad
def test_networks_of_other_frameworks(tmp_path: Path) -> None:
    """The recurrent network trains; the model around it runs as before, also from a file."""
    rnn.to_onnx(network("gru", 3, 5, reverse=True), tmp_path / "gru.onnx")
    net = rnn.from_onnx(tmp_path / "gru.onnx")
    assert isinstance(net, rnn.RNN) and net.reverse and net.program is not None
    module = rnn.compile(net, training=True)
    assert isinstance(module, TrainingModule) and {"run", "backward"} <= {*module.manifest.entry_points}
    check(net, module, 6, 4, **flags(6, 4))
    module.export(tmp_path / "gru.so")
    x = draw(net, 6, 4).x["x"]
    again, expected = rnn.load(tmp_path / "gru.so"), rnn.reference(net).run({"x": x})
    for name, value in again.run({"x": x}).items():
        assert_close(value, expected[name], "float32", 6, name)
    assert isinstance(again, TrainingModule)
    check(net, again, 5, 2)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [(17, 2), (5, 5, 3), (4, 9, 4)], ids=str)
@pytest.mark.parametrize("name", ["restless", "augru"])
def test_sizes_per_layer(name: str, hidden: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of layers with graphs of their own, or one that returns; each layer's input has a place of its own width."""
    c = restless if name == "restless" else name
    net, module = trained(c, 3, hidden, num_layers=len(hidden), bidirectional=True, dtype="float64")
    sweep(net, module, monkeypatch)


@cell(states="h k", output="y")
def of_parameters(x: "I", h: "H", k: "H", *, W: "H I", U: "H 2", V: "2 H", a: "H", s: "", b: "H"):
    """Parameters that reach the steps only through functions, products and sums of parameters, one with a constant
    array; their gradients are made after all steps. A state that nothing reads, and that is a parameter."""
    mixed = softmax(a) * np.arange(1, a.size + 1)
    h = tanh(W @ x + (exp(s) * U @ V) @ h + mixed)
    return h, b, einsum("i,ij->j", h, U @ V) + sum(a * a) * h + b


@pytest.mark.broad
def test_gradients_through_what_parameters_make(monkeypatch: pytest.MonkeyPatch) -> None:
    net, module = trained(of_parameters, 3, 9, dtype="float64")
    sweep(net, module, monkeypatch)


@pytest.mark.broad
@pytest.mark.parametrize("rows", [(40, 33), (1, 700)], ids=str)
def test_several_tiles_of_time(rows: tuple[int, int]) -> None:
    """More rows than a tile has: sums go on from tile to tile."""
    net, module = quick("lstm")
    steps, batch = rows
    assert steps * batch > module.manifest.training.backward.rows_per_tile
    check(net, module, steps, batch, **flags(steps, batch))


@pytest.mark.broad
def test_the_number_of_threads_changes_nothing() -> None:
    """Not even the last bit: every element of a sum belongs to one thread."""
    net, module = trained("elman", 140, 150)
    case = draw(net, 9, 20)
    found = []
    for threads in (1, 2, 3):
        module.threads = threads
        y, _, tape = module.forward_train(case.x, case.state)
        found.append(named(*module.backward(tape, case.gy, case.gstate)) | {"y": y})
    module.threads = None
    for other in found[1:]:
        for name, value in found[0].items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)
    check(net, module, 33, 20)


def test_nan_stays_in_its_row_and_padding_counts_nothing() -> None:
    net, module = quick("lstm")
    case = draw(net, 6, 4)
    lengths = np.array([6, 2, 0, 5])
    x, gy = case.x["x"].copy(), case.gy.copy()
    _, _, tape = module.forward_train(x, case.state, lengths=lengths)
    clean = named(*module.backward(tape, gy, case.gstate))
    padded = np.arange(6)[:, None] >= lengths
    x[padded] = gy[padded] = np.nan
    state = {name: v.copy() for name, v in case.state.items()}
    state["h"][:, 2] = np.nan  # a row of no steps
    _, _, tape = module.forward_train(x, state, lengths=lengths)
    found = named(*module.backward(tape, gy, case.gstate))
    assert_close(found, clean, "float64", 6)
    x[1, 0, 0] = np.nan
    _, _, tape = module.forward_train(x, state, lengths=lengths)
    found = named(*module.backward(tape, gy, case.gstate))
    assert np.isnan(found["W_l0"]).all() and np.isnan(found["x"][:2, 0]).all()
    assert_close(found["x"][:, 1:], clean["x"][:, 1:], "float64", 6)


@cell
def normed(x: "I", h: "H", *, W: "H I", C: "H H", R: "H H", g: "H") -> Any:
    """The gradient of the norm hangs on a product that no carried gradient reads: it is made after all steps."""
    return tanh(R @ h + C @ rms_norm(W @ x, g))


@pytest.mark.broad
def test_a_quotient_after_the_steps_is_a_number_in_rows_that_have_ended() -> None:
    """What ended is 0 in all that is read after the steps, also below a fraction; sums over rows take every row."""
    net, module = trained(normed, 3, 4, dtype="float64")
    check(net, module, 9, 3, 1, lengths=np.array([9, 4, 0]))


@pytest.mark.broad
def test_inference_s_packing_serves_training() -> None:
    _, module = quick("lstm")
    forward = module.manifest.training.forward
    assert forward.packed_as_inference and not forward.packs
    net, module = trained(of_parameters, 3, 9, dtype="float64")  # its constants have two names and the same values
    assert module.manifest.training.forward.packed_as_inference
    check(net, module, 4, 3)


def test_packings_of_other_constants_are_not_alike() -> None:
    memory = buffer("packed", "float32")
    known = {name: function(name, [memory], store(memory, 0, tirx.const(1.0, "float32"))) for name in ("a", "b")}
    ones, others = [Pack("a", ["W_l0", "constant.0.0"], 0)], [Pack("b", ["W_l0", "constant.1.0"], 0)]
    values = {"constant.0.0": np.arange(3.0), "constant.1.0": np.arange(3.0)}
    assert _packs_alike(ones, known, others, known, values)
    assert not _packs_alike(ones, known, others, known, values | {"constant.1.0": np.ones(3)})
    assert not _packs_alike(ones, known, [Pack("b", ["U_l0", "constant.1.0"], 0)], known, values)


def test_what_the_manifest_says() -> None:
    _, module = quick("lstm")
    assert module.manifest.entry_points[-2:] == ["forward_train", "backward"]
    assert "sum_rows_cpu" in {row["template"] for row in module.manifest.templates}
    assert [row.gradients[0] for row in module.manifest.training.backward.finishes][:2] == ["W_l0", "W_l0_reverse"]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1, 33), (5, 7), (33, 1)], ids=str)
@pytest.mark.parametrize("name", cells.names())
def test_every_cell(name: str, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    ill = sizes[1] < FEWEST.get(name, 1)
    net, module = trained(name, *sizes, dtype="float64" if ill else "float32")
    sweep(net, module, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", cells.names())
def test_every_cell_in_layers_both_ways(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, module = trained(name, 6, 5, num_layers=3, bidirectional=True, dtype="float64")
    sweep(net, module, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3"])
@pytest.mark.parametrize("name", ["lstm", "lstm_layer_norm", "mlstm", "delta_net", "rhn"])
def test_other_vectors(name: str, target: str) -> None:
    net = network(name, 5, 19)
    module = rnn.compile(net, target, training=True)
    assert isinstance(module, TrainingModule)
    check(net, module, 33, 7, **flags(33, 7))


@pytest.mark.slow
@pytest.mark.parametrize("off", [*((name,) for name in PASS_NAMES), PASS_NAMES], ids="+".join)
@pytest.mark.parametrize("name", ["lstm", "gru_reset_before", "lstm_layer_norm", "mlstm", "augru"])
def test_passes_that_are_left_out(name: str, off: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    net, module = trained(name, 5, 7, off, num_layers=2, dtype="float64")
    sweep(net, module, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm", "gru", "lstm_layer_norm", "mlstm"])
def test_large_layers(name: str) -> None:
    net, module = trained(name, 130, 130 if name != "mlstm" else 33)
    check(net, module, 33, 130)
    check(net, module, 200, 3, **flags(200, 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
def test_odd_equations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, module = trained(ODD[name], 6, 5, dtype="float64")
    sweep(net, module, monkeypatch, 5)  # some of them are chaotic


@pytest.mark.broad
@pytest.mark.parametrize("keep", ["values", "states"])
def test_an_output_that_is_computed_before_the_steps(keep: str) -> None:
    """It is emitted for backward, and the step hands it on as the layer's output."""

    @cell(output="y")
    def early(x: "I", h: "H", *, W: "H I"):
        y = tanh(W @ x)
        return 0.5 * h + y, y

    net = network(early, 4, 5, num_layers=2, dtype="float64")
    module = rnn.compile(net, training=True, keep=keep)
    assert isinstance(module, TrainingModule)
    check(net, module, 5, 3, **flags(5, 3))


def check_equations(drawn: Equations) -> None:
    net = drawn.net("float64")
    module = rnn.compile(net, training=True)
    assert isinstance(module, TrainingModule)
    check(net, module, 5, 3, **flags(5, 3))


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(equations())
def test_random_equations(drawn: Equations) -> None:
    check_equations(drawn)

"""One layer's statements: one launch per group and step, variants by their conditions, flags only where they are
given."""

from __future__ import annotations

from typing import Any

import pytest
from compiled_kernels import layers_of

import tvm_rnn as rnn
from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.model import choose_regime
from tvm_rnn.cuda.plan import layer as steps
from tvm_rnn.cuda.plan.layer import Layer
from tvm_rnn.cuda.plan.network import plan
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve

GPU = resolve("nvidia-h200")


@pytest.fixture(autouse=True)
def step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "choose", lambda *given: [])


def layer_of(name: str, precision: str = "float32") -> Layer:
    net, layers = layers_of(name)
    dtype = "float32" if precision == "tf32" else precision
    return Layer(layers.graphs[0], 0, dtype, Options(GPU, precision=precision), GPU, net.cell.initial)


@pytest.mark.parametrize("name", ["elman", "lstm_layer_norm", "mlstm"])
def test_every_group_has_a_kernel(name: str) -> None:
    layer = layer_of(name)
    assert [group for groups, _ in layer.groups for group in groups] == list(layer.graph.groups)
    assert len(layer.facts()) == len(layer.groups)


def test_memory_of_hoisted_values_is_counted_with_its_padding() -> None:
    layer = layer_of("elman", "bfloat16")
    assert layer.bytes_per_row == 16 + 16  # 7 numbers of 2 bytes, and the copy of an input of 5


def test_inputs_of_odd_width_are_copied_for_products_of_tensor_cores_alone() -> None:
    for precision, dtype in (("tf32", "float32"), ("bfloat16", "bfloat16")):
        layer = layer_of("elman", precision)
        assert {n: (p.dtype, p.row_stride) for n, p in layer.layout.copied.items()} == {0: (dtype, 8)}
    assert [kernel.name for kernel in layer.copies.values()] == ["g0_copy0"]
    (_, product), *_ = layer.groups
    (operand,) = [a for a in product.arguments if a.role == "operand"]
    found = layer.layout.source(operand.node, True, "before")
    assert found is not None and found.kind == "copy"
    assert not layer_of("elman").layout.copied and not layer_of("elman", "float64").layout.copied


def test_copies_of_one_buffer_do_not_overlap() -> None:
    layer, program = layer_of("lstm"), Program("float32")
    first = layer.work_buffers(program, "64 * B", 2, 0)
    second = layer.work_buffers(program, "64 * B", 2, 1)
    one, other = first["hoisted"], second["hoisted"]
    assert one.keys() == other.keys() and not first["words"]
    assert not {p.text for p in one.values()} & {p.text for p in other.values()}
    reserved = [line for line in program.layout if "reserve" in line]
    assert len(reserved) == len(one) + sum(map(len, first["step"].values()))


def test_predicted_times_of_layers_without_a_regime() -> None:
    small, large = layer_of("lstm"), layer_of("lstm", "bfloat16")
    assert small.predicted_us(1) >= steps.STEP_US == large.predicted_us(1)
    assert small.beside(1) == large.beside(1) == 1
    assert small.predicted_us(1 << 20) > small.predicted_us(1)  # products in float32 are predicted


def test_how_many_layers_have_room_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "choose", choose_regime.choose)
    layer = layer_of("lstm")
    (regime,) = [r for r in layer.regimes if r.most is None or r.most >= 64][:1]
    assert isinstance(regime, choose_regime.Persistent) and layer.predicted_us(64) > 0
    assert layer.beside(64) == max(1, regime.resident // -(-64 // regime.geometry.rows))
    if regime.most is None:
        assert layer.predicted_us(1 << 12) > 2 * layer.predicted_us(64) and layer.beside(1 << 12) == 1


def test_states_that_are_known_for_all_steps_need_none() -> None:
    net, layers = layers_of("min_gru")
    layer = Layer(layers.graphs[0], 0, "float32", Options(GPU, precision="float32"), GPU, net.cell.initial)
    program, host = Program("float32"), Program("float32").sequence
    assert not layer.regimes and [scan.width for scan in layer.scans] == [7]
    assert "chunk_ends" in layer.work_buffers(program, "T * B", 1, 0)
    assert any("sms *" in line for line in program.layout)
    tile: Any = None  # nobody asks it anything: the recurrence writes the output
    layer.recurrence(host, tile, tile)
    assert not host.lines
    assert layer.facts()[-1]["template"] == "vector_scan_cuda" and "in chunks" in layer.facts()[-1]["unit"]


def test_the_output_is_written_where_it_goes() -> None:
    for name, kinds in (("min_gru", [["output"]]), ("lru", [["output"]])):
        layer = layer_of(name)
        output = layer.graph.output
        assert [[t.kind for t in layer.layout.targets(output, "before")]] == kinds
        assert output not in layer.layout.hoisted_nodes


@pytest.mark.broad
def test_what_is_read_of_a_matrix_goes_to_the_output() -> None:
    """Unless the address does not allow it: the last group copies it then."""
    net = rnn.RNN(rnn.cells.gated_delta_net, 5, 16, dtype="bfloat16", N=2)
    lines = [line.strip() for line in plan(passed(net, Options(GPU, precision="bfloat16")), GPU).sequence.lines]
    (at,) = [i for i, line in enumerate(lines) if line.startswith("if (!there")]
    assert "_pointwise, read" in lines[at + 1]
    scans = [line for line in lines if "_scan_" in line and "_ends" not in line and "_compose" not in line]
    assert scans and all(", read_" in line for line in scans)
    assert layer_of("rwkv7", "bfloat16").passed_on is None and layer_of("min_gru").passed_on is None


def test_the_first_step_of_a_tile_multiplies_beside_hoisted_products() -> None:
    """The kernel before it must be one that lets it begin, and what it multiplies must be there before the tile. Calls
    of one step have kernels of their own only where the user's states lie otherwise."""
    net, layers = layers_of("lstm", hidden=8)
    for name, early in (("nvidia-h200", True), ("nvidia-a100", False)):
        machine = resolve(name)
        options = Options(machine, precision="bfloat16")
        layer = Layer(layers.graphs[0], 0, "bfloat16", options, machine, net.cell.initial)
        (((group, *_), once),) = layer.one_step.groups
        assert group.region == "step" and layer._given(1) == early and not layer._given(0)
        assert {variant.kernel.shares for variant in once.variants} == {early}
        assert once.given == layer.groups[1][1].given == early
    rounded = layer_of("lstm_layer_norm")  # in float32, whose kernels do not begin early
    assert not any(rounded._given(number) for number in range(len(rounded.groups)))

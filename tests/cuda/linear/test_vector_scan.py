"""Recurrences of vectors in chunks, on the emulator, beside the oracle's rows step by step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from emulated import POISON, run

import tvm_rnn as rnn
from tvm_rnn.bench.suites.recurrences import CELLS
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.row_kernels import Job
from tvm_rnn.cuda.linear.vector_scan import VectorScan
from tvm_rnn.cuda.plan.network import plan
from tvm_rnn.graph.graph import Group, Node, make
from tvm_rnn.options import Options
from tvm_rnn.oracle.reference import evaluate
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve

GPU = resolve("nvidia-h200")
WIDTH, BATCH = 26, 3  # elements: those of a block, and some of another
SIDES = (1, 2)  # elements of a thread
INITIAL = {"h0": 0.5, "h1": -0.25}
Arrays = dict[str, np.ndarray]


def known(count: int, width: int = WIDTH) -> list[Node]:
    return [Node("input", shape=(width,)) for _ in range(count)]


def states(count: int) -> list[Node]:
    return [Node("state", shape=(WIDTH,), name=f"h{n}") for n in range(count)]


def group(rows: Mapping[Node, Node], side: int = 1) -> tuple[VectorScan, Node]:
    """A recurrence whose rows replace these states, between a prologue and an epilogue that reads old and new."""
    first, state = next(iter(rows.items()))
    old = make("carried", first, state)
    output = make("add", make("tanh", first), make("mul", old, known(1)[0]))
    inner = [a for row in rows for a in row.args if a.op == "sigmoid"]
    nodes = (*inner, *rows, old, *output.args, output)
    own = Group("scan", "before", 0, first, nodes, (output, first))

    def reads(node: Node) -> Place | None:
        return Place("float32", WIDTH, align=4) if node.op == "input" else None

    job = Job("k", own, "float32", reads, lambda n: [Place("float32", WIDTH + 2)])
    return VectorScan(job, rows, INITIAL, frozenset({output}), warps=2, ahead=3, side=side), output


def linear(side: int = 1) -> tuple[VectorScan, Node]:
    a, b = known(2)
    (h,) = states(1)
    return group({make("scan", h, make("sigmoid", a), b): h}, side)


def pair(side: int = 1) -> tuple[VectorScan, Node]:
    """Two states, whose rows name them in different orders."""
    x, y = states(2)
    a = known(6)
    return group({make("scan", y, x, *a[:3]): x, make("scan", y, x, *a[3:]): y}, side)


def maximum(side: int = 1) -> tuple[VectorScan, Node]:
    (h,) = states(1)
    return group({make("scan_max", h, *known(2)): h}, side)


def delay(side: int = 1) -> tuple[VectorScan, Node]:
    (h,) = states(1)
    return group({make("delay", h, *known(1)): h}, side)


KINDS = {"linear": linear, "pair": pair, "maximum": maximum, "delay": delay}


def errors(
    scan: VectorScan, output: Node, steps: int, span: int, mode: str = "", backwards: bool = False, group: int = 0
) -> float:
    """The largest difference of outputs and last states between kernels and oracle, relative above 1. mode: letters of
    lengths (l), resets (r), an infinity in the first state (i); group: chunks of a group that are read once, 0: they
    are read twice."""
    rng = np.random.default_rng(steps)
    leaves = [a.node for a in scan.arguments if a.role == "read"]
    inputs = {n: rng.standard_normal((steps, BATCH, WIDTH)).astype("float32") for n in leaves}
    before = [rng.standard_normal((BATCH, WIDTH)).astype("float32") for _ in scan.states]
    lengths = np.array([steps, steps // 2, 0]) if "l" in mode else None
    reset = rng.random((steps, BATCH)) < 0.2 if "r" in mode else np.zeros((steps, BATCH), bool)
    if "i" in mode:
        before[0][0] = np.inf
        reset[1, 0] = True
    expected, last = by_oracle(scan, inputs, before, (lengths, reset, backwards))
    chunks = -(-steps // span)
    arrays: Arrays = {a.name: inputs[a.node] for a in scan.arguments if a.role == "read"}
    written = [a for a in scan.arguments if a.role == "write"]
    arrays |= {a.name: np.full((steps, BATCH, WIDTH + 2), POISON, "float32") for a in written}
    arrays["chunk_ends"] = np.full(2 * chunks * scan.words * BATCH * WIDTH, 0xFFFFFFFF, "uint32").view("float32")
    for n, state in enumerate(before):
        arrays |= {f"old_{n}": state, f"new_{n}": np.full_like(state, POISON)}
    arrays |= {"lengths": np.zeros(BATCH, "int64") if lengths is None else lengths, "reset": reset.astype("uint8")}
    scalars = {"steps": steps, "reverse": int(backwards), "batch": BATCH, "chunks": chunks, "span": span}
    scalars |= {"group": group}
    scalars |= {"start": 0, "total": steps, "has_lengths": int("l" in mode), "has_reset": int(bool(reset.any()))}
    twice = ("few",) if steps <= scan.ahead else ("ends", "apply") if chunks > 1 else ("apply",)
    for kind in ("once",) if group else twice:
        blocks = -(-BATCH * WIDTH // (scan.threads(kind) if kind == "few" else scan.tile))
        run(scan.kernel(kind, bool(mode)), arrays, scalars, blocks * chunks)
    name = next(a.name for a in written if a.node is output)
    pairs = [(arrays[name][..., :WIDTH], expected), *((arrays[f"new_{n}"], v) for n, v in enumerate(last))]
    with np.errstate(invalid="ignore"):
        return max(float(np.where(a == b, 0, np.abs(a - b) / np.maximum(1, np.abs(b))).max()) for a, b in pairs)


def by_oracle(
    scan: VectorScan,
    inputs: Mapping[Node, np.ndarray],
    before: list[np.ndarray],
    masks: tuple[np.ndarray | None, np.ndarray, bool],
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The output at each step and the last states, in float64."""
    lengths, reset, backwards = masks
    steps, held = len(reset), [state.astype("float64") for state in before]
    outputs = np.zeros((steps, BATCH, WIDTH))
    ends = np.full(BATCH, steps) if lengths is None else lengths
    for t in reversed(range(steps)) if backwards else range(steps):
        flag = t + backwards
        again = (reset[flag] & (flag < ends) if flag < steps else np.zeros(BATCH, bool))[:, None]
        held = [np.where(again, INITIAL[s.name], h) for s, h in zip(scan.states, held, strict=True)]
        values: dict[Node, np.ndarray] = {n: v[t].astype("float64") for n, v in inputs.items()}
        values |= dict(zip(scan.states, held, strict=True))
        evaluate(scan.job.group.nodes, values)
        active = (t < ends)[:, None]
        outputs[t] = np.where(active, values[scan.job.group.stored[0]], 0)
        held = [np.where(active, values[row], h) for row, h in zip(scan.rows, held, strict=True)]
    return outputs, held


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", SIDES)
def test_chunks_against_the_oracle(kind: str, side: int) -> None:
    assert errors(*KINDS[kind](side), steps=23, span=9) < 3e-4


@pytest.mark.broad_after(1)
@pytest.mark.slow_after(6)
@pytest.mark.parametrize("kind", ["linear", "pair", "maximum"])
@pytest.mark.parametrize(("side", "steps", "group"), [(2, 29, 2), (1, 18, 1), (2, 49, 16), (1, 43, 3)])
@pytest.mark.parametrize("backwards", [False, True])
def test_chunks_that_are_read_once(kind: str, side: int, steps: int, group: int, backwards: bool) -> None:
    """The last one may have fewer steps; groups of one chunk hand on states alone."""
    scan, output = KINDS[kind](side)
    assert errors(scan, output, steps, scan.round, backwards=backwards, group=group) < 3e-4


def test_what_is_read_once() -> None:
    """Where a second reading takes longer than a wait, and nothing cuts states off."""
    assert linear()[0].once and maximum()[0].once and not delay()[0].once
    plans = {dtype: rnn.RNN(CELLS["gated_sum"], 128, 64, dtype=dtype) for dtype in ("float32", "bfloat16")}
    found = {d: plan(passed(net, Options(GPU, precision=d)), GPU) for d, net in plans.items()}
    texts = {d: "\n".join(program.sequence.lines) for d, program in found.items()}
    assert texts["float32"].count("_scan_once") == 1 and "_once" not in texts["bfloat16"]
    assert "sms * 2" in texts["float32"] and "_scan_ends_masked" in texts["float32"]


@pytest.mark.broad
@pytest.mark.slow_after(8)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("backwards", "side"), [(True, 2), (False, 1), (True, 1)])
def test_lengths_and_resets(kind: str, backwards: bool, side: int) -> None:
    assert errors(*KINDS[kind](side), steps=29, span=8, mode="lr", backwards=backwards) < 3e-4


@pytest.mark.broad
@pytest.mark.parametrize(("steps", "span"), [(1, 1), (3, 3), (7, 7), (5, 2), (19, 8), (25, 25)])
@pytest.mark.parametrize("side", SIDES)
def test_any_number_of_steps_and_chunks(steps: int, span: int, side: int) -> None:
    assert errors(*linear(side), steps=steps, span=span) < 3e-5


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["linear", "maximum"])
def test_a_reset_ends_an_infinity(kind: str) -> None:
    assert errors(*KINDS[kind](), steps=13, span=4, mode="ir") < 3e-4


@pytest.mark.broad
def test_states_are_the_users_where_nobody_else_reads_them() -> None:
    """In one direction, in the dtype of arithmetic, and where they are not replaced."""
    for dtype, options, own in (("float32", {}, True), ("bfloat16", {}, False), ("float32", {"reverse": True}, False)):
        net = rnn.RNN(rnn.cells.min_gru, 5, 7, dtype=dtype, **options)
        lines = [line.strip() for line in plan(passed(net, Options(GPU, precision=dtype)), GPU).sequence.lines]
        found = [line for line in lines if line.startswith("const int64_t in_place")]
        assert bool(found) == own and all("tile_steps_1 >= T && users" in line and "!= users" in line for line in found)
        if own:
            assert lines[next(i for i, line in enumerate(lines) if "::load0," in line) - 1] == "if (!in_place_1) {"


def test_users_values_are_taken_in_pairs_where_they_are_aligned() -> None:
    """Others, and rows with lengths or resets, have kernels that take them one by one."""
    net = rnn.RNN(CELLS["gated_sum"], 128, 64, dtype="bfloat16")
    lines = [line.strip() for line in plan(passed(net, Options(GPU, precision="bfloat16")), GPU).sequence.lines]
    kinds = [line for line in lines if line.startswith("if") and "uintptr_t" in line and "has_lengths" in line]
    assert len(kinds) == 2 and all("% 4 == 0" in line for line in kinds)
    assert "!has_lengths" in kinds[0] and "|| !(" in kinds[1]

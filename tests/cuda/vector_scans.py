"""Scans of vectors on the emulator, beside the oracle's rows step by step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from emulated import POISON, run

from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.row_kernels import Job
from tvm_rnn.cuda.linear.vector_scan import VectorScan
from tvm_rnn.graph.graph import Group, Node, make
from tvm_rnn.oracle.reference import evaluate

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
    are all there at once."""
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
    kind = "once" if group else "few" if steps <= scan.ahead else "at_once" if chunks > 1 else "apply"
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

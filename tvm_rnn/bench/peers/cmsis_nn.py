"""LSTMs in 8 bits as tflite-micro runs them on a Cortex-M: on CMSIS-NN's functions.

In: a network of one LSTM layer, samples, CMSIS-NN's sources. Out: a folder like those of `write_c`, which `cortex_m.py`
runs. Numbers are quantised as TensorFlow Lite does it: weights in 8 bits with a scale for each gate, x and h in 8 or
in 16 bits, the cell in 16.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tvm_rnn.network.rnn import RNN
from tvm_rnn.oracle.reference import reference

from .models import Unsupported

HERE = Path(__file__).parent
NAME = "cmsis_nn"
GATE_SCALE = 2.0**-12  # of what is activated; what activates makes 2**-15 of it
UNIT = 2.0**-15
SOURCES = (
    *("arm_lstm_unidirectional_s{}", "arm_nn_lstm_step_s{}", "arm_nn_activation_s16", "arm_nntables"),
    *("arm_elementwise_mul_s16", "arm_elementwise_mul_acc_s16"),
)
# Of values in 8 bits, and in 16.
OWN = {
    8: ("arm_nn_lstm_calculate_gate_s8_s16", "arm_nn_vec_mat_mul_result_acc_s8_s16", "arm_elementwise_mul_s16_s8"),
    16: (
        *("arm_nn_lstm_calculate_gate_s16", "arm_nn_vec_mat_mul_result_acc_s16"),
        "arm_elementwise_mul_s16_batch_offset",
    ),
}

HEADER = """\
#include <stdint.h>
enum {{ CMSIS_NN_X = {inputs}, CMSIS_NN_Y = {units} }};
typedef struct {{ int16_t cell[{units}], first[{units}], second[{units}]; int{bits}_t hidden[{units}]; }} cmsis_nn;
void cmsis_nn_init(cmsis_nn *s);
void cmsis_nn_step(cmsis_nn *s, const int{bits}_t *x, int{bits}_t *y);
"""


@dataclass(frozen=True)
class Quantised:
    """A folder, what its source calls and is compiled with, its inputs [T, I], and what its y is multiplied with."""

    folder: Path
    sources: Sequence[Path]
    options: Sequence[str]
    x: np.ndarray
    scale: float


def quantised(net: RNN, x: np.ndarray, bits: int, folder: Path, sources: str | os.PathLike[str]) -> Quantised:
    """The network, its scales from x [T, 1, I]. bits: of x and h. folder: where NAME is made. Raises Unsupported."""
    root = Path(sources).absolute()
    if not (root / "Include" / "arm_nnfunctions.h").is_file():
        raise Unsupported(f"{os.fspath(sources)!r} has no Include/arm_nnfunctions.h: clone ARM-software/CMSIS-NN")
    if net.cell.name != "lstm" or net.num_layers > 1 or net.bidirectional:
        raise Unsupported("it has LSTMs of one layer and direction, no other cell")
    most = float(2 ** (bits - 1))
    scales = {"x": float(np.abs(x).max()) / (most - 1), "h": 1 / most}
    power = max(3, math.ceil(math.log2(_largest_cell(net, x))))
    made = folder / NAME
    made.mkdir()
    (made / f"{NAME}.h").write_text(HEADER.format(inputs=net.input_size, units=net.hidden_size, bits=bits))
    (made / f"{NAME}.c").write_text(_source(net, scales, power - 15, bits))
    names = [f"{name.format(bits)}.c" for name in (*SOURCES, *OWN[bits])]
    found = [path for name in names for path in (root / "Source").rglob(name)]
    integers = np.clip(np.round(x[:, 0] / scales["x"]), -most, most - 1).astype(f"i{bits // 8}")
    return Quantised(made, found, ["-O3", "-std=gnu99", f"-I{root / 'Include'}"], integers, scales["h"])


def _largest_cell(net: RNN, x: np.ndarray) -> float:
    """The largest magnitude in the cell over all steps."""
    step, states, found = reference(net), None, 0.0
    for now in x:
        _, states = step(now[None], states)
        found = max(found, float(np.abs(states["c"]).max()))
    return found


def _source(net: RNN, scales: dict[str, float], cell: int, bits: int) -> str:
    """C: constants, and cmsis_nn.c. cell: the exponent of its scale."""
    W, R, b = (np.asarray(net.weights[f"{name}_l0"], np.float64) for name in "WRb")
    kind, bias, scaled = f"int{bits}_t", "int32_t" if bits == 8 else "int64_t", list[str]()
    integers: dict[str, list[np.ndarray]] = {"W": [], "R": [], "b": []}
    for gate in range(4):
        own = [float(np.abs(matrix[gate]).max()) / 127 for matrix in (W, R)]
        integers["W"].append(np.round(W[gate] / own[0]))
        integers["R"].append(np.round(R[gate] / own[1]))
        integers["b"].append(np.round(b[gate] / (own[0] * scales["x"])))
        both = (own[0] * scales["x"], own[1] * scales["h"])
        scaled.append(f"{{{', '.join(_multiplier(scale / GATE_SCALE) for scale in both)}}}")
    ends = {"FORGET": UNIT, "INPUT": UNIT**2 / 2.0**cell, "OUTPUT": UNIT**2 / scales["h"]}
    lines = [f'#include "{NAME}.h"', "#include <string.h>", '#include "arm_nnfunctions.h"']
    lines += [f"#define NUMBER {kind}", f"#define STEP arm_lstm_unidirectional_s{bits}", f"#define CELL_POWER {cell}"]
    lines += [f"static const int32_t SCALES[4][4] = {{{', '.join(scaled)}}};"]
    lines += [f"static const int32_t {name}[2] = {{{_multiplier(scale)}}};" for name, scale in ends.items()]
    for name, values in integers.items():
        rows = [f"{{{', '.join(str(int(v)) for v in value.ravel())}}}" for value in values]
        flat = f"static const {bias if name == 'b' else 'int8_t'} {name}[4][{values[0].size}]"
        lines.append(f"{flat} = {{{', '.join(rows)}}};")
    lines.append(f"static const {bias} none[{net.hidden_size}];")
    return "\n".join([*lines, "", (HERE / f"{NAME}.c").read_text(encoding="utf-8")])


def _multiplier(scale: float) -> str:
    """A scale as CMSIS-NN has it: a whole number m and a shift s, m 2**(s - 31)."""
    part, shift = math.frexp(scale)
    whole = round(part * 2**31)
    return f"{whole // 2}, {shift + 1}" if whole == 2**31 else f"{whole}, {shift}"

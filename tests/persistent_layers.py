"""Layers for tests of persistent kernels: a cell's layout, its steps, geometries of a template, compiled kernels.

In: names of zoo cells, sizes and precisions. Out: what `recurrent.py` would make of them for an H200, which need not be
there.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

import tvm_rnn as rnn
from tvm_rnn.cuda.codegen import nvcc
from tvm_rnn.cuda.codegen.cuda_text import compile_kernels
from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.cuda.layer.phases import Step
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.layer.weight_packing import Weights
from tvm_rnn.cuda.model import choose_geometry
from tvm_rnn.cuda.model.choose_geometry import RecurrentUnit
from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.cuda.model.persistent_step_time import StepTime, predict
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.exchange import CLUSTER, CLUSTER_ALONE, COUNTER
from tvm_rnn.cuda.persistent.exchange_by_polling import POLLING
from tvm_rnn.cuda.persistent.exchange_in_block import BLOCK
from tvm_rnn.cuda.persistent.exchange_of_rows import FEW
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.cuda.persistent.product.few_rows import ROWS, FewRows
from tvm_rnn.cuda.persistent.product.ffma import Ffma
from tvm_rnn.cuda.persistent.product.mma_sync import MmaSync
from tvm_rnn.cuda.persistent.product.row_by_lanes import RowByLanes
from tvm_rnn.cuda.persistent.product.wgmma_pipelined import WgmmaPipelined
from tvm_rnn.cuda.persistent.product.wgmma_split_k import WgmmaSplitK
from tvm_rnn.cuda.persistent.product.wgmma_staged import WgmmaStaged
from tvm_rnn.errors import BuildError
from tvm_rnn.passes import pipeline
from tvm_rnn.schedule.schedule_template import Config, Knobs, templates
from tvm_rnn.target import Target, resolve

GPU = resolve("nvidia-h200")
TEMPLATES = ("persistent_cluster_cuda", "persistent_grid_cuda")
TENSOR_CORES = ("bfloat16", "float16", "tf32")
ONE_QUICK = [pytest.param(p, marks=[pytest.mark.slow] * (p != "bfloat16")) for p in TENSOR_CORES]


@functools.cache
def layout_of(name: str, hidden: int, precision: str = "bfloat16", inputs: int = 8) -> Layout:
    """The layout of one layer of a zoo cell."""
    cell = rnn.cells.get(name)
    sizes = {"depth": 2, "P": 24, "Y": 3, "X": 4, "S": 4, "A": 2}
    axes: dict[str, int] = {axis: size for axis, size in sizes.items() if axis in cell.size_names}
    dtype = "float32" if precision == "tf32" else precision
    net = rnn.RNN(cell, inputs if "I" in cell.size_names else hidden, hidden, dtype=dtype, **axes)
    (graph,) = pipeline.run(net, GPU)[-1][1].graphs
    return Layout(graph, precision, Weights(graph, 0, precision), dtype, 1)


def step(name: str, hidden: int, precision: str = "bfloat16") -> Step:
    return step_of(layout_of(name, hidden, precision))


def geometry_of(step: Step, precision: str, exchange: str = "grid", ctas: int = 1, rows: int = 8, **knobs: Any) -> Any:
    """The geometry of knobs as records name them: exchange "block", "cluster alone" (in no wave), "cluster" or "grid",
    polled; of other products than those of mma.sync: pace (split-K), ring, staged, fma."""
    polled, staged = knobs.pop("polled", 0), knobs.pop("staged", 0)
    if "fma" in knobs:
        return Ffma(step, precision, ctas, rows, stages=knobs.pop("fma"), **knobs)
    if "pace" in knobs or "ring" in knobs:
        return (WgmmaSplitK if "pace" in knobs else WgmmaPipelined)(step, precision, ctas, rows, **knobs)
    if staged:
        return WgmmaStaged(step, precision, ctas, rows, **knobs)
    if rows in ROWS:
        kind = RowByLanes if knobs.pop("by_lanes", 0) else FewRows
        return kind(step, precision, FEW, ctas, rows, **knobs)
    clusters = {"block": BLOCK, "cluster alone": CLUSTER_ALONE, "cluster": CLUSTER}
    how = clusters.get(exchange, POLLING if polled else COUNTER)
    return MmaSync(step, precision, how, ctas, rows, **knobs)


def unit_of(name: str, hidden: int, precision: str, batch: int) -> RecurrentUnit:
    """What templates are asked about."""
    return choose_geometry.unit_of(step(name, hidden, precision), GPU, precision, batch)


def configured(template: str, unit: RecurrentUnit, record: Config | None = None) -> tuple[Config, Knobs]:
    """A template's configuration, and the knobs that were asked for it."""
    knobs = Knobs(record or {})
    return templates()[template].configure(unit, GPU, knobs), knobs


def geometry_by(template: str, unit: RecurrentUnit, config: Config) -> Geometry:
    made: Any = templates()[template].schedule(None, unit, config)
    assert isinstance(made, Geometry)
    return made


def best_geometry(name: str, hidden: int, precision: str, batch: int) -> tuple[float, Geometry] | None:
    """The quickest geometry for a batch, and its predicted microseconds per step."""
    unit, found = unit_of(name, hidden, precision, batch), []
    for template in TEMPLATES:
        config, _ = configured(template, unit)
        if config:
            made = geometry_by(template, unit, config)
            found.append((predict(made, batch, GPU), made))
    return min(found, key=lambda f: f[0], default=None)


def text_of(kernel: Kernel) -> str:
    """The kernel as CUDA text, without what TVM puts in front of it."""
    device, _ = compile_kernels({kernel.name: kernel.func}, GPU)
    return device[device.index('extern "C" __global__') :]


def registers_and_spills(kernel: Kernel, folder: Path) -> tuple[int, int]:
    """What nvcc makes of a kernel: registers per thread, spilled bytes. Skips the test where there is no compiler."""
    try:
        tools = nvcc.find()
    except BuildError:
        pytest.skip("needs a CUDA compiler")
    device, _ = compile_kernels({kernel.name: kernel.func}, GPU)
    remarks: Any = nvcc.compile_cubin(device, GPU.arch, folder / "kernel.cubin", True, tools)
    (taken,) = nvcc.resources(remarks)
    return taken["registers"], taken["spill_bytes"]


def compiled_without_spills(
    template: str, work: tuple[str, int, str, int], folder: Path, initial: Any, most: int = 0
) -> tuple[Kernel, Geometry]:
    """The kernel of a template's default, which fits and spills no more than `most` bytes, of stores and loads
    together. work: cell, H, precision, B."""
    name, hidden, precision, batch = work
    unit = unit_of(name, hidden, precision, batch)
    geometry = geometry_by(template, unit, configured(template, unit)[0])
    kernel = persistent.kernel("k", geometry, layout_of(name, hidden, precision), initial)
    registers, spilled = registers_and_spills(kernel, folder)
    assert spilled <= most and 0 < registers <= 65536 // geometry.threads
    return kernel, geometry


def two_groups(geometry: Geometry, target: Target) -> StepTime:
    """The time of a geometry on a GPU that has room for two groups of its blocks at once."""
    time = StepTime(geometry, target)
    time.resident = 2
    return time

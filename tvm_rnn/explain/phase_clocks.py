"""What clocks in persistent kernels say of their phases, on a GPU of this machine.

In: how a network is compiled, and its decisions. Out: the decisions of kernels that ran, with measured times of their
phases. The network is compiled once more, with clocks in its kernels, and called with random numbers; where it trains,
forward_train and backward are called too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from tvm_rnn.decisions import DecisionFacts, Figures
from tvm_rnn.runtime.gpu_arrays import PER_THREAD_STREAM
from tvm_rnn.runtime.runtime import Module
from tvm_rnn.runtime.runtime_cuda import CudaModule
from tvm_rnn.runtime.runtime_cuda_training import CudaTrainingModule

if TYPE_CHECKING:
    from tvm_rnn.cuda.persistent.phase_clocks import Clocks

CALLS = 5  # that are counted, behind one that is not


def with_clocks(decisions: list[DecisionFacts], compiled: Callable[[], Module], steps: int) -> list[DecisionFacts]:
    """The decisions; those of kernels that ran say `clocked_times` beside `phase_times`, the same of what was measured,
    and `clocked_by`: B and T of the calls. compiled: compiles the network, for a GPU of this machine."""
    from tvm_rnn.cuda.persistent.phase_clocks import clocked

    wanted = [row for row in decisions if _is_clocked(row)]
    if not wanted:
        return decisions
    with clocked() as clocks:
        module = compiled()
    assert isinstance(module, CudaModule)
    measured = dict(_measured(module, clocks, sorted({row["subject"]["batch"] for row in wanted}), steps))
    found = list[DecisionFacts]()
    for row in decisions:
        if _is_clocked(row):
            batch, facts = row["subject"]["batch"], row["facts"]
            times = clocks.measured(str(facts["kernel"]), measured[batch])
            if times:
                names = ({"kind": phase["kind"], "units": phase["units"]} for phase in facts["phase_times"])
                us = ({name: round(value, 4) for name, value in phase.items()} for phase in times)
                own = [named | phase for named, phase in zip(names, us, strict=True)]
                row = {**row, "facts": {**facts, "clocked_times": own, "clocked_by": f"B = {batch}, T = {steps}"}}
        found.append(row)
    return found


def _is_clocked(row: DecisionFacts) -> bool:
    """Whether a decision is about a kernel whose step has phases."""
    return bool(row["done"] and "phase_times" in row.get("facts", {}) and "batch" in row.get("subject", {}))


def _measured(module: CudaModule, clocks: Clocks, batches: list[int], steps: int) -> Iterator[tuple[int, list[int]]]:
    """By batch size all numbers of all kernels, of some calls."""
    weights = {item["name"]: item["shape"] for item in module.manifest["weights"]}
    rng = np.random.default_rng(0)
    if not module.weights:
        module.load_weights({name: rng.normal(0, 0.05, shape).astype(module._dtype) for name, shape in weights.items()})
    for batch in batches:
        inputs = _inputs(module.manifest, rng, (batch, steps) if module.batch_first else (steps, batch), batch)
        device = module._on_device(next(iter(inputs.values())), module._device)
        numbers = np.zeros(clocks.count, np.uint64)
        address = device.allocate(module, numbers.nbytes)
        for way in device.ways:
            name = "_".join(["clocks", device.variant.arch, *filter(None, [way])])
            module._library.get_function(name)(address)
        for calls in (1, CALLS):  # those before the last zeros do not count
            device.send(np.zeros_like(numbers), address)
            for _ in range(calls):
                module(inputs)
                if isinstance(module, CudaTrainingModule):
                    y, _, tape = module.forward_train(inputs)
                    module.backward(tape, np.ones_like(y))
        device.functions["transfer"](device.number, PER_THREAD_STREAM, numbers.ctypes.data, address, numbers.nbytes)
        yield batch, numbers.tolist()


def _inputs(manifest: Figures, rng: np.random.Generator, lead: tuple[int, int], batch: int) -> dict[str, np.ndarray]:
    """bfloat16 is rounded from float32 on the way."""
    dtype = "float32" if manifest["dtype"] == "bfloat16" else manifest["dtype"]
    x = {i["name"]: rng.normal(size=(*lead, *i["shape"])).astype(dtype) for i in manifest["inputs"]}
    held = {s["name"]: s["shapes"][0] for s in manifest["states"] if s.get("constant")}
    return x | {name: rng.normal(size=(batch, *shape)).astype(dtype) for name, shape in held.items()}

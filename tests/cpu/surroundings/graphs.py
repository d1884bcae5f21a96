"""Graphs of calls for tests, compiled and run: what a module's runtime does with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_rnn.compiler.link import generate, link
from tvm_rnn.cpu.pair_product import pair_products
from tvm_rnn.cpu.surroundings.host_function import HostFunction
from tvm_rnn.runtime.runtime_model import call_compiled
from tvm_rnn.surroundings.calls import Graph, calls_of
from tvm_rnn.target import host


def graph_of(shape: list[str | int], make: Callable[[Any], Any]) -> Graph:
    """Of x, whose sizes may have names."""
    axes = {name: tirx.Var(name, "int64") for name in shape if isinstance(name, str)}
    builder = relax.BlockBuilder()
    given = relax.Var("x", relax.TensorType([axes.get(n, n) for n in shape], "float32"))
    with builder.function("main", [given]):
        with builder.dataflow():
            found = builder.emit_output(builder.normalize(make(given)))
        builder.emit_func_output(found)
    return calls_of(builder.get())


def compiled(graph: Graph, folder: Any, lanes: int = 8) -> Callable[..., list[np.ndarray]]:
    """A function of x."""
    made = HostFunction("around", graph, lanes, pair_products(host()))
    path = folder / "around.so"
    path.write_bytes(link(generate(tvm.IRModule(made.functions), host()), folder, host()))
    library = tvm.runtime.load_module(str(path))
    library["pool_install"]()  # libtvm_runtime's loader has put its own pool there
    attributes = {
        "function": "around",
        "constants": len(made.given),
        "axes": [len(value.shape) for value in graph.outputs],
        "dtypes": [value.dtype for value in graph.outputs],
        "memory": list(made.works),
    }
    module = type("Fake", (), {"_library": type("Fake", (), {"get_function": library.get_function})(), "threads": 2})()
    return lambda x: call_compiled(module, [x, *(value.array for value in made.given)], attributes)

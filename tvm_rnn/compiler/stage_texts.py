"""Every stage as text: the graph in its regions, then tensor expressions, TIR, LLVM and assembly.

In: an RNN and options. Out: (stage, text) pairs for `tvm-rnn show`, `--dump` and the golden tests. Names in the text
are stable: they depend on the equations alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tvm_rnn.cpu.lower_network import Lowering
from tvm_rnn.cpu.training.add_entry_points import add_training, check_training
from tvm_rnn.graph.graph_text import layers_text
from tvm_rnn.graph.tensor_expressions import te
from tvm_rnn.graph.tensor_expressions import text as te_text
from tvm_rnn.network.model import widened
from tvm_rnn.options import Options, asked
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import Target, resolve

from .link import generate

if TYPE_CHECKING:
    from tvm_rnn.cuda.codegen.host_program import Program
    from tvm_rnn.network.rnn import RNN

CODE_STAGES = ("te", "tir", "llvm", "asm")
GPU_STAGES = ("te", "tir", "cuda", "host")


def stages(
    net: RNN,
    target: str | Target = "llvm",
    batch: Sequence[int] = (),
    without: Iterable[str] = (),
    *,
    precision: str | None = None,
    weights: str | None = None,
    training: bool = False,
) -> list[tuple[str, str]]:
    """Every stage as (name, text): the passes' graphs, then "te", "tir", "llvm" and "asm"; for GPUs "tir" (kernels),
    "cuda" and "host" (the program that launches them).

    net, target, batch, without, precision, weights, training: as for `compile`; with training backward graphs and the
    code of training are among the texts. Raises ConfigError, CellError or BuildError as `compile` does.
    """
    options = asked(
        resolve(target), batch=batch, without=without, precision=precision, weights=weights, training=training
    )
    net = widened(net, precision)
    if training:
        check_training(net)
    return texts(net, options.of(net.dtype))


def texts(net: RNN, options: Options) -> list[tuple[str, str]]:
    """All stages in order as (name, text). Compiles, but neither links nor loads."""
    own, machine = passed(net, options), options.target
    shown = own.training(options.training) if options.training else own.stages
    found = [(name, layers_text(layers)) for name, layers in shown]
    found.append(("te", "\n\n".join(te_text(te(graph)) for graph in shown[0][1].graphs)))
    if machine.kind == "cuda":
        from tvm_rnn.cuda.plan import network as plan
        from tvm_rnn.cuda.training import add_entry_points

        programs = [plan.plan(own, machine)]
        programs += add_entry_points.plan(own, machine).programs if options.training else ()
        return [*found, *_gpu_texts(programs, machine)]
    lowered = Lowering(net, own.layers, options).run()
    if options.training:
        add_training(own, lowered, lowered.describe())
    executable = generate(lowered.module, machine)
    found.append(("tir", lowered.module.script()))
    found.append(("llvm", executable.mod.inspect_source("ll")))
    found.append(("asm", executable.mod.inspect_source("asm")))
    return found


def _gpu_texts(programs: Sequence[Program], machine: Target) -> list[tuple[str, str]]:
    from tvm_rnn.cuda.codegen import cuda_text

    shards = [shard for program in programs for shard in cuda_text.generate(program, machine).shards]
    kernels = "\n\n".join(kernel.func.script() for program in programs for kernel in program.kernels.values())
    hosts = "\n\n".join(map(cuda_text.statements, programs))
    return [("tir", kernels), ("cuda", "\n".join(shards)), ("host", hosts)]

"""A Model of any number of networks to one file: their functions side by side in one shared object, one manifest.

In: a Model, its networks' layers after the passes, a CPU, from compile.py. Out: a container file that runtime_model.py
loads. Function names begin with the number of the network, but for the first one's: sequence, pack_0, n1_sequence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import tvm
from msgspec import convert, structs

from tvm_rnn.cpu.lower_network import Lowering
from tvm_rnn.cpu.shared_groups import SharedGroups
from tvm_rnn.module_file import manifest, schema
from tvm_rnn.module_file.facts import blob, shared_facts
from tvm_rnn.module_file.schema import CpuNetwork, Origin, SeveralNetworks
from tvm_rnn.network.model import Model
from tvm_rnn.options import Options
from tvm_rnn.passes.passed import Passed

from .link import generate, link
from .surroundings import Functions

Tell = Callable[[str], None]


def write_model(
    model: Model, networks: Sequence[Passed], around: Functions, options: Options, folder: Path, tell: Tell
) -> str:
    """Compile every network, and what is around them, for one CPU; returns the file's path. Raises BuildError."""
    machine = options.target
    tell("lowering")
    sharing = SharedGroups()
    lowered = [Lowering(own.net, own.layers, own.options, sharing=sharing).run() for own in networks]
    tell("code generation")
    functions = {
        _named(i, name): function.with_attr("global_symbol", _named(i, name))
        for i, own in enumerate(lowered)
        for name, function in own.found.items()
    }
    executable = generate(tvm.IRModule(sharing.finish(functions) | around), machine)
    tell("linking")
    elf = link(executable, folder, machine)
    facts = [code.describe() for code in lowered]
    whole = SeveralNetworks(
        **structs.asdict(shared_facts(machine, options.batches, options.without)),
        entry_points=["run"],
        origin=convert(model.origin.facts(), Origin),
        model=convert(model.program.facts(), schema.Model),
        networks=[_own(network, i) for i, network in enumerate(facts)],
    )
    arrays = {
        f"{i}.{name}": value for i, own in enumerate(networks) for name, value in blob(own.net, own.layers).items()
    }
    path = os.path.join(folder, "model.so")
    manifest.write_container(elf, whole, arrays | model.program.arrays(), path)
    return path


def _named(number: int, function: str) -> str:
    return f"n{number}_{function}" if number else function


def _own(network: CpuNetwork, number: int) -> CpuNetwork:
    """What the manifest says of one network, with its functions by the names that they have in the file."""
    packs = [structs.replace(pack, function=_named(number, pack.function)) for pack in network.packs]
    decisions = [d for d in network.decisions or () if d["subject"].get("network", number) == number]
    return structs.replace(network, packs=packs, decisions=decisions, sequence=_named(number, "sequence"))

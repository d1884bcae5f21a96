"""The manifest of a module for a CPU.

In: an RNN and its lowered functions. Out: the manifest's facts, before those of training.
"""

from __future__ import annotations

from msgspec import structs

from tvm_rnn.module_file.facts import common_facts
from tvm_rnn.module_file.schema import CpuNetwork
from tvm_rnn.network.rnn import RNN
from tvm_rnn.options import Options

from .lower_network import Lowered


def describe(net: RNN, lowered: Lowered, options: Options) -> CpuNetwork:
    """The manifest of a module for a CPU."""
    return CpuNetwork(
        **structs.asdict(common_facts(net, options.target, options.batches, options.without)),
        packs=lowered.packs,
        packed_elements=lowered.packed_elements,
        workspace=lowered.workspace,
        rows_per_tile=lowered.rows_per_tile,
        flops_per_row=lowered.flops_per_row,
        templates=[used.facts() for used in (*lowered.used, *lowered.walks)],
        weight_dtype=lowered.stored or None,
    )

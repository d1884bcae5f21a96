"""A module's network, made again from its manifest, so that pictures of it can be drawn: a file has no equations.

In: a manifest, which says the cell's name, all sizes and a digest of the equations; the cell itself where the zoo has
none of that name. Out: the network, its target and its graphs after every pass; or in words why there are none. What
is drawn is what was compiled: the digest and every decision of the passes are compared with the manifest's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_rnn.decisions import DecisionFacts, recording
from tvm_rnn.language.cell import Cell
from tvm_rnn.module_file.schema import CpuNetwork, GpuNetwork, SeveralNetworks, SeveralOnGpus, plain, read
from tvm_rnn.network.rnn import RNN
from tvm_rnn.options import PASS_NAMES
from tvm_rnn.passes import pipeline
from tvm_rnn.runtime.runtime import Manifest
from tvm_rnn.target import GPUS, Target, host, resolve, table_row

if TYPE_CHECKING:
    from tvm_rnn.graph.graph import Layers
    from tvm_rnn.options import Options

AFTER = ("regime", "wave")  # stages of decisions that are not of passes


class NotDrawn(Exception):
    """Why there are no pictures, in words. Never leaves `explain`."""


@dataclass(frozen=True)
class Looked:
    """A network that was explained, for pictures of it. stages: its graphs after each pass. options: of `compile`; None
    for a module's network, which has its code in its file."""

    net: RNN
    machine: Target
    stages: list[tuple[str, Layers]]
    options: Options | None

    def code(self) -> list[tuple[str, str]]:
        """Tensor expressions and generated code, as (stage, text); nothing of a module's."""
        if self.options is None:
            return []
        from tvm_rnn.compiler.stage_texts import CODE_STAGES, GPU_STAGES, texts

        known = GPU_STAGES if self.machine.kind == "cuda" else CODE_STAGES
        return [(name, words) for name, words in texts(self.net, self.options) if name in known]


def remade(manifest: Mapping[str, object], cell: Cell | None = None) -> Looked:
    """The network of a module. manifest: of one network.

    Raises NotDrawn where the equations are not at hand, are others, or where this version's passes decide otherwise.
    """
    from tvm_rnn.bench.peers.models import Unsupported, net_of

    facts = read(manifest)
    if isinstance(facts, SeveralNetworks | SeveralOnGpus) or facts.equations is None:
        raise NotDrawn("the module is from a version whose files do not say which equations they have")
    try:
        net = net_of(json.loads(json.dumps(plain(facts)), object_hook=Manifest), cell)
    except Unsupported:
        name = facts.cell if cell is None else cell.name
        do = "name its own: --cell FILE.py:FUNCTION" if cell is None else "it is not this module's"
        raise NotDrawn(f"a module has no equations in its file, and {name} here has others or none; {do}") from None
    machine = _target(facts)
    without = [name for name in PASS_NAMES if name not in facts.passes]
    with recording() as told:
        stages = pipeline.run(net, machine, without, facts.batch)
    if _of_passes([d.as_dict() for d in told]) != _of_passes(facts.decisions or ()):
        raise NotDrawn("the passes of this version decide otherwise than those that made the module: compile it again")
    return Looked(net, machine, stages, None)


def _target(facts: CpuNetwork | GpuNetwork) -> Target:
    """The target by its name; of a machine that is not named, this one if it is of that kind."""
    own = facts.target
    name = facts.variants[0].target if isinstance(facts, GpuNetwork) else own.name
    if name in GPUS or table_row(name) is not None:
        return resolve(name)
    here = host()
    if own.kind == "llvm" and here.mcpu == own.mcpu:
        return here
    raise NotDrawn(f"it was compiled for {own.mcpu or name}, where its passes saw other caches than here")


def _of_passes(decisions: Iterable[DecisionFacts]) -> list[dict[str, object]]:
    """What was decided about inference, without the number that the network has in a model of several."""
    found = []
    for row in decisions:
        subject = {name: value for name, value in row.get("subject", {}).items() if name != "network"}
        if row["stage"] not in AFTER and "training" not in subject:
            found.append({**{k: v for k, v in row.items() if k != "subject"}, "subject": subject})
    return [row for i, row in enumerate(found) if row not in found[:i]]

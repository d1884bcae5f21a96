"""A network that was explained, as pictures of it need it.

In: a network, its target and its graphs after each pass. Out: `Looked`, with tensor expressions and generated code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_rnn.graph.graph import Layers
from tvm_rnn.network.rnn import RNN

if TYPE_CHECKING:
    from tvm_rnn.options import Options
    from tvm_rnn.target import Target


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

"""From equations as traced to graphs ready for a back end; `pipeline.py` puts the passes in order and runs them.

In: a Graph. Out: a Graph with the same meaning. A pass is a frozen dataclass with `name`, `requires`, `apply` and
`ensures`, in a file named verb_object. In order: `normalise.py`; `rows_of_pixels.py` (GPUs); `differentiate.py`
(`min_cut.py`, `keep_choice.py`: what is kept; `sums_to_gradients.py`: what follows all steps); `first_step.py` (calls
of one step that are given no states); `parallelise_time.py`
(`affine.py`: how a value depends on states; `max_plus.py`, `matrix_recurrence.py`: two kinds of recurrences;
`matrix_gradient.py`: training of the latter; `chunk_form.py`, `kept_read_outs.py`: what GPUs make of them);
`hoist_gemms.py` (`product_tables.py`: rows of tables); `combine_gemms.py` (`batched_gemms.py`: products of members);
`fuse_pointwise.py`; `tile_layers_and_time.py`. What planners get is `passed.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tvm_rnn.graph.graph import Graph

from ..errors import PassError, message

if TYPE_CHECKING:
    from tvm_rnn.network.rnn import RNN

    from ..target import Target


@dataclass(frozen=True)
class Pass:
    """Graph -> Graph. Where a pass does not apply it returns its input. needs: passes without which it is left out."""

    name = "pass"
    needs: ClassVar[tuple[str, ...]] = ()

    def requires(self, graph: Graph) -> None:
        """Raise PassError if the graph is not of the form that the pass takes."""

    def apply(self, graph: Graph, net: RNN, target: Target) -> Graph:
        raise PassError(message(f"pass {self.name} has no apply()", do="define it"))

    def ensures(self, graph: Graph) -> None:
        """Raise PassError if the result is not of the form that later passes rely on."""

    def check(self, holds: bool, promise: str, graph: Graph) -> None:
        if not holds:
            done = ", ".join(graph.applied) or "none"
            raise PassError(message(f"pass {self.name}: {promise}", where=f"cell {graph.cell}", got=f"after: {done}"))

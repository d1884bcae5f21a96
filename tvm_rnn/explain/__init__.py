"""Why a compilation is what it is: `explain`, in the terminal or as a page.

In: a network, or a module. Out: an `Explanation`. `explanation.py` gathers it (`facts.py`: its types), `work.py` counts
FLOPs and bytes, `memory_plan.py` says what training takes, `module.py` makes a module's network again; `summary.py` has
it in four sentences, `text.py`, `tables.py` and html/ show it; `beside.py` has two of them side by side.
`phase_clocks.py` measures the phases of a step on a GPU.
"""

from .explanation import Explanation, explain

__all__ = ["Explanation", "explain"]

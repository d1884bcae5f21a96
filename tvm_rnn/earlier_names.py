"""Names of modules that have moved: `from tvm_rnn.tolerance import assert_close` in code of before 0.2 keeps working.

In: an import of a name in `MOVED`. Out: the module at its new place, the very same object, and a DeprecationWarning
that names it.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "tvm_rnn.cuda.persistent.operand_cp_async": "tvm_rnn.cuda.persistent.layer_input_rows",
    "tvm_rnn.expressions": "tvm_rnn.graph.tensor_expressions",
    "tvm_rnn.pipeline": "tvm_rnn.passes.pipeline",
    "tvm_rnn.show": "tvm_rnn.compiler.stage_texts",
    "tvm_rnn.tolerance": "tvm_rnn.oracle.tolerance",
    "tvm_rnn.workload": "tvm_rnn.tune.workload",
}


class _Earlier(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        warnings.warn(f"{spec.name} has moved: import {MOVED[spec.name]}", DeprecationWarning, stacklevel=2)
        return importlib.import_module(MOVED[spec.name])

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it has run at its new place."""


def install() -> None:
    """Let imports find them, after all other finders."""
    if not any(isinstance(finder, _Earlier) for finder in sys.meta_path):
        sys.meta_path.append(_Earlier())

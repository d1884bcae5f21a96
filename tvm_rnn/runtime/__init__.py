"""Load a compiled module and call it, with numpy and tvm_ffi only: this folder needs nothing else of the package.

In: a `.so`, arrays. Out: arrays. `runtime.py` loads and runs; `runtime_training.py` trains, with `runtime_memory.py`
and `runtime_random.py`; `runtime_generate.py` feeds outputs back; `runtime_cuda*.py` do the same on GPUs, on
`gpu_arrays.py`; `runtime_model.py` runs whole models. The files can be copied beside a `.so`: each says which others it
needs.
"""

from .runtime import Module, load

__all__ = ["Module", "load"]

"""From kernels to one shared object.

In: what a kernel does, as Python that builds IR. Out: CUDA text, C++ text, an ELF file. `kernel_writer.py` builds a
kernel, with `register_tile.py`, `vector_access.py`, `tile_layout.py` and `poison.py`, words that others wait for;
`host_program.py` the program that launches kernels (`host.h`, `exports.h`), `workspace_size.py` its memory,
`launched_kernels.py` which of them a call launches (`dry_run.h`); `cuda_text.py` prints all of it, `nvcc.py` compiles.
"""

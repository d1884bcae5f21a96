"""The file of a compiled module: `manifest.py` is the contract between compiler and runtime.

In: machine code, facts, arrays. Out: one `.so` that carries all of them.
"""

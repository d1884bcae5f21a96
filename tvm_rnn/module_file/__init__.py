"""The file of a compiled module: one `.so` with machine code, weights and a manifest.

In: machine code, facts, arrays. Out: the file (`manifest.py`). `schema.py` has the manifest's types, `facts.py` what it
says of every network.
"""

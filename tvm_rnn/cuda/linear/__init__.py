"""Kernels of states that are linear in themselves. `vector_scan.py` runs recurrences of vectors over all time.

In: a group of kind "scan", and where its values lie. Out: kernels.
"""

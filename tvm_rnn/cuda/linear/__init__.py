"""Kernels of states that are matrices and linear in themselves: delta rules, gated linear attention, mLSTM's memory.

In: a `Recurrence` (`recurrence.py`). Out: kernels: `chunk_scan.py` runs all steps in chunks on tensor cores, with
`chunk_scores.py` and `chunk_states.py` for the two kinds of warps of a block; `step_by_step.py` runs few steps,
reading and writing the states once.
"""

"""Kernels of states that are matrices and linear in themselves: delta rules, gated linear attention, mLSTM's memory; in
training of their gradients too.

In: a `Recurrence` (`recurrence.py`). Out: kernels. `step_by_step.py` runs steps one after the other, reading and
writing the states once: few steps, and all steps of what has no chunks. `chunk_scan.py` runs all in chunks, on tensor
cores: `chunk_tile.py` and `chunk_layout.py` say what a block is made of, `choose_tile.py` which, `chunk_block.py` what
it has; `chunk_loads.py`, `chunk_scores.py` (where each key decays by itself, `chunk_key_scores.py`) and
`chunk_states.py` are its kinds of warps, and where few have states `chunk_readers.py`, which shares `chunk_products.py`
with these; `chunk_marks.py` keeps states for training. `segments.py` runs parts of
the time at once, where there are few states. `lane_sums.py` adds up over a warp.

A `Pair` (`pair.py`) of a matrix and its gradient in: they are made again between the states that were kept;
`part_layout.py` says what is multiplied with what, `part_place.py` which part a block has, `part_operands.py` brings
what its steps read. Where heads decay as one, by `parts_again.py`, all steps of a part at once on tensor cores
(`parts_layout.py`: shared memory, `part_vectors.py`: vectors as products read them, `part_scores.py`: products of two
steps, `part_decays.py`: their weights); else by `blocks_again.py` from block to block of 16 steps (`blocks_layout.py`,
`block_borders.py`: the matrices, `block_products.py`: products, `block_keys.py`: sums of a key within a block), or by
`steps_again.py`.

Groups of kind "scan" in, kernels over chunks of time out: `vector_scan.py` for vectors (`vector_group.py`: what their
kernels know; `vector_walk.py`: a block's rounds, `vector_loads.py`: what these read, `vector_effects.py`: what steps do
to states; `vector_apply.py` where a block has all steps; chunks of time that are all on the GPU at once,
`vector_at_once.py` with `kept_operands.py`, and chunks that are read once, `vector_once.py`, whose blocks hand numbers
on by `published.py`); `matrix_scan.py` for matrices and `matrix_again.py` for those made again, which have
those of above launched.
"""

"""Predicted times, and the choices that rest on them.

In: a step's phases, a batch size, a GPU. Out: which kernel runs a layer, in which geometry. `choose_regime.py` asks
`choose_geometry.py`, which asks every template (`template_base.py`), and `batch_ladder.py` for more batch sizes where
nobody named any; `persistent_step_time.py` and `launched_step_time.py` predict, `tile_time.py` of a product in tiles of
some shape, `start_time.py` from how many steps on a persistent kernel is the quicker of the two, `few_steps.py` up to
how many a call is calls of one step, `wave_time.py` up to how many all layers are one launch;
`choose_backward_lanes.py` is for layers of backward side by side.
"""

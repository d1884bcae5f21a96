"""What is around a model's networks, compiled: regions of a program as lists of calls.

In: a program (`network/program.py`), when it is compiled. Out: its steps, where what lies together is one
`Graph` of calls. Steps become ONNX nodes of one operator set (`nodes.py`); types and sizes are inferred (`types.py`);
`regions.py` says what is one function. TVM's Relax reads it (`importer.py`; `graph_node.py` has a node's operands,
`forms.py`, `elements.py`, `normalised.py`, `quantised.py`, `transposed.py`, `resize.py`, `slices.py`, `scatter.py`,
`order.py`, `cumulative.py` and `extrema.py` what we read otherwise, `sizes.py` numbers that follow from sizes) and
makes loops of it (`calls.py`), on floats as IEEE has them (`ieee.py`); `demands.py` says what must be true of sizes
when a model runs. Of a `Graph` a back end makes functions (`cpu/surroundings/`, `cuda/surroundings/`): `loops.py` has
its calls without blocks, `nest.py` reads their loops, `memory.py` says where values lie, `held_sizes.py` names sizes
that callers decide. Nothing of Relax is left at run time. What is known before that is computed by onnx's own reference
(`evaluation.py`).
"""

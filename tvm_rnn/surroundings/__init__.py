"""What is around a model's networks, compiled: regions of a program as lists of calls.

In: a program (`network/program.py`), when it is compiled for a CPU. Out: its steps, where what lies together is one
`Graph` of calls. Steps become ONNX nodes of one operator set (`nodes.py`); types and sizes are inferred (`types.py`);
`regions.py` says what is one function, `fit.py` what has to be looked at when a model runs; TVM's Relax makes loops of
it (`calls.py`), and `demands.py` says what must be true of the sizes. Of a `Graph` a back end makes functions
(`cpu/surroundings/`). Nothing of Relax is left at run time.
"""

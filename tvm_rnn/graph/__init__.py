"""The intermediate representation: a graph of typed operations per layer.

In: operations. Out: `Graph` and `Node` (`graph.py`). `ops.py` is the table of operations: shape, NumPy meaning, scalar
expression, gradient (`gradients.py`), recurrences over all time (`recurrences.py`); `scalar.py`, `scalar_short.py` and
`scalar_cuda.py` are its scalar expressions for TVM; `flops.py` says what a node costs; `batched.py` adds an axis to all
values; `tensor_expressions.py`, `graph_text.py`, `node_text.py` and `equations.py` show graphs as tensor expressions,
text, words and mathematics.
"""

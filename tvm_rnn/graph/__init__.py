"""The intermediate representation: a graph of typed operations per layer.

In: operations. Out: `Graph` and `Node` (`graph.py`). `ops.py` is the table of operations: shape, NumPy meaning, scalar
expression, gradient (`gradients.py`); `scalar.py` and `scalar_cuda.py` are its scalar expressions for TVM;
`tensor_expressions.py` shows nodes as tensor expressions, `node_text.py` as words.
"""

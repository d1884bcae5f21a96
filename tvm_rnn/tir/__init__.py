"""What CPU and GPU code share of TVM's IR.

In: Python numbers and expressions. Out: types for the checker (`expr.py`), wide indices (`index.py`), loops and
conditions (`statements.py`).
"""

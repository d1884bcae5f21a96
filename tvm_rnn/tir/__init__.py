"""What CPU and GPU code share of TVM's IR: `expr.py` has its types, `statements.py` makes loops and conditions."""

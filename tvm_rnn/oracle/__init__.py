"""What results must be: NumPy in float64, and how far from it they may lie.

In: a network and inputs. Out: outputs, states, gradients, masks of one call (`reference.py`; what is around networks
and no row of ours is the onnx package's, `standard_operations.py`), the table of tolerances (`tolerance.py`), and a
graph run by torch (`torch_graph.py`), for GPUs.
"""

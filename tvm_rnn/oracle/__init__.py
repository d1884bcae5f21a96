"""What results must be: NumPy in float64, and how far from it they may lie.

In: a network and inputs. Out: outputs, states, gradients, masks of one call (`reference.py`; what is around networks
is the onnx package's, `surroundings/evaluation.py`), the table of tolerances (`tolerance.py`), and a
graph run by torch (`torch_graph.py`), for GPUs.
"""

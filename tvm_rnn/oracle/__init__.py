"""What results must be: NumPy in float64, and how far from it they may lie.

In: a network and inputs. Out: outputs, states, gradients, masks of one call (`reference.py`), the
table of tolerances (`tolerance.py`), and a graph run by torch (`torch_graph.py`), for GPUs.
"""

"""Spiking neurons alone, for benchmarks: what libraries' kernels of them take and give, without products of inputs.

In: nothing. Out: `CELLS` by name, which points of suites name as they name those of the zoo.
"""

from tvm_rnn.language.cell import cell
from tvm_rnn.language.functions import atan_spike

TAU, THRESHOLD = 2.0, 0.25  # of inputs between -1 and 1 a fifth of all steps has a spike


@cell(states="v", output="s")
def lif_neuron(x: "H", v: "H"):
    """A leaky integrate-and-fire neuron; a spike sets its voltage to 0, and has the gradient of an arc tangent.

    u = v + (x - v) / 2
    s = 1 where u >= 0.25, else 0
    v' = (1 - s) u
    """
    v = v + (x - v) / TAU
    s = 1.0 - atan_spike(THRESHOLD - v)  # also at the threshold itself, as libraries have it
    return (1.0 - s) * v, s


CELLS = {own.name: own for own in (lif_neuron,)}

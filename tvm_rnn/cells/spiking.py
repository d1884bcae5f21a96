"""Spiking cells: leaky integrate-and-fire units, whose spikes feed back; they learn by surrogate gradients."""

from tvm_rnn import atan_spike, cell, fast_sigmoid_spike, sigmoid, triangle_spike

THRESHOLD = 1.0
LEAK = 0.95  # of the voltage in a step: a time constant of 20 steps
FADING, RAISE = 0.995, 1.8  # of the adapting threshold: a time constant of 200 steps, and what a spike adds to it


@cell(states="s v")
def lif(x: "I", s: "H", v: "H", *, W: "H I", R: "H H", b: "H"):
    """Leaky integrate-and-fire, as SuperSpike trains it (Zenke & Ganguli 2018): leak 0.95, threshold 1.

    A spike s takes the threshold off the voltage v. Its gradient is that of a fast sigmoid.

        v' = 0.95 v - s + W x + R s + b
        s' = 1 where v' > 1, else 0
    """
    v = LEAK * v - THRESHOLD * s + W @ x + R @ s + b
    return fast_sigmoid_spike(v - THRESHOLD, 10.0), v


@cell(states="s v a")
def alif(x: "I", s: "H", v: "H", a: "H", *, W: "H I", R: "H H", b: "H"):
    """Adaptive LIF, the unit of LSNNs (Bellec, Salaj, Subramoney, Legenstein & Maass 2018).

    Leak 0.95, fading r = 0.995; a spike raises the threshold 1 by 1.8 (1 - r), and its gradient is a triangle.

        a' = r a + (1 - r) s
        v' = 0.95 v - (1 + 1.8 a) s + W x + R s + b
        s' = 1 where v' > 1 + 1.8 a', else 0
    """
    later = FADING * a + (1 - FADING) * s
    v = LEAK * v - (THRESHOLD + RAISE * a) * s + W @ x + R @ s + b
    return triangle_spike(v - (THRESHOLD + RAISE * later)), v, later


@cell(states="s v")
def plif(x: "I", s: "H", v: "H", *, W: "H I", R: "H H", b: "H", w: ""):
    """Parametric LIF (Fang, Yu, Chen, Masquelier, Huang & Tian 2021): all units of a layer learn one time constant.

    A spike sets the voltage to 0. Its gradient is that of an arc tangent.

        u = (1 - s) v
        v' = u + sigmoid(w) (W x + R s + b - u)
        s' = 1 where v' > 1, else 0
    """
    u = (1 - s) * v
    v = u + sigmoid(w) * (W @ x + R @ s + b - u)
    return atan_spike(v - THRESHOLD), v

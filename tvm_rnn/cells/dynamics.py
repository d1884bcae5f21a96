"""Cells that are one step of a solver of a differential equation: antisymmetric, oscillating, of two time scales."""

from tvm_rnn import cell, sigmoid, tanh

EPSILON, GAMMA = 0.01, 0.01  # step and diffusion of AntisymmetricRNN: values among those that its paper tries
STEP, FREQUENCY, FRICTION = 0.05, 1.7, 4.0  # of coRNN: inside the ranges that its paper searches


@cell
def antisymmetric(x: "I", h: "H", *, W: "H I", R: "H H", b: "H"):
    """AntisymmetricRNN (Chang, Chen, Haber & Chi 2019), with step e = 0.01 and diffusion g = 0.01.

    h' = h + e tanh((R - R^T - g I) h + W x + b)
    """
    return h + EPSILON * tanh((R - R.T) @ h - GAMMA * h + W @ x + b)


@cell
def antisymmetric_gated(x: "I", h: "H", *, W: "2 H I", R: "H H", b: "2 H"):
    """AntisymmetricRNN with gating (Chang, Chen, Haber & Chi 2019), with step e = 0.01, diffusion g = 0.01.

    Order z n; the gate and the candidate share the recurrent matrix.

        a = (R - R^T - g I) h
        z = sigmoid(a + W_z x + b_z)
        h' = h + e z tanh(a + W_n x + b_n)
    """
    a = (R - R.T) @ h - GAMMA * h
    z, n = W @ x + b
    return h + EPSILON * sigmoid(a + z) * tanh(a + n)


@cell(states="y z")
def cornn(x: "I", y: "H", z: "H", *, W: "H I", R_y: "H H", R_z: "H H", b: "H"):
    """Coupled oscillatory network, coRNN (Rusch & Mishra 2021, explicit in the friction).

    Step d = 0.05, frequency g = 1.7, friction e = 4. The position y is the output, z is its velocity.

        z' = z + d (tanh(R_y y + R_z z + W x + b) - g y - e z)
        y' = y + d z'
    """
    z = z + STEP * (tanh(R_y @ y + R_z @ z + W @ x + b) - FREQUENCY * y - FRICTION * z)
    return y + STEP * z, z


@cell(states="y z")
def lem(x: "I", y: "H", z: "H", *, W: "4 H I", R: "3 H H", V: "H H", b: "4 H"):
    """Long expressive memory (Rusch, Mishra, Erichson & Mahoney 2022), with step 1. Order 1 2 z y.

    R_1, R_2 and R_z read y; V reads the new z, so the step has two products one after the other.

        d1 = sigmoid(W_1 x + R_1 y + b_1),  d2 = sigmoid(W_2 x + R_2 y + b_2)
        z' = (1 - d1) z + d1 tanh(W_z x + R_z y + b_z)
        y' = (1 - d2) y + d2 tanh(W_y x + V z' + b_y)
    """
    a = W @ x + b
    d1, d2, n = a[:3] + R @ y
    d1, d2 = sigmoid(d1), sigmoid(d2)
    z = (1 - d1) * z + d1 * tanh(n)
    return (1 - d2) * y + d2 * tanh(a[3] + V @ z), z

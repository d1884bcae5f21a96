"""ONNX's recurrent operators as cells: one of the zoo where that has the equations, else one that is made for them.

In: a `Form`, what a node's attributes say. Out: a `Cell`; and for a cell the Form that it was made of, to go back.

Where the standard leaves something open we do as ONNX Runtime: `clip` holds what the gates' functions read, not the
memory that h reads; with `input_forget` the forget gate is 1 - i and the rest of its weights is not looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from tvm_rnn.language import functions as f
from tvm_rnn.language.cell import Cell
from tvm_rnn.language.trace import Value

from .. import cells
from .built_cells import Values, build_recurrent

GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
STATES = {"RNN": ("h",), "LSTM": ("h", "c"), "GRU": ("h",)}


@dataclass(frozen=True)
class Activation:
    """One of ONNX's activation functions with its parameters; those that it has not are 0."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    def __call__(self, x: Value) -> Value:
        return FUNCTIONS[self.name](x, self.alpha, self.beta)

    def __str__(self) -> str:
        given = [f"{v:g}" for v in (self.alpha, self.beta)][: len(PARAMETERS.get(self.name, ()))]
        return f"{self.name}({', '.join(['x', *given])})"


FUNCTIONS: dict[str, Callable[[Value, float, float], Value]] = {
    "Relu": lambda x, a, b: f.relu(x),
    "Tanh": lambda x, a, b: f.tanh(x),
    "Sigmoid": lambda x, a, b: f.sigmoid(x),
    "Affine": lambda x, a, b: a * x + b,
    "LeakyRelu": lambda x, a, b: f.where(x >= 0.0, x, a * x),
    "ThresholdedRelu": lambda x, a, b: f.where(x >= a, x, 0.0 * x),
    "ScaledTanh": lambda x, a, b: a * f.tanh(b * x),
    "HardSigmoid": lambda x, a, b: f.clip(a * x + b, 0.0, 1.0),
    "Elu": lambda x, a, b: f.elu(x, a),
    "Softsign": lambda x, a, b: f.softsign(x),
    "Softplus": lambda x, a, b: f.softplus(x),
}
# Which of alpha and beta a function reads, with the standard's value where a node gives none. The standard has none for
# Affine and ScaledTanh, and runtimes differ in what they take: these must be given.
PARAMETERS: dict[str, tuple[float | None, ...]] = {
    "Affine": (None, None),
    "LeakyRelu": (0.01,),
    "ThresholdedRelu": (1.0,),
    "ScaledTanh": (None, None),
    "HardSigmoid": (0.2, 0.5),
    "Elu": (1.0,),
}
DEFAULTS = {
    "RNN": (Activation("Tanh"),),
    "LSTM": (Activation("Sigmoid"), Activation("Tanh"), Activation("Tanh")),
    "GRU": (Activation("Sigmoid"), Activation("Tanh")),
}


@dataclass(frozen=True)
class Form:
    """What decides a node's equations. activations: one tuple, or two where the directions differ in them.

    reset_after: `linear_before_reset` of a GRU. peepholes: whether an LSTM has the input P. quantised: an LSTM's
    products are of bytes. shifted: their weights have zero points.
    """

    kind: str
    activations: tuple[tuple[Activation, ...], ...] = ()
    clip: float | None = None
    input_forget: bool = False
    reset_after: bool = False
    peepholes: bool = False
    quantised: bool = False
    shifted: bool = False

    def __post_init__(self) -> None:
        own = self.activations or (DEFAULTS[self.kind],)
        object.__setattr__(self, "activations", own[:1] if len({*own}) == 1 else own)


def standard(form: Form) -> Cell | None:
    """The zoo's cell with exactly these equations, if there is one."""
    plain = Form(form.kind, clip=form.clip, input_forget=form.input_forget)
    if form.clip is not None or form.input_forget or form.quantised:
        return None
    if form.kind == "RNN" and len(form.activations) == 1:
        return {"Tanh": cells.elman, "Relu": cells.elman_relu}.get(form.activations[0][0].name)
    if form.activations != plain.activations:
        return None
    if form.kind == "GRU":
        return cells.gru if form.reset_after else cells.gru_reset_before
    return cells.lstm_peephole if form.peepholes else cells.lstm


@functools.cache
def cell_of(form: Form) -> Cell:
    """The cell with the equations of that form: the zoo's, or a new one; always the same for the same form."""
    found = standard(form)
    if found is not None:
        return found
    made = build_recurrent(
        f"onnx_{form.kind.lower()}",
        doc_of(form),
        form.kind,
        functools.partial(_apply, form),
        reset_after=form.reset_after,
        input_forget=form.input_forget,
        peepholes=form.peepholes,
        products=functools.partial(products_of_bytes, form.shifted) if form.quantised else None,
        more=_more(form),
    )
    _forms[made] = form
    return made


def _more(form: Form) -> dict[str, str]:
    """Parameters besides the usual ones, with their dims."""
    found = {"backward": ""} if len(form.activations) > 1 else {}
    ends = (*["scale"] * form.quantised, *["zero"] * form.shifted)
    return found | {f"{name}_{end}": "4 H" for end in ends for name in "WR"}


_forms: dict[Cell, Form] = {}


def form_of(cell: Cell) -> Form | None:
    """The form of a cell: of the zoo's that ONNX has, and of those that `cell_of` made, whose weights are ONNX's; None
    of others."""
    zoo = {
        cells.elman: Form("RNN"),
        cells.elman_relu: Form("RNN", ((Activation("Relu"),),)),
        cells.lstm: Form("LSTM"),
        cells.lstm_peephole: Form("LSTM", peepholes=True),
        cells.gru: Form("GRU", reset_after=True),
        cells.gru_reset_before: Form("GRU"),
    }
    found = _forms.get(cell)
    return zoo.get(cell) or (None if found is not None and found.quantised else found)


def doc_of(form: Form) -> str:
    """One line that says what is special about a cell."""
    special = [" | ".join(", ".join(map(str, own)) for own in form.activations)]
    special += [f"clip {form.clip:g}"] if form.clip is not None else []
    special += [
        word for word in ("input_forget", "reset_after", "peepholes", "quantised", "shifted") if getattr(form, word)
    ]
    return f"{form.kind} of ONNX with {', '.join(special)}."


def products_of_bytes(shifted: bool, v: Values) -> Value:
    """W @ x + R @ h, [4, H], where W and R are whole numbers of a byte, with a scale for each row (and a zero point, if
    shifted). x is whole numbers from 0 to 255, then their zero point and scale, for which W has zeros. h is read in
    whole numbers from 0 to 255, with a scale and a zero point of its own (as DynamicQuantizeLinear has them of a
    tensor). Sums of the products are exact."""
    x, h = v["x"], v["h"]
    low, high = f.minimum(f.min(h, keepdims=True), 0.0), f.maximum(f.max(h, keepdims=True), 0.0)
    scale = f.where(high == low, 1.0, (high - low) / 255.0)
    zero = f.round(f.clip(-low / scale, 0.0, 255.0))
    part = h / scale
    nearest = f.to_uint8(part) - f.to_uint8(-part)  # of which 255 is the largest
    of_x = _product(v, "W", f.to_uint8(x), x[-2], x[-1], shifted)
    return of_x + _product(v, "R", f.to_uint8(nearest + zero), zero, scale, shifted)


def _product(v: Values, name: str, levels: Value, zero: Value, scale: Value, shifted: bool) -> Value:
    weights = f.to_int8(v[name])
    total = weights @ levels - zero * f.sum(weights, axis=-1)
    if shifted:
        own = levels[:-2] if name == "W" else levels
        total = total - v[f"{name}_zero"] * (f.sum(own, keepdims=True) - zero * float(own.shape[-1]))
    return total * (scale * v[f"{name}_scale"])


def _apply(form: Form, which: int, x: Value, values: Values) -> Value:
    """Function number `which` of the form, after the clip; where directions differ, the one of this direction."""
    held = x
    if form.clip is not None and (form.kind, which) != ("LSTM", 2):  # h reads the memory without the clip
        held = f.clip(x, -form.clip, form.clip)
    first, *second = (own[which] for own in form.activations)
    if not second or second[0] == first:
        return first(held)
    return f.where(values["backward"] > 0.5, second[0](held), first(held))

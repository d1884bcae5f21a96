"""Dims: the text of an annotation as axes, and what is refused."""

from __future__ import annotations

import pytest

from tvm_rnn.language.dims import completed, parse_dims

SIZES = {"I": 5, "H": 7, "P": 3, "depth": 2, "heads_1": 4}


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("", ()),
        ("  ", ()),
        ("1", (1,)),
        ("H", (7,)),
        ("4 H I", (4, 7, 5)),
        (" 4  H,I ", (4, 7, 5)),
        ("4H I", (28, 5)),
        ("4*H I", (28, 5)),
        ("H*4", (28,)),
        ("depth 2 H H", (2, 2, 7, 7)),
        ("I+H", (12,)),
        ("2*(I+H) P", (24, 3)),
        ("H-P", (4,)),
        ("H//2 H", (3, 7)),
        ("2H-1", (13,)),
        ("heads_1 H//heads_1", (4, 1)),
    ],
)
def test_shape(text: str, shape: tuple[int, ...]) -> None:
    dims = parse_dims(text)
    assert dims.shape(SIZES) == shape
    assert dims.text == text and len(dims.axes) == len(shape)


@pytest.mark.parametrize(
    ("text", "sizes", "shape"),
    [
        ("N? H", {}, (7,)),
        ("N? H", {"N": 4}, (4, 7)),
        ("N?", {}, ()),
        ("2*N? H", {}, (2, 7)),
        ("2N?+1 N? H", {"N": 4}, (9, 4, 7)),
        ("N?*M? N? M?", {"M": 3}, (3, 3)),
    ],
)
def test_an_axis_that_may_be_absent(text: str, sizes: dict[str, int], shape: tuple[int, ...]) -> None:
    dims = parse_dims(text)
    assert dims.shape({**SIZES, **sizes}) == shape
    assert len(dims.present({**SIZES, **sizes}).labels) == len(shape)


def test_an_axis_with_a_default() -> None:
    dims = parse_dims("K=H L=2*K M=1")
    assert dims.names == ("K", "L", "M", "H") and dims.labels == ("K", "L", "M")
    assert completed({"H": 3}, dims.defaults) == {"H": 3, "K": 3, "L": 6, "M": 1}
    assert completed({"H": 3, "K": 4, "M": 2}, dims.defaults) == {"H": 3, "K": 4, "L": 8, "M": 2}
    assert completed({}, dims.defaults) == {"M": 1}
    with pytest.raises(KeyError):
        parse_dims("N H").shape({"H": 3})


def test_names_are_in_order_of_appearance_and_once() -> None:
    assert parse_dims("4 H I+H depth").names == ("H", "I", "depth")
    assert parse_dims("4 2").names == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("T", r"axis T \(steps\) is implicit"),
        ("B H", r"axis B \(batch\) is implicit"),
        ("4 H*B", r"axis B \(batch\) is implicit"),
        ("0", "a number of at least 1"),
        ("-1", "an axis is a name, a number"),
        ("2.5", "an axis is a name, a number"),
        ("True", "an axis is a name, a number"),
        ("'H'", "an axis is a name, a number"),
        ("H/2", "an axis is a name, a number"),
        ("H**2", "an axis is a name, a number"),
        ("f(H)", "an axis is a name, a number"),
        ("H.x", "an axis is a name, a number"),
        ("H[0]", "an axis is a name, a number"),
        ("H if", "'if' is not an axis"),
        ("H + I", r"'\+' is not an axis"),
        ("(H", r"'\(H' is not an axis"),
        ("4.H", r"'4\.H' is not an axis"),
        ("H;I", "'H;I' is not an axis"),
        ("T?", r"axis T \(steps\) is implicit"),
        ("?", r"'\?' is not an axis"),
        ("4?", r"'4\?' is not an axis"),
        ("H??", r"'H\?\?' is not an axis"),
        ("B=3", r"axis B \(batch\) is implicit"),
        ("K=0", "a number of at least 1"),
        ("K=", "'K=' is not an axis"),
        ("K=H?", r"'K=H\?' is not an axis"),
        ("2=K", "'2=K' is not an axis"),
    ],
)
def test_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_dims(text)

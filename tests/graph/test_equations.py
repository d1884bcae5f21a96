"""equations: a cell as mathematics, well-formed, with every state defined."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

import tvm_rnn as rnn
from tvm_rnn import cell, where
from tvm_rnn.graph.equations import equations, math

EXTRA = {"P": 3, "depth": 2, "Y": 3, "X": 4, "S": 4, "A": 2}


def rows(c: rnn.Cell) -> list[tuple[str, str]]:
    sizes = {axis: size for axis, size in {**EXTRA, "H": 8}.items() if axis in c.size_names}
    return equations(rnn.RNN(c, 8, **sizes).layers[0].graph)


def plain(row: str) -> str:
    """The text, without the elements."""
    named = {"&minus;": "-", "&sigma;": "sigma", "&InvisibleTimes;": " ", "&#8857;": "*", "&ApplyFunction;": ""}
    text = re.sub(r"<[^>]*>", "", row)
    for entity, sign in named.items():
        text = text.replace(entity, sign)
    return text


@pytest.mark.parametrize("name", rnn.cells.names())
def test_every_cell_is_well_formed_and_defines_its_states(name: str) -> None:
    c = rnn.cells.get(name)
    found = rows(c)
    for _, row in found:
        ElementTree.fromstring(re.sub(r"&\w+;", "", math(row)))
    assert {s.name for s in c.states} <= {label for label, _ in found}


def test_an_lstm_reads_as_in_the_papers() -> None:
    texts = [plain(row) for _, row in rows(rnn.cells.lstm)]
    assert texts == [
        "(i,f,g,o)=W xt+R ht-1+b",
        "ct=sigma(f)*ct-1+sigma(i)*tanh(g)",
        "ht=sigma(o)*tanh(ct)",
    ]


def test_parts_of_a_parameter_have_names_too() -> None:
    texts = [plain(row) for _, row in rows(rnn.cells.lstm_peephole)]
    assert "(pi,pf,po)=p" in texts and "ht=sigma(o+po*ct)*tanh(ct)" in texts


def test_parts_that_are_picked_one_by_one_have_their_numbers() -> None:
    @cell(states="h")
    def picked(x: "H", h: "H", *, a: "2 H"):
        z = a * x
        f, g = z[1], z[0]
        return f * h + g

    assert plain(rows(picked)[-1][1]) == "ht=z1[1]*ht-1+z1[0]"


def test_a_head_reads_as_a_matrix_and_vectors() -> None:
    graph = rnn.RNN(rnn.cells.gated_delta_net, 8, 8, N=2).layers[0].graph
    texts = [plain(row) for _, row in equations(graph)]
    assert texts[0] == "(b,decay)=w xt" and texts[-1].startswith("yt=St q")
    assert any("k&#8868; k+10-6" in text for text in texts)  # of powers only the digits are left
    assert not any("wk" in text or "e-06" in text for text in texts)


def test_parentheses_stand_where_they_are_needed() -> None:
    @cell(states="h")
    def odd(x: "H", h: "H", *, a: "H"):
        return where(x < 0, (x - (h - a)) * (a + h) / -x, -(x + h))

    ((_, row),) = rows(odd)
    text = plain(row)
    assert "(xt-(ht-1-a))*(a+ht-1)" in text and "-(xt+ht-1)" in text and "xt&lt;0" in text

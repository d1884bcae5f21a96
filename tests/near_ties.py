"""Texts beside the oracle's: a token may be another only where the oracle's two scores nearly tie.

In: the oracle, tokens of compiled code and the oracle's. Out: how many steps of each row agree; an AssertionError where
a row leaves the oracle's text without a tie. What a row writes behind its tie is another text, and is not compared.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np

from tvm_rnn.graph.graph import Graph, Node
from tvm_rnn.oracle.reference import Draws, Reference
from tvm_rnn.oracle.tolerance import tolerance


def steps_that_agree(
    reference: Reference, prompt: np.ndarray, tokens: np.ndarray, expected: np.ndarray, seed: int | None = None
) -> np.ndarray:
    """Of each row the steps in which `tokens` are `expected` [steps, B]; all of them where no row parts.

    A row may part where the oracle's scores of the two tokens are as near as the table of tolerances lets results be.
    prompt [P, B], seed: those of the call to `generate`."""
    differ = tokens != expected
    agree = np.where(differ.any(0), differ.argmax(0), len(expected))
    parted = np.flatnonzero(agree < len(expected))
    if not parted.size:
        return agree
    limit = tolerance("float32", len(expected))
    scores = _scores(reference, prompt, expected[: agree[parted].max()], seed)
    for row in parted:
        own = scores[len(prompt) - 1 + agree[row], row]
        ours, theirs = (int(text[agree[row], row]) for text in (tokens, expected))
        gap = abs(own[ours] - own[theirs]) / max(1.0, np.abs(own).max())
        where = f"row {row} at step {agree[row]} writes {ours}, the oracle {theirs}"
        assert gap <= limit, f"{where}; their scores are {gap:.2g} apart, at most {limit:.2g} is a tie"
    return agree


def _scores(reference: Reference, prompt: np.ndarray, text: np.ndarray, seed: int | None) -> np.ndarray:
    """What the last layer takes the largest of, [steps, B, V], where the network is given the prompt and a text."""
    own, last = copy.copy(reference), len(reference.graphs) - 1
    own.draws = None if seed is None else Draws(seed)
    graphs = [_scoring(g) if number == last else g for number, g in enumerate(reference.graphs)]
    x = np.concatenate([prompt, text])[..., None].astype(np.float64)
    batch = x.shape[1]
    ends = np.full(batch, len(x)), np.zeros(x.shape[:2], bool)
    return own._run(graphs, [x], own._states(own.net._first_states(batch), batch), ends)[0]


def _scoring(graph: Graph) -> Graph:
    """A graph that ends before its argmax: the places where scores equal their maximum."""

    def largest(node: Node) -> bool:
        return node.op == "equal" and node.args[1].op == "max" and node.args[1].args[0] is node.args[0]

    (found,) = (node for node in graph.nodes() if largest(node))
    return replace(graph, output=found.args[0])

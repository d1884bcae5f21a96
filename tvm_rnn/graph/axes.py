"""The axes of a reduction: which ones go, and along which one vectors run.

In: a node of kind reduce or contract. Out: letters and sizes; whether vectors run along a reduced axis.
"""

from __future__ import annotations

from .graph import Node


def reduced_axes(node: Node) -> list[tuple[str, int]]:
    """The axes that a sum, max or einsum node reduces, in order: (letter, size)."""
    if node.op != "einsum":
        return [("k", node.args[0].shape[node.attrs["axis"]])]
    inputs, out = node.attrs["spec"].split("->")
    shapes = zip(inputs.split(","), (a.shape for a in node.args), strict=True)
    sizes = {t: s for text, shape in shapes for t, s in zip(text, shape, strict=True)}
    return [(t, s) for t, s in sizes.items() if t not in out]


def runs_along(root: Node) -> bool:
    """Whether the reduction's vectors run along the reduced axis (else along the result's last axis)."""
    if not root.shape:
        return True
    if root.op != "einsum":
        return bool(root.attrs["axis"] == -1)
    inputs, out = root.attrs["spec"].split("->")
    last = out[-1]
    return not all(last not in text or text[-1] == last for text in inputs.split(","))

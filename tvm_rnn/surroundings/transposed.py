"""ConvTranspose of which the file says how large its result is, not how much of it is cut off.

In: a node. Out: None: TVM's own form does, of the attributes that this leaves.

Rewrite: output_shape  -->  pads, of stride * (size - 1) + dilation * (kernel - 1) + 1 + output_padding - output_shape
"""

from __future__ import annotations

from .graph_node import Item, Node


def transposed(node: Node) -> Item:
    """Set the pads that come to the shape. Raises ValueError where sizes that only a run shows decide them."""
    own, asked = node.attributes, node.attributes.pop("output_shape", None)
    if asked is None:
        return None
    sizes, kernel = (node.shape(value)[2:] for value in node.inputs[:2])
    if not all(isinstance(n, int) for n in (*sizes, *kernel)):
        raise ValueError("output_shape of sizes that only a run shows")
    upper, count = own.pop("auto_pad", b"NOTSET") == b"SAME_UPPER", len(sizes)
    strides, dilations = (own.get(name, [1] * count) for name in ("strides", "dilations"))
    more = [*own.get("output_padding", [0] * count)]
    before, behind = list[int](), list[int]()
    for i, (size, taps, wanted) in enumerate(zip(sizes, kernel, [*asked][-count:], strict=True)):
        over = strides[i] * (size - 1) + dilations[i] * (taps - 1) + 1 + more[i] - wanted
        more[i] += max(-over, 0)
        half, over = max(over, 0) // 2, max(over, 0)
        before.append(half if upper else over - half)
        behind.append(over - before[-1])
    own |= {"pads": [*before, *behind], "output_padding": more}
    return None

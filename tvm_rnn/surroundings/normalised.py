"""Normalisations whose form TVM's importer of ONNX has not, or reads otherwise than the standard says.

In: a node. Out: its value, several in a list, or None where TVM's own form does.
"""

from __future__ import annotations

from tvm import relax

from .graph_node import Item, Node


def by_norm(node: Node) -> Item:
    """Elements by their norm along an axis; where all of them are 0 they stay so."""
    op, normal, x = relax.op, node.bb.normalize, node.asked.array(node.inputs[0])
    power = int(node.attributes.get("p", 2))
    axis = [int(node.attributes.get("axis", -1))]
    if power not in (1, 2):
        raise ValueError(f"norm {power}")
    total = normal(op.sum(normal(op.abs(x) if power == 1 else op.multiply(x, x)), axis, keepdims=True))
    norm = total if power == 1 else normal(op.sqrt(total))
    nothing = normal(op.equal(norm, relax.const(0.0, str(x.ty.dtype))))
    return op.divide(x, normal(op.where(nothing, relax.const(1.0, str(x.ty.dtype)), norm)))


def of_layers(node: Node) -> Item:
    """With its mean and deviation, where these are asked for."""
    if node.attributes["tvm_custom"]["num_outputs"] < 2:
        return None
    op, normal = relax.op, node.bb.normalize
    x, scale, bias = (node.inputs[i] for i in range(3))
    rank, axis, kind = len(node.shape(x)), int(node.attributes.get("axis", -1)), str(x.ty.dtype)
    axes = [*range(axis % rank, rank)]
    mean = normal(op.mean(x, axes, keepdims=True))
    apart = normal(op.subtract(x, mean))
    variance = normal(op.mean(normal(op.multiply(apart, apart)), axes, keepdims=True))
    small = relax.const(node.attributes.get("epsilon", 1e-5), kind)
    deviation = normal(op.sqrt(normal(op.add(variance, small))))
    inverse = normal(op.divide(relax.const(1.0, kind), deviation))
    y = normal(op.multiply(*node.aligned([normal(op.multiply(apart, inverse)), scale])))
    return [y if bias is None else normal(op.add(*node.aligned([y, bias]))), mean, inverse]


def by_root_of_squares(node: Node) -> Item:
    """Over all axes too: of these TVM's own form has no loops."""
    op, normal = relax.op, node.bb.normalize
    x, scale = node.inputs[:2]
    rank, kind = len(node.shape(x)), str(x.ty.dtype)
    first = int(node.attributes.get("axis", -1)) % rank
    if first:
        return None
    work = "float32" if int(node.attributes.get("stash_type", 1)) == 1 else kind
    wide = normal(op.astype(x, work))
    mean = normal(op.mean(normal(op.multiply(wide, wide)), [*range(rank)], keepdims=True))
    small = relax.const(node.attributes.get("epsilon", 1e-5), work)
    root = normal(op.sqrt(normal(op.add(mean, small))))
    return op.multiply(*node.aligned([normal(op.astype(normal(op.divide(wide, root)), kind)), scale]))

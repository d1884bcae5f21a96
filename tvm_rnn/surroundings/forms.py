"""Operators whose form TVM's importer of ONNX has not, or reads otherwise than the standard says.

In: a node. Out: its value, several in a list, or None where TVM's own form does; ValueError for what cannot be.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64, wide

from .cumulative import multiplied, summed
from .demands import text_of
from .elements import diagonal, one_hot, power, same_bits
from .extrema import of_bools, place_of_largest, place_of_smallest
from .graph_node import Item, Node, places_fit
from .nodes import DTYPES
from .normalised import by_norm, by_root_of_squares, of_layers
from .order import best
from .quantised import dequantised, quantised
from .resize import resized
from .scatter import gathered_slices, scattered_elements, scattered_slices
from .sizes import MOST_SIZES, computed, factors, simplified, sizes_of
from .slices import sliced
from .transposed import transposed

SIGNS = {"positive": math.inf, "negative": -math.inf}


def _reshape(node: Node) -> Item:
    asked, shape = node.sizes(1), node.shape(node.inputs[0])
    assert asked is not None
    zero, sizes = bool(node.attributes.get("allowzero", 0)), list[Expr]()
    kept = [i for i, n in enumerate(asked) if isinstance(n, int) and n == 0 and not zero]
    if any(i >= len(shape) for i in kept):
        raise ValueError("size 0 of an axis that is not there")
    open_at = [i for i, n in enumerate(asked) if isinstance(n, int) and n == -1]
    if len(open_at) > 1 or any(isinstance(n, int) and n < -1 for n in asked):
        raise ValueError(f"{list(asked)} is no shape")
    sizes = [shape[i] if i in kept else n for i, n in enumerate(asked)]
    if open_at:  # of an empty array too: what is kept is on both sides
        before = [n for i, n in enumerate(shape) if i not in kept]
        after = [n for i, n in enumerate(sizes) if i not in kept and i not in open_at]
        sizes[open_at[0]] = _divided(before, after)
    x = node.asked.array(node.inputs[0])
    return relax.op.reshape(x, relax.ShapeExpr([wide(n) for n in sizes]))


def _divided(before: list[Expr], after: list[Expr]) -> Expr:
    """A product over another one, without what is in both."""
    before, after = ([factor for size in sizes for factor in factors(size)] for sizes in (before, after))
    for size in [*after]:
        same = next((i for i, own in enumerate(before) if str(own) == str(size)), None)
        if same is not None:
            del before[same]
            after.remove(size)
    above, below = computed("ReduceProd", [sizes_of(before)], {}), computed("ReduceProd", [sizes_of(after)], {})
    found = computed("Div", [above, below], {})
    assert found is not None
    return found.item()


def _expand(node: Node) -> Item:
    asked, shape = node.sizes(1), node.shape(node.inputs[0])
    assert asked is not None
    rank = max(len(asked), len(shape))
    one, two = ([1] * (rank - len(own)) + [*own] for own in (shape, asked))
    whole = list[Expr]()
    for have, want in zip(one, two, strict=True):
        if isinstance(have, int) and isinstance(want, int) and 1 not in (have, want) and have != want:
            raise ValueError(f"sizes {have} and {want} do not go together")
        sizes = [n for n in dict.fromkeys((have, want)) if not (isinstance(n, int) and n == 1)]
        whole.append(node.joined(sizes))
    return node.spread(node.asked.array(node.inputs[0]), whole)


def _tile(node: Node) -> Item:
    repeats, x = node.sizes(1), node.asked.array(node.inputs[0])
    assert repeats is not None
    shape = node.shape(x)
    rank = max(len(repeats), len(shape))
    own, times = (sizes_of([1] * (rank - len(part)) + [*part]) for part in (shape, repeats))
    sizes = computed("Mul", [own, times], {})
    assert sizes is not None

    def at(source: te.Tensor) -> te.Tensor:
        def element(*index: Expr) -> Expr:
            places = zip(index[rank - len(shape) :], source.shape, strict=True)
            return source(*(tirx.truncmod(wide(i), wide(n)) for i, n in places))

        return te.compute([wide(n) for n in sizes.tolist()], element, name="tile")

    return node.bb.emit_te(at, x)


def _constant_of_shape(node: Node) -> Item:
    from onnx import numpy_helper

    sizes, value = node.sizes(0), node.attributes.get("value")
    assert sizes is not None
    number = np.zeros((), "float32") if value is None else numpy_helper.to_array(value).reshape(())
    if number.dtype == np.int64 and sizes.size == 1 and isinstance(sizes[0], int) and sizes[0] <= MOST_SIZES:
        return sizes_of([int(number)] * sizes[0])  # they may be sizes themselves
    return relax.op.full(
        relax.ShapeExpr([wide(n) for n in sizes]), relax.const(number, str(number.dtype)), str(number.dtype)
    )


def _range(node: Node) -> Item:
    if not any(isinstance(value, np.ndarray) for value in node.inputs):
        return None
    first, limit, step = (node.sizes(i) for i in range(3))
    assert first is not None and limit is not None and step is not None
    if not isinstance(step[0], int) or step[0] == 0:
        raise ValueError("a range whose step only a run shows")
    ends = first[0], limit[0]
    if all(isinstance(n, int) for n in ends) and len(found := range(*ends, step[0])) <= MOST_SIZES:
        return sizes_of([*found])  # they may be axes
    way = 1 if step[0] > 0 else -1
    distance = wide(limit[0] * way - first[0] * way)
    count = tirx.Max(tirx.floordiv(distance + int64(abs(step[0]) - 1), int64(abs(step[0]))), int64(0))
    return node.bb.emit_te(
        lambda begin: te.compute((count,), lambda i: wide(begin) + wide(i) * int64(step[0]), name="range"),
        wide(first[0]),
    )


def _gather(node: Node) -> Item:
    data, places = (node.asked.array(value) for value in node.inputs)
    places_fit(node, places, node.shape(data)[int(node.attributes.get("axis", 0))])
    node.inputs = [data, places]
    return None


def _gather_elements(node: Node) -> Item:
    """Elements at places along an axis are there; those of indices that are counted from the end, too."""
    data, places = (node.asked.array(value) for value in node.inputs)
    places_fit(node, places, node.shape(data)[int(node.attributes.get("axis", 0))])
    return None


def _is_inf(node: Node) -> Item:
    """Of one sign or of both."""
    op, x = relax.op, node.asked.array(node.inputs[0])
    signs = [sign for name, sign in SIGNS.items() if node.attributes.get(f"detect_{name}", 1)]
    found = [node.bb.normalize(op.equal(x, relax.const(sign, str(x.ty.dtype)))) for sign in signs]
    if not found:
        return op.zeros(relax.ShapeExpr([wide(n) for n in node.shape(x)]), "bool")
    return found[0] if len(found) == 1 else op.logical_or(*found)


def _mod(node: Node) -> Item:
    """Of floats, with the divisor's sign; 0 and what is divided by infinity, too."""
    if node.attributes.get("fmod", 0) or not str(node.asked.array(node.inputs[0]).ty.dtype).startswith("float"):
        return None
    op, normal = relax.op, node.bb.normalize
    x, y = node.aligned([node.asked.array(value) for value in node.inputs])
    kind = str(node.asked.array(node.inputs[0]).ty.dtype)
    zero = relax.const(0.0, kind)
    rest, below = normal(op.mod(x, y)), normal(op.less(y, zero))
    other = normal(op.logical_xor(normal(op.less(rest, zero)), below))
    moved = normal(op.where(other, normal(op.add(rest, y)), rest))
    zeros = normal(op.where(below, relax.const(-0.0, kind), zero))
    return op.where(normal(op.equal(rest, zero)), zeros, moved)


def _thresholded(node: Node) -> Item:
    """What is not above the threshold is 0: NaN is not."""
    op, normal = relax.op, node.bb.normalize
    x = node.asked.array(node.inputs[0])
    least, zero = (relax.const(value, str(x.ty.dtype)) for value in (float(node.attributes.get("alpha", 1.0)), 0.0))
    return op.where(normal(op.greater(x, least)), x, zero)


def _matmul(node: Node) -> Item:
    """Rows of matrices may have sizes of other names."""
    a, b = (node.asked.array(value) for value in node.inputs)
    shapes = [node.shape(value) for value in (a, b)]
    rank = max(map(len, shapes)) - 2
    if min(map(len, shapes)) < 2 or rank < 1:
        return None
    lead = [[*[1] * (rank + 2 - len(own)), *own[:-2]] for own in shapes]
    axes = [[n for n in dict.fromkeys(own) if not (isinstance(n, int) and n == 1)] for own in zip(*lead, strict=True)]
    if all(len({str(n) for n in own}) < 2 or all(isinstance(n, int) for n in own) for own in axes):
        return None
    whole = [node.joined(own) for own in axes]
    spread = [node.spread(value, [*whole, *own[-2:]]) for value, own in zip((a, b), shapes, strict=True)]
    return relax.op.matmul(*spread)


def _gemm(node: Node) -> Item:
    """What is added to a product may have sizes of other names."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return None
    op, normal = relax.op, node.bb.normalize
    a, b, added = (node.asked.array(value) for value in node.inputs)
    kind = str(a.ty.dtype)
    a, b = (
        normal(op.permute_dims(value, [1, 0])) if node.attributes.get(f"trans{name}", 0) else value
        for name, value in (("A", a), ("B", b))
    )
    product, added = (
        value if factor == 1 else normal(op.multiply(value, relax.const(factor, kind)))
        for value, factor in (
            (normal(op.matmul(a, b)), node.attributes.get("alpha", 1.0)),
            (added, node.attributes.get("beta", 1.0)),
        )
    )
    return op.add(*node.aligned([product, added]))


def _root_of_squares(node: Node) -> Item:
    """Of whole numbers too, of which TVM has no root."""
    x, *axes = (node.asked.array(value) for value in node.inputs if value is not None)
    kind, known = str(x.ty.dtype), node.known(axes[0]) if axes else node.attributes.get("axes")
    if kind.startswith("float") or (axes and known is None):
        return None
    chosen = [int(axis) for axis in known] if known is not None and len(known) else None
    if chosen is None and node.attributes.get("noop_with_empty_axes", 0):
        chosen = []
    op, normal = relax.op, node.bb.normalize
    squares = normal(op.multiply(x, x))
    total = normal(op.sum(squares, chosen, bool(node.attributes.get("keepdims", 1)))) if chosen != [] else squares
    return op.astype(normal(op.sqrt(normal(op.astype(total, "float64")))), kind)


def _shifted(node: Node) -> Item:
    """Of bits by as many places as there are or more, or by fewer than none, only the sign is left, of a shift to the
    right."""
    op, normal, (x, by) = relax.op, node.bb.normalize, (node.asked.array(value) for value in node.inputs)
    kind, left = str(x.ty.dtype), node.attributes["direction"] == b"LEFT"
    bits, nothing = int(tvm.DataType(kind).bits), relax.const(0, kind)
    few = normal(op.less(by, relax.const(bits, kind)))
    fits = few if kind.startswith("u") else normal(op.logical_and(few, normal(op.greater_equal(by, nothing))))
    places = normal(op.where(fits, by, relax.const(bits - 1, kind)))
    found = normal((op.left_shift if left else op.right_shift)(x, places))
    return op.where(fits, found, nothing) if left or kind.startswith("u") else found


def _concat(node: Node) -> Item:
    """What is joined has the same sizes along other axes, whatever their names."""
    arrays = [node.asked.array(value) for value in node.inputs]
    shapes = [node.shape(value) for value in arrays]
    axis = int(node.attributes["axis"]) % len(shapes[0])
    for place in range(len(shapes[0])):
        sizes = list({str(own[place]): own[place] for own in shapes}.values())
        if place == axis or len(sizes) < 2:
            continue
        known = sorted(sizes, key=lambda size: not isinstance(size, int))
        for size in known[1:]:
            fits = tirx.EQ(wide(known[0]), wide(size)) if not isinstance(size, int) else False
            node.asked.demand(fits, f"{text_of(wide(known[0]))} = {text_of(wide(size))}")
        for own in shapes:
            own[place] = known[0]
    arrays = [node.viewed(value, shape) for value, shape in zip(arrays, shapes, strict=True)]
    return relax.op.concat(arrays, axis)


def _lengths_of_mask(node: Node) -> Item:
    mask = node.inputs[0]

    def at(source: te.Tensor) -> te.Tensor:
        def element(b: Expr, t: Expr) -> Expr:
            return tirx.And(source(b, t), tirx.Not(source(b, tirx.Max(wide(t) - int64(1), int64(0)))))

        return te.compute(source.shape, element, name="gap")

    gap = node.bb.emit_te(at, mask)
    node.asked.bound(gap, int64(0), int64(1), "a mask that leaves out steps at the end of rows only")
    return relax.op.sum(relax.op.astype(mask, "int32"), 1)


def _hold_last(node: Node) -> Item:
    x, lengths = node.inputs

    def at(source: te.Tensor, counts: te.Tensor) -> te.Tensor:
        def element(b: Expr, t: Expr, *rest: Expr) -> Expr:
            last = tirx.Max(tirx.Cast("int64", counts(b)) - int64(1), int64(0))
            return source(b, tirx.Min(wide(t), last), *rest)

        return te.compute(source.shape, element, name="hold_last")

    _fits(node, lengths, x, 0, 1)
    return node.bb.emit_te(at, x, lengths)


def _reverse_sequence(node: Node) -> Item:
    x, lengths = node.inputs
    time, batch = int(node.attributes.get("time_axis", 0)), int(node.attributes.get("batch_axis", 1))

    def at(source: te.Tensor, counts: te.Tensor) -> te.Tensor:
        def element(*index: Expr) -> Expr:
            n, t = tirx.Cast("int64", counts(index[batch])), wide(index[time])
            place = tirx.Select(tirx.LT(t, n), tirx.Max(n - int64(1) - t, int64(0)), t)
            places = [*index]
            places[time] = tirx.Min(place, wide(source.shape[time]) - int64(1))
            return source(*places)

        return te.compute(source.shape, element, name="reverse_sequence")

    _fits(node, lengths, x, batch, time)
    return node.bb.emit_te(at, x, lengths)


def _fits(node: Node, lengths: relax.Expr, x: relax.Expr, batch: int, time: int) -> None:
    """Lengths are as many as rows, and none is longer than time."""
    (count,), shape = node.shape(lengths), node.shape(x)
    if isinstance(count, int) and isinstance(shape[batch], int) and count != shape[batch]:
        raise ValueError(f"{count} lengths of {shape[batch]} rows")
    node.asked.bound(lengths, int64(0), wide(shape[time]) + int64(1), "lengths of at most as many steps as there are")


def _split(node: Node) -> Item:
    parts = node.sizes(1)
    if parts is not None:
        size = node.shape(node.inputs[0])[int(node.attributes.get("axis", 0))]
        whole = sum(parts.tolist())
        fits = size == whole if isinstance(size, int) else tirx.EQ(wide(size), wide(whole))
        node.asked.demand(fits, f"{text_of(wide(size))} = {whole}")
        if 0 in (known := parts.tolist()) and all(isinstance(n, int) for n in known):
            return _parts(node, known)
    return None


def _parts(node: Node, counts: list[int]) -> Item:
    """Of so many elements each along the axis, of none too."""
    x, axis = node.asked.array(node.inputs[0]), int(node.attributes.get("axis", 0))
    ends = np.cumsum(counts)
    places = zip([0, *ends.tolist()], ends.tolist(), strict=False)
    return [node.bb.normalize(relax.op.strided_slice(x, [axis], [begin], [end])) for begin, end in places]


def _pad(node: Node) -> Item:
    """What is reflected must be there; how much is padded may follow from sizes."""
    mode = node.attributes.get("mode", b"constant")
    if mode == b"reflect":
        pads, shape = node.sizes(1), node.shape(node.inputs[0])
        if pads is None or len(pads) != 2 * len(shape) or any(node.inputs[3:4]):
            raise ValueError("what is reflected along is not known")
        for i, size in enumerate(shape):
            most = max(int(pads[i]), int(pads[i + len(shape)]), -1)
            fits = size > most if isinstance(size, int) else tirx.GT(wide(size), int64(most))
            node.asked.demand(most <= 0 or fits, f"{text_of(wide(size))} > {most}")
    if mode == b"constant" and node.known(node.inputs[1]) is not None:
        pads = node.sizes(1)
        if pads is not None and not all(isinstance(n, int) for n in pads.tolist()):
            return _padded(node, pads.tolist())
    return None


def _padded(node: Node, pads: list[Expr]) -> Item:
    """pads: before each axis, then behind each; below 0 elements are cut off."""
    data = node.asked.array(node.inputs[0])
    shape, (value, axes) = node.shape(data), [*node.inputs[2:], None, None][:2]
    known = None if axes is None else node.known(axes)
    if axes is not None and known is None:
        raise ValueError("axes that only a run shows")
    along = [*range(len(shape))] if known is None else [int(axis) % len(shape) for axis in known]
    if len(pads) != 2 * len(along):
        raise ValueError(f"{len(pads)} numbers pad {len(along)} axes")
    before, behind = ([int64(0) for _ in shape] for _ in range(2))
    for axis, low, high in zip(along, pads[: len(along)], pads[len(along) :], strict=True):
        before[axis], behind[axis] = wide(low), wide(high)
    extents = [simplified(a + wide(n) + b) for a, n, b in zip(before, shape, behind, strict=True)]
    for extent in extents:
        node.asked.demand(tirx.GE(extent, int64(0)), f"{text_of(extent)} >= 0")
    kind = str(data.ty.dtype)
    filler = relax.const(np.zeros((), kind), kind) if value is None else node.asked.array(value)

    def at(source: te.Tensor, number: te.Tensor) -> te.Tensor:
        def element(*index: Expr) -> Expr:
            places = [wide(i) - a for i, a in zip(index, before, strict=True)]
            inside = [tirx.And(p >= int64(0), p < wide(n)) for p, n in zip(places, source.shape, strict=True)]
            return tirx.if_then_else(tirx.all(*inside), source(*places), number(*[int64(0)] * len(number.shape)))

        return te.compute(extents, element, name="pad")

    return node.bb.emit_te(at, data, filler)


def _dropout(node: Node) -> Item:
    x = node.asked.array(node.inputs[0])
    shape = relax.ShapeExpr([wide(n) for n in node.shape(x)])
    return [x, node.bb.normalize(relax.op.full(shape, relax.const(True), "bool"))]


def _dynamically_quantised(node: Node) -> Item:
    """The scale of zeros is 1, where the standard divides by 0: ONNX Runtime's rule."""
    op, normal, (x,) = relax.op, node.bb.normalize, node.inputs[:1]
    zero, one, levels = (relax.const(value, "float32") for value in (0.0, 1.0, 255.0))
    low, high = normal(op.minimum(zero, normal(op.min(x)))), normal(op.maximum(zero, normal(op.max(x))))
    scale = normal(op.divide(normal(op.subtract(high, low)), levels))
    scale = normal(op.where(normal(op.equal(scale, zero)), one, scale))
    begin = normal(op.clip(normal(op.subtract(zero, normal(op.divide(low, scale)))), 0, 255))
    begin = normal(op.round(begin))
    # In pointwise operators: around Relax's own one, channels could not come last.
    level = normal(op.add(normal(op.round(normal(op.divide(x, scale)))), begin))
    levels = normal(op.astype(normal(op.clip(level, 0, 255)), "uint8"))
    return [levels, scale, normal(op.astype(begin, "uint8"))]


def _squeeze(node: Node) -> Item:
    """Of all axes of one element. Those whose sizes only a run shows have another number, which is looked at."""
    if any(value is not None for value in node.inputs[1:]) or node.attributes.get("axes") is not None:
        return None
    x = node.asked.array(node.inputs[0])
    shape = node.shape(x)
    for size in shape:
        if not isinstance(size, int):
            node.asked.demand(tirx.NE(wide(size), int64(1)), f"{text_of(wide(size))} other than 1")
    axes = [i for i, size in enumerate(shape) if isinstance(size, int) and size == 1]
    return relax.op.squeeze(x, axes) if axes else x


def _cast(node: Node) -> Item:
    """Of floats to whole numbers: the nearest one that there is. Of what does not fit the standard says nothing; TVM
    takes it modulo the range, which no CPU has vectors for."""
    kind, x = DTYPES.get(int(node.attributes["to"])), node.inputs[0]
    if isinstance(x, np.ndarray) or str(x.ty.dtype) != "float32" or kind not in ("int32", "int64"):
        return None
    end = np.float32(2.0 ** (31 if kind == "int32" else 63))
    within = node.bb.normalize(relax.op.clip(x, -float(end), float(np.nextafter(end, np.float32(0)))))
    return relax.op.astype(within, kind)


FORMS: dict[str, Callable[[Node], Item]] = {
    "Reshape": _reshape,
    "Expand": _expand,
    "Tile": _tile,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "IsInf": _is_inf,
    "Mod": _mod,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "ThresholdedRelu": _thresholded,
    "ReduceL2": _root_of_squares,
    "Concat": _concat,
    "LengthsOfMask": _lengths_of_mask,
    "HoldLast": _hold_last,
    "ReverseSequence": _reverse_sequence,
    "Split": _split,
    "Pad": _pad,
    "Dropout": _dropout,
    "LayerNormalization": of_layers,
    "RMSNormalization": by_root_of_squares,
    "QuantizeLinear": quantised,
    "DequantizeLinear": dequantised,
    "DynamicQuantizeLinear": _dynamically_quantised,
    "Cast": _cast,
    "Resize": resized,
    "Slice": sliced,
    "Pow": power,
    "OneHot": one_hot,
    "EyeLike": diagonal,
    "BitCast": same_bits,
    "ConvTranspose": transposed,
    "ReduceMax": of_bools,
    "ReduceMin": of_bools,
    "ArgMax": place_of_largest,
    "ArgMin": place_of_smallest,
    "Squeeze": _squeeze,
    "ScatterElements": scattered_elements,
    "ScatterND": scattered_slices,
    "TopK": best,
    "CumSum": summed,
    "CumProd": multiplied,
    "GatherND": gathered_slices,
    "LpNormalization": by_norm,
    "BitShift": _shifted,
}

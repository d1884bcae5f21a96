"""Requests for weights that a product will read soon: where they come from memory, the next ones are on their way.

In: a tile's product as loops, from `register_tile.py`. Out: the same loops, with requests in front of each step of K.

Rewrite: for k: acc += a[k] * w[k]  -->  for k: prefetch w[k + ahead]; acc += a[k] * w[k]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import tirx

from .workspace import int64

if TYPE_CHECKING:
    from .register_tile import Tile

CACHE_LINE = 64  # bytes
READ, EVERY_LEVEL, DATA = (tirx.IntImm("int32", value) for value in (0, 3, 1))


def with_requests(tile: Tile, product: Any, ahead: int) -> Any:
    """The product of a tile, which asks for the weights of the k that comes `ahead` vectors of all gates later.

    What it asks for past the end is the next panel's, or nobody's, which does no harm.
    """
    root, buffers = tile.group.root, tile.places.buffers
    packed = buffers.get("stored", buffers["packed"])
    assert root is not None
    names = {f"k_product_{i}": i for i in range(len(root.args) // 2)}
    step = max(1, CACHE_LINE * 8 // int(packed.dtype.bits))

    def ask_first(loop: Any) -> Any:
        number = names.get(loop.loop_var.name)
        if number is None:
            return loop
        depth, base = root.args[2 * number + 1].shape[0], tile.places.products[root][number]
        requests = []
        for p in range(tile.panels):
            first = tile.weight_address(base, depth, p, loop.loop_var) + int64(ahead * tile.gates * tile.lanes)
            for at in range(0, tile.gates * tile.lanes, step):
                address = tirx.address_of(tirx.BufferLoad(packed, [first + int64(at)]))
                request = tirx.call_intrin("void", "tirx.prefetch", address, READ, EVERY_LEVEL, DATA)
                requests.append(tirx.Evaluate(request))
        body = tirx.SeqStmt([*requests, loop.body])
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations={})

    return tvm_ffi.structural_map(product, (tirx.For, ask_first))

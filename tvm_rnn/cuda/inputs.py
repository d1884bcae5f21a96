"""What a persistent kernel's products read of the layer's own input: pieces of rows, straight from memory.

In: the kernel's state (`persistent.Body`). Out: statements that load pieces of 16 bytes, and that wait until the layer
below has written them. A cluster asks for a step's pieces one step early, because its exchange is shorter than a way to
L2; in a grid they are on their way while the blocks wait for each other.

A layer that follows another one in the same wave must not read what is not there yet. In a grid, the counter of the
layer below says what is. A cluster has no counter: memory is filled with POISON before the launch, and a lane loads its
pieces until no word of them is that (see `exchange.Polled`).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from ..graph import Node
from .exchange import POISON
from .team import Share, Team

Expr = Any


def given(team: Team) -> tuple[Node, ...]:
    """The inputs that products read, in the order of the kernel's pointers."""
    return team.step.given


class Inputs:
    """The input pieces of one kernel."""

    def __init__(self, body: Any) -> None:
        self.body, self.k, self.team = body, body.k, body.team
        self.early: dict[Share, Any] = {}
        self.rows: dict[Node, list[Expr]] = {}

    def prepare(self) -> None:
        """Where this lane's pieces begin; the first step's early ones are asked for."""
        k, team, body = self.k, self.team, self.body
        if not given(team):
            return
        k.do(I.ptx.griddepcontrol.launch_dependents())  # the next layer may come as soon as this one is there
        for node in given(team):
            self.rows[node] = [self._row(node, tile, body.ids.g) for tile in range(team.tiles)]
        if team.exchange == "grid":
            body.exchange.follow(self.events(tirx.const(0, "int32")))
        for parts in team.shares.values():
            for share in parts:
                words = team.early(share)
                if words:
                    self.early[share] = k.local(words, "uint32")
                    for z in range(words):
                        k.store(self.early[share], tirx.const(0, "uint32"), z)
                    self.ask(share, tirx.const(0, "int32"))

    def end(self) -> None:
        """The layer below is done before this one is: who waits for the last layer waits for all."""
        if given(self.team):
            self.k.do(I.ptx.griddepcontrol.wait())

    def events(self, t: Expr) -> Expr:
        """How often the blocks of the layer below have published when step t of it is in memory."""
        return (t + 1) * len(self.team.events) + 1

    def _row(self, node: Node, tile: int, within: Expr) -> Expr:
        """Element of the input, at time 0, where this lane's pieces of a row begin. Rows past the batch are never
        looked at, so that any row will do for them."""
        team, ids, k = self.team, self.body.ids, self.k
        row = k["row0"] + ids.team * team.rows + (ids.warp_n * team.tiles + tile) * 8 + within
        row = tirx.Cast("int64", tirx.Min(row, k["batch"] - 1))
        return k.keep(row * node.shape[0] + ids.q * (16 // team.itemsize))

    def load(self, share: Share, kblock: int, tile: int, pieces: Any, first: int, t: Expr, within: int | None) -> None:
        """One piece, to registers from `first` on; 0 past the row's end."""
        team, body, k = self.team, self.body, self.k
        node = share.operand.source
        row = self.rows[node][tile] if within is None else self._row(node, tile, within)
        block = body.ids.warp_k * share.kblocks + kblock if team.warps_k > 1 else tirx.const(kblock, "int32")
        at = k.bind(body._time(t)) * node.shape[0] + row + block * team.block_k
        source = k[f"x_{given(team).index(node)}"].ptr_to([at])
        call = I.ptx["ld.relaxed.gpu.global.v4.b32"](*[pieces[first + z] for z in range(4)], source)
        if node.shape[0] == team.depth_blocks(node) * team.block_k:
            k.do(call)
            return
        for z in range(4):
            k.store(pieces, tirx.const(0, "uint32"), first + z)
        with k.when(block * team.block_k + body.ids.q * (16 // team.itemsize) < node.shape[0]):
            k.do(call)

    def ask(self, share: Share, t: Expr) -> None:
        """Load the early pieces of step t."""
        k, team, pieces = self.k, self.team, self.early[share]
        with k.when(t < k["steps"]):
            for kblock in range(share.kblocks):
                for tile in range(team.tiles):
                    at = (kblock * team.tiles + tile) * 4
                    self.load(share, kblock, tile, pieces, at, t, None)

    def ready(self, share: Share) -> None:
        """Wait until the early pieces of this step are what the layer below has written."""
        if share not in self.early:
            return
        k, pieces = self.k, self.early[share]
        poison = tirx.const(POISON, "uint32")
        with k.when(tirx.NE(k["follows"], tirx.const(0, "int32"))):
            worst = k.local(1, "uint32")

            def look() -> None:
                k.store(worst, pieces[0], 0)
                for z in range(1, self.team.early(share)):
                    k.store(worst, tirx.Max(worst[0], pieces[z]), 0)

            look()
            with I.While(tirx.EQ(worst[0], poison)):
                self.ask(share, self.body.t)
                look()
            k.do(I.cuda.warp_sync())  # MMA wants the whole warp at one place

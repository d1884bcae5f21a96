"""Where the values of one layer live on the GPU.

In: a graph with groups, a precision. Out: `Layout`: how kernels read each node, and where each stored node goes.

    x, y, user's states    net.dtype, as the caller has them
    hoisted values         all rows of a tile of time; what products read, vectors that the step reads, and in layers of
                           matrices without steps all vectors but what scans multiply over time, in the storage dtype;
                           the rest (numbers per row or head, intermediate values, what spikes are made of) in the dtype
                           of arithmetic
    states                 two copies, read and written in turn, in the dtype of arithmetic; of those that products
                           read also two in the storage dtype ("shadows"), if that is another, or if tensor cores
                           multiply them and their rows are not made of pieces of 16 bytes
    step values            one copy; in the storage dtype where a product reads them
    kept values            what training reads later: rows for all steps, vectors in the storage dtype
    copies of inputs       of those that products of all rows read and whose rows begin between multiples of 16 bytes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd, prod

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES
from tvm_rnn.graph.graph import Graph, Group, Node, downstream, has_steps, is_scan
from tvm_rnn.graph.recurrences import BOTH_AXES
from tvm_rnn.tir.expr import Expr

from .made_again import MadeAgain
from .matrix_operands import NUMBER, RowOperands
from .pointers import TENSOR, Place, arithmetic, rows_of_users, storage
from .row_kernels import sources
from .weight_packing import Weights

PackIndex = Callable[[Expr], tuple[tuple[Expr, ...], Expr]]
ROW_BYTES = 16  # rows that products read begin at multiples of this, as their fast loads want


@dataclass(frozen=True)
class Target:
    """Where a stored value goes. kind: "hoisted", "step" (number 0 or, a storage copy, 1), "state" and "shadow" (of
    state `number`), "kept" (number among `Layout.kept`), "output", "part" (of the output, from element `number` on);
    read alone, "copy" (of input `number`) and "copied row" (see `user_states.py`)."""

    kind: str
    place: Place
    number: int = 0


@dataclass(frozen=True)
class Taped:
    """A kept value that the steps themselves write: its number among `Layout.kept`, and the node that they compute.
    apart: elements of one head that lie side by side."""

    number: int
    node: Node
    place: Place
    apart: int


@dataclass(frozen=True)
class RowSums:
    """Sums over all rows. alone: of what is kept, what nobody reads but they."""

    nodes: tuple[Node, ...] = ()
    alone: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Layout:
    """All places of one layer. kept: values of the step (or a state, as it is before the step) that have rows for all
    steps. given: how inputs lie that are not as the user has x. narrow: dtypes of kept values that are not the storage
    dtype. matrices: what recurrences of matrices read. sums: which kernels of the steps may make beside them."""

    graph: Graph
    precision: str
    weights: Weights
    dtype: str  # of x and y
    directions: int = 1
    kept: tuple[Node, ...] = ()
    given: Mapping[int, Place] = field(default_factory=dict)
    narrow: Mapping[Node, str] = field(default_factory=dict)
    matrices: Sequence[RowOperands] = ()  # of recurrences
    sums: RowSums = field(default_factory=RowSums)
    heads: int = 1  # of the layer, where this is the layout of one of them (`one_head.py`)
    whole_rows: bool = False  # of x and y, in memory of ours: made of pieces of 16 bytes, zeros behind what they have
    again: MadeAgain | None = None  # what backward makes of states that are kept before some steps

    @property
    def arithmetic(self) -> str:
        return arithmetic(self.precision)

    @property
    def storage(self) -> str:
        return storage(self.precision)

    def _padded(self, node: Node, dtype: str) -> Place:
        lanes = ROW_BYTES // ITEM_BYTES[dtype]
        return Place(dtype, -(-prod(node.shape) // lanes) * lanes)

    @cached_property
    def home(self) -> dict[Node, Group]:
        """The group that computes each stored node."""
        found: dict[Node, Group] = {}
        for group in self.graph.groups:
            for node in group.stored:
                if not node.leaf and self.weights.place(node) is None:
                    found.setdefault(node, group)
        return found

    @cached_property
    def operands(self) -> dict[str, set[Node]]:
        """What products read, by region."""
        found: dict[str, set[Node]] = {"before": set(), "step": set(), "after": set()}
        for group in self.graph.groups:
            if group.kind == "gemm" and group.root is not None:
                found[group.region].update(sources(group.root.args[1::2], self.stored))
        return found

    @cached_property
    def read_by(self) -> dict[Node, set[str]]:
        """The regions whose groups read each stored value of another group (products apart)."""
        found: dict[Node, set[str]] = {}
        for group in self.graph.groups:
            tops = [a for n in group.nodes if n is not group.root or group.kind != "gemm" for a in (n.args or (n,))]
            tops += [n for n in group.nodes if n in self.elsewhere(group)]
            for node in sources(tops, self.stored):
                if self.home.get(node) is not group:
                    found.setdefault(node, set()).add(group.region)
        return found

    @cached_property
    def _read_of(self) -> dict[Group, set[Node]]:
        """The stored values that each group reads."""
        return {g: {*sources([a for n in g.nodes for a in (n.args or (n,))], self.stored)} for g in self.graph.groups}

    def reads_of(self, group: Group) -> set[Node]:
        """The stored values that a group reads: of a recurrence of a matrix what its operands are parts of."""
        own = next((own for own in self.matrices if own.group is group), None)
        return self._read_of[group] if own is None else own.stored

    @cached_property
    def _read_outside(self) -> set[Node]:
        """What is read by others than groups, of results that are made of it too, or by matrices under another name."""
        graph = self.graph
        roots = [*graph.roots, *graph.results, *self.kept]
        return {*self._of_operands, *roots, *sources(roots, self.stored)}

    def is_needed(self, node: Node, chain: Sequence[Group]) -> bool:
        """Whether a value that the groups of a chain store is read by anybody else."""
        others = (self.reads_of(group) for group in self.graph.groups if group not in chain)
        return node in self._read_outside or any(node in read for read in others)

    def stored(self, node: Node) -> bool:
        """Whether the node is an array of its own somewhere."""
        return node.op in ("input", "state") or node in self.home or self.weights.place(node) is not None

    def writer(self, node: Node, group: Group) -> bool:
        """Whether it is this group, of those of its region that store the node, which writes it."""
        same = (g for g in self.graph.groups if g.region == group.region and node in g.stored)
        return next(same, group) is group

    def elsewhere(self, group: Group) -> frozenset[Node]:
        """Members of a group that it copies from where they are."""
        return frozenset(n for n in group.nodes if self.stored(n) and self.home.get(n) is not group)

    # --- places ----------------------------------------------------------------------------------------------------

    def input(self, number: int) -> Place:
        if number in self.given:
            return self.given[number]
        if self.whole_rows:
            return self._padded(self.graph.inputs[number], self.storage)
        return Place(self.dtype, prod(self.graph.inputs[number].shape), ITEM_BYTES[self.dtype])

    @cached_property
    def copied(self) -> dict[int, Place]:
        """Inputs whose rows the hardware cannot copy to shared memory 16 bytes at a time (their width is no multiple of
        8, in 16 bits; or they are of another dtype), by number: how copies lie that products of all rows read in their
        place. LSTM 502 of 156 inputs, 256 rows, H100: 16 us where it copied 4 bytes at a time. 32 lanes that copy 4
        bytes each take some 13 cycles, as many as for 16 bytes each."""
        places = ((n, node, self.input(n)) for n, node in enumerate(self.graph.inputs))
        whole = {
            n: p.dtype == self.storage and p.row_stride * ITEM_BYTES[p.dtype] % ROW_BYTES == 0 for n, _, p in places
        }
        tensor = self.precision in TENSOR and self.graph.kind == "forward"
        read = self.operands["before"] if tensor else set()
        inputs = enumerate(self.graph.inputs)
        return {n: self._padded(node, self.storage) for n, node in inputs if node in read and not whole[n]}

    @property
    def of_all(self) -> Layout:
        """That of the layer, where this is one head's."""
        return self

    def of_layer(self, node: Node) -> Node:
        """The layer's value that a value is, or is a part of."""
        return node

    def packed(self, node: Node, elements: int, index: PackIndex) -> tuple[Node, int, PackIndex]:
        """Of a product's parameter what kernels read: which value, how many elements, and where the i-th is from."""
        return node, elements, index

    def is_first_input(self, node: Node) -> bool:
        return self.of_layer(node) is self.graph.inputs[0]

    def side_by_side(self, node: Node) -> int:
        """How many elements of one head lie side by side in a value of all; 0: it is the same for all heads."""
        return prod(node.shape)

    def offset(self, node: Node, at: int) -> int:
        """Where element `at` of a head's part of a value lies, of the first head's."""
        return self.spread(self.side_by_side(node), at)

    def spread(self, apart: int, at: int) -> int:
        """The same where so many elements of a head lie side by side."""
        inner = apart if self.heads > 1 else 0
        return at // inner * inner * self.heads + at % inner if inner else at

    def rows(self, node: Node) -> Place:
        """Of an input or a hoisted value."""
        return self.input(self.graph.inputs.index(node)) if node.op == "input" else self.hoisted(node)

    def state(self, number: int) -> Place:
        return Place(self.arithmetic, prod(self.graph.states[number].shape))

    def shadow(self, number: int) -> Place | None:
        """The copy of a state that products of the step read, in rows that the hardware brings to shared memory 16
        bytes at a time; None where the state itself will do."""
        node = self.graph.states[number]
        if node not in self.operands["step"]:
            return None
        padded = self._padded(node, self.storage)
        whole = padded.row_stride == prod(node.shape) or self.precision not in TENSOR
        return None if self.storage == self.arithmetic and whole else padded

    @property
    def output(self) -> Place:
        if self.whole_rows:
            return self._padded(self.graph.output, self.storage)
        # A row of the backward direction begins `width` elements into that of both, a later step many rows on.
        width = self.graph.output.shape[0]
        return replace(rows_of_users(self.dtype, width), row_stride=width * self.directions)

    @cached_property
    def emits(self) -> bool:
        """Whether the output is a value of the step; a backward graph's is one of `after`, or of no group at all."""
        return self.graph.kind == "forward"

    @cached_property
    def walked(self) -> bool:
        """Whether a backward graph's output is a value that the steps write to where it goes: one of them that is not
        kept."""
        home = self.home.get(self.graph.output)
        own = home is not None and home.region == "step" and self.kept_number(self.graph.output) is None
        return self.graph.kind == "backward" and own

    @cached_property
    def solved(self) -> dict[Node, int]:
        """The recurrences over all time that make states, with these states' numbers."""
        return {result: i for i, result in enumerate(self.graph.results) if is_scan(result)}

    @cached_property
    def stepped(self) -> list[int]:
        """The numbers of the states that change step by step."""
        return [i for i, result in enumerate(self.graph.results) if not is_scan(result)]

    @property
    def narrow_states(self) -> bool:
        """Whether the user's states have another dtype than registers, which persistent kernels convert. In training
        states between parts of the time are kept in the dtype of registers."""
        return self.emits and not self.kept and self.dtype != self.arithmetic

    @cached_property
    def has_steps(self) -> bool:
        """Whether anything is left for a loop over time."""
        return has_steps(self.graph)

    @cached_property
    def written_first(self) -> bool:
        """Whether a group of `before` writes the output to where it goes."""
        return self.emits and not self.has_steps

    @cached_property
    def written_last(self) -> bool:
        """Whether a product over all steps writes a backward graph's output straight to where it goes."""
        home = self.home.get(self._last)
        return not self.emits and home is not None and home.region != "step" and home.kind == "gemm"

    @cached_property
    def _last(self) -> Node:
        """The output; of a backward graph the value that has the same elements in the same order, by members."""
        node = self.graph.output
        while node.op == "reshape" and not self.emits and node not in self.home:
            node = node.args[0]
        return node

    def kept_place(self, node: Node) -> Place:
        """Rows of a kept value: 16-bit where products are, but for what is one number per row and no product over all
        steps reads. What the steps read themselves is not narrower than they would have it without."""
        in_steps = node not in self.home or self.home[node].region == "step"
        if node in self.narrow and in_steps:
            return self._padded(node, self.narrow[node])
        operand = not in_steps and any(node in read for read in self.operands.values())
        return self._padded(node, self.storage if prod(node.shape) > 1 or operand else self.arithmetic)

    @cached_property
    def taped(self) -> Sequence[Taped]:
        """Of what is kept, what no group from before the steps has written."""
        early = {n for n, group in self.home.items() if group.region == "before"}
        own = [(i, node) for i, node in enumerate(self.kept) if node not in early]
        return [Taped(i, node, self.kept_place(node), prod(node.shape)) for i, node in own]

    def kept_number(self, node: Node) -> int | None:
        return next((i for i, other in enumerate(self.kept) if other is node), None)

    def hoisted(self, node: Node) -> Place:
        if self.kept_number(node) is not None:
            return self.kept_place(node)
        if node in self._drawn:
            return self._padded(node, self.arithmetic)  # rounded to 16 bits, a number below 1 would be 1
        if node in self._decisive and not any(node in read for read in self.operands.values()):
            return self._padded(node, self.arithmetic)
        vector = prod(node.shape) > 1 and "step" in self.read_by.get(node, ())
        operand = any(node in read for read in self.operands.values())
        operand = operand or node in self._of_matrices or node in self._parts_of_output
        operand = operand or (self.graph.kind == "backward" and node in self.graph.emitted)  # sums read it
        # Of all of T, what products make is the largest thing that is written: as it would be for the step.
        home = self.home.get(node)
        vector = vector or (node.shape[-1:] > (1,) and home is not None and home.kind == "gemm" and home.root is node)
        vector = vector or self._moved_alone(node)
        found = self._padded(node, self.storage if vector or operand else self.arithmetic)
        return found if operand else replace(found, spare=True)

    def _moved_alone(self, node: Node) -> bool:
        """Whether kernels of rows alone write and read a value, in a layer of matrices without a loop over time: such a
        kernel takes as long as its bytes. Not numbers of heads, nor what scans of vectors multiply over all time."""
        heads = max((prod(own.heads) for own in self.matrices), default=0)
        return bool(heads) and not self.has_steps and prod(node.shape) > heads and node not in self._of_time

    @cached_property
    def _numbers(self) -> set[Node]:
        """That recurrences of matrices read."""
        return {own.located((node, NUMBER))[0] for own in self.matrices for node in own.numbers}

    @cached_property
    def _of_time(self) -> set[Node]:
        """Numbers that recurrences over all time read, and what scans of vectors do."""
        matrices = [own.group for own in self.matrices]
        vectors = [group for group in self.graph.groups if group.kind == "scan" and group not in matrices]
        return self._numbers.union(*(self._read_of[group] for group in vectors))

    @cached_property
    def _drawn(self) -> set[Node]:
        """Random numbers, and what is made of them alone."""
        return downstream(self.graph.nodes(), lambda node: node.op == "uniform") & {*self.home}

    @cached_property
    def _decisive(self) -> set[Node]:
        """What spikes are made of. Rounded to 16 bits it makes others, and what follows is another sequence: 512 LIF
        units in bfloat16 were off by 0.86 after 64 steps, and spike as in float64 where the sums are whole."""
        nodes = self.graph.nodes()
        found = {n.args[0] for n in nodes if n.op == "where" and n.args[1].op == "const"}
        for node in reversed(nodes):
            found |= {*node.args} if node in found else set()
        return found & {*self.home}

    @cached_property
    def _parts_of_output(self) -> set[Node]:
        """Of a backward graph, whose output is rounded: vectors that are parts of it, and nothing else reads."""
        found, stack = set[Node](), [] if self.emits else [self.graph.output]
        while stack:
            node = stack.pop()
            if node in self.home:
                found.add(node)
            elif node.op in ("reshape", "concat"):
                stack += node.args
        return {node for node in found if node not in self.read_by and prod(node.shape) > 1}

    @cached_property
    def in_output(self) -> dict[Node, int]:
        """Of a backward graph, whose output is put together of stored vectors and numbers: these, with the element at
        which each begins, if kernels write them where they are parts of it. Products write rows of their own."""
        output = self.graph.output
        together = not self.emits and output.op == "concat" and len(output.shape) == 1 and output not in self.home
        if not together or self.directions > 1 or self.graph.pixels or self.dtype != self.storage:
            return {}
        found, begin, size = dict[Node, int](), 0, ITEM_BYTES[self.dtype]
        for node in output.args:
            width = prod(node.shape)
            while node.op == "reshape" and node not in self.home:
                node = node.args[0]
            if node in found or not self._is_part(node) or begin * size % ROW_BYTES:
                return {}
            found[node] = begin
            begin += width
        return {} if begin * size % ROW_BYTES else found

    def _is_part(self, node: Node) -> bool:
        """Whether all that a value is made for is to be a part of the output, which recurrences may read as vectors."""
        home, output, matrices = self.home.get(node), self.graph.output, {own.group for own in self.matrices}
        if home is None or home.region == "step" or home.kind == "gemm" or self.kept_number(node) is not None:
            return False
        groups = [group for group in self.graph.groups if group is not home and group not in matrices]
        others = (found for group in groups for found in (self._read_of[group], self.elsewhere(group)))
        read = any(node in found for found in (*self.operands.values(), *others, self._numbers))
        roots = [*self.graph.emitted, *self.graph.results, *(root for root in self.graph.roots if root is not output)]
        return not read and node not in sources(roots, self.stored)

    @cached_property
    def _of_operands(self) -> set[Node]:
        """What recurrences of matrices read."""
        return {node for own in self.matrices for node in own.stored}

    @cached_property
    def _of_matrices(self) -> set[Node]:
        """Vectors of every step that recurrences of matrices read, and what is read of them. One number of a whole
        matrix has the bits of arithmetic: sums over all steps of such numbers, of either sign, may be near 0."""
        read = {own.located(operand)[0] for own in self.matrices for operand in own.vectors}
        return read | {node for own in self.matrices for node in own.reads if node.attrs["key"] != BOTH_AXES}

    @cached_property
    def hoisted_nodes(self) -> list[Node]:
        rows = {"before"} if self.emits else {"before", "after"}
        own = [n for n, group in self.home.items() if group.region in rows and self.kept_number(n) is None]
        direct = self.written_last or (self.written_first and not self._read_again)
        return [n for n in own if not (n is self._last and direct) and n not in self.in_output]

    @cached_property
    def _read_again(self) -> bool:
        """Whether groups read the output."""
        node = self.graph.output
        read = node in self.read_by or any(node in found for found in self.operands.values())
        return read and node in self.home

    @cached_property
    def step_nodes(self) -> dict[Node, list[Place]]:
        """Values of one step that need a buffer of their own: their copies (of which the first is for pointwise
        work)."""
        found: dict[Node, list[Place]] = {}
        for node, group in self.home.items():
            if group.region != "step":
                continue
            operand = node in self.operands["step"]
            states = [i for i, r in enumerate(self.graph.results) if r is node]
            copies = []
            if "step" in self.read_by.get(node, ()) and not states and not operand:
                copies.append(self._padded(node, self.arithmetic))
            kept = self.kept_number(node) is not None and self.kept_place(node).dtype == self.storage
            if operand and not kept and not any(self._serves(i) for i in states):
                copies.append(self._padded(node, self.storage))
            if copies:
                found[node] = copies
        return found

    def _serves(self, state: int) -> bool:
        """Whether products can read the new value of a state."""
        return self.storage == self.arithmetic or self.shadow(state) is not None

    def targets(self, node: Node, region: str) -> Sequence[Target]:
        """Where a group of that region writes a node that it stores."""
        kept = [Target("kept", self.kept_place(node), i) for i, other in enumerate(self.kept) if other is node]
        if region != "step":
            if node is self.graph.output and self.written_first:
                own = kept or ([Target("hoisted", self.hoisted(node))] if self._read_again else [])
                return [*own, Target("output", self.output)]
            if node in self.in_output:
                whole = prod(self.graph.output.shape)
                align = gcd(ROW_BYTES, self.in_output[node] * ITEM_BYTES[self.dtype])
                return [Target("part", Place(self.dtype, whole, align), self.in_output[node])]
            last = node is self._last and self.written_last
            return [Target("output", self.output)] if last else kept or [Target("hoisted", self.hoisted(node))]
        found = []
        for number, result in enumerate(self.graph.results):
            if result is node:
                found.append(Target("state", self.state(number), number))
                shadow = self.shadow(number)
                found += [Target("shadow", shadow, number)] if shadow is not None else []
        found += [Target("step", place, i) for i, place in enumerate(self.step_nodes.get(node, []))]
        if node is self.graph.output and (self.emits or self.walked):
            found.append(Target("output", self.output))
        return [*found, *kept]

    def source(self, node: Node, product: bool = False, region: str = "step") -> Target | None:
        """Where a node is read from: kind "input", "old" or "old shadow" (a state), "weights", or a target's. None: it
        is computed where it is needed."""
        number = self.kept_number(node) if region == "after" else None
        if number is not None:
            return Target("kept", self.kept_place(node), number)
        if node.op == "input":
            number = self.graph.inputs.index(node)
            if product and region == "before" and number in self.copied:
                return Target("copy", self.copied[number], number)
            return Target("input", self.input(number), number)
        if node.op == "state":
            number = self.graph.states.index(node)
            shadow = self.shadow(number) if product else None
            return Target("old", self.state(number), number) if shadow is None else Target("old shadow", shadow, number)
        weights = self.weights.place(node)
        if weights is not None:
            return Target("weights", weights)
        if node not in self.home:
            return None
        found = self.targets(node, self.home[node].region)
        if product:
            found = [t for t in found if t.place.dtype == self.storage and t.kind != "output"]
            found.sort(key=lambda target: target.kind == "state")  # its shadow, where there is one
        return found[0] if found else None

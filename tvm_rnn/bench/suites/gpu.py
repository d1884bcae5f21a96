"""What a benchmark measures: a point, and the named suites of points for GPUs, as data (`cpu.py` has those for CPUs).

In: the name of a suite and words that choose points of it. Out: `Point`s, each one network (cell, sizes, layers,
directions, precision) at one T and B. Points of one network share one compiled module, which holds for every T and B.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tvm_rnn import cells
from tvm_rnn.errors import ConfigError, message, unknown
from tvm_rnn.frontends.spec import find_cell
from tvm_rnn.network.rnn import RNN, check_without_constants

from . import headed_recurrences, neurons, recurrences, writers
from .random_networks import random_networks

Facts = dict[str, Any]  # what JSON says of a point
# What `compile` calls a precision, and how a point's name and a table abbreviate it.
SHORT = {"bfloat16": "bf16", "float16": "fp16", "tf32": "tf32", "float32": "fp32", "float64": "fp64"}
ALL = ("bfloat16", "float16", "tf32", "float32")
# Layer normalisation undoes every scale but that of its gains: with gains of 1, NumPy in float32 is off by 9e-5 after
# 200 steps (H = 33), with 0.5 by 1e-7. A cell without a forget gate keeps every difference: as `init` draws R, 1,000
# steps multiply one by 200 to 3,000, and NumPy in float32 is off by up to 1e-3 (H = 64 and 130); with 0.1 by 8e-6.
TAMED = {"lstm_layer_norm": ("a_h", 0.5), "lstm_nfg": ("R", 0.1)}
# The passes of every network, in the order in which the ablation adds them again.
PASSES = ("hoist_gemms", "combine_gemms", "fuse_pointwise", "tile_layers_and_time")
CELLS = {**writers.CELLS, **recurrences.CELLS, **headed_recurrences.CELLS, **neurons.CELLS}  # of benchmarks alone
RESET_EVERY = 16
DECODED = 20  # steps of decoding in a graph: one follows another, and a graph's own launch is not what they take
IN_STEPS = ("parallelise_time",)  # left out, recurrences run one step after the other


@dataclass(frozen=True)
class Point:
    """One network at one T and B.

    cell: of the zoo, of CELLS, or "file.py:function". precision: of products, a key of SHORT. sizes: other axes
    of the cell, (name, size). without: passes left out. lengths: rows have lengths of their own. eager: calls are no
    CUDA graph. any_batch: the module is compiled for no batch size in particular. training: both passes. resets: rows
    begin anew, each at about one step of RESET_EVERY. calls: of a graph, one after the other. unaligned: inputs begin
    between multiples of 16 bytes.
    """

    cell: str
    input: int
    hidden: int
    steps: int
    batch: int
    precision: str = "bfloat16"
    layers: int = 1
    directions: int = 1
    sizes: tuple[tuple[str, int], ...] = ()
    without: tuple[str, ...] = ()
    lengths: bool = False
    eager: bool = False
    any_batch: bool = False
    training: bool = False
    resets: bool = False
    calls: int = 1
    unaligned: bool = False

    @property
    def dtype(self) -> str:
        """Of weights, inputs and outputs: TF32 is a way to multiply float32."""
        return "float32" if self.precision == "tf32" else self.precision

    @property
    def network(self) -> Point:
        """The same network without T and B, however it is called: what is compiled."""
        as_compiled = replace(self, lengths=False, eager=False, resets=False, unaligned=False)
        return replace(as_compiled, steps=0, batch=0, calls=1)

    @property
    def network_name(self) -> str:
        """Such as lstm-h512-i64-l3-bf16: file names begin with it."""
        words = [self.cell.rpartition(":")[2].removesuffix(".py"), f"h{self.hidden}"]
        words += [f"i{self.input}"] if self.input != self.hidden else []
        words += [f"l{self.layers}"] if self.layers > 1 else []
        words += ["bi"] if self.directions == 2 else []
        words += [f"{name.lower()}{size}" for name, size in self.sizes]
        words += [f"no_{name.partition('_')[0]}" for name in self.without]
        words += ["training"] if self.training else []
        return "-".join([*words, SHORT[self.precision]])

    @property
    def name(self) -> str:
        """Such as lstm-h512-i64-l3-b64-t100-bf16. Its words choose points; no two points of a suite share one."""
        network, _, precision = self.network_name.rpartition("-")
        told = {"lengths": self.lengths, "resets": self.resets, "unaligned": self.unaligned, "eager": self.eager}
        ways = "".join(f"-{way}" for way, is_so in told.items() if is_so)
        ways += f"-calls{self.calls}" if self.calls > 1 else ""
        return f"{network}-b{self.batch}-t{self.steps}{ways}-{precision}"

    def as_dict(self) -> Facts:
        return asdict(self)

    @property
    def record(self) -> Facts:
        """What a benchmark's records say of the point, as JSON has it."""
        facts: Facts = json.loads(json.dumps(self.as_dict()))
        return {"kind": "point", "point": self.name, **facts}

    @staticmethod
    def from_dict(facts: Facts) -> Point:
        """The Point that as_dict made, also after JSON made its tuples lists."""
        pairs = tuple((str(name), int(size)) for name, size in facts["sizes"])
        return Point(**{**facts, "sizes": pairs, "without": tuple(facts["without"])})


def _over(point: Point, precisions: Iterable[str]) -> list[Point]:
    return [replace(point, precision=precision) for precision in precisions]


def gpu_grid() -> list[Point]:
    """LSTM and GRU where most users are: four widths, four batches, T=128."""
    return [
        Point(cell, hidden, hidden, 128, batch, precision)
        for precision in ALL[:3]
        for cell in ("lstm", "gru")
        for hidden in (256, 512, 1024, 2048)
        for batch in (1, 16, 64, 128)
    ]


def any_batch() -> list[Point]:
    """LSTM and GRU compiled for no batch size in particular, at batch sizes on and off the usual ones."""
    rows = (1, 8, 17, 33, 64, 65, 100, 128, 129, 200, 256, 257, 384, 512)
    return [
        Point(cell, hidden, hidden, 128, batch, any_batch=True)
        for cell in ("lstm", "gru")
        for hidden in (512, 1024, 2048)
        for batch in rows
    ]


def off_grid() -> list[Point]:
    """A stack and large layers, called in every way: in a graph and outside of one, with lengths, on unaligned inputs;
    with more rows than half a wave holds; and in both passes of training."""
    stack = Point("lstm", 512, 512, 100, 64, layers=4)
    large = Point("lstm", 2560, 2560, 200, 64)
    ways: tuple[Facts, ...] = ({}, {"eager": True}, {"lengths": True}, {"unaligned": True})
    called = [
        replace(point, any_batch=True, **way)
        for point in (stack, large, Point("gru", 2048, 2048, 128, 16))
        for way in ways
    ]
    rows = [replace(stack, any_batch=True, batch=batch) for batch in (65, 128)]
    return [*called, *rows, *(replace(point, training=True) for point in (stack, large))]


def blog() -> list[Point]:
    """The networks of the cuDNN articles (Appleyard 2016 and its sample code), and FlashRNN's longest sequence."""
    networks = (
        Point("lstm", 512, 512, 100, 64, layers=4),  # the sample code's network
        Point("lstm", 2560, 2560, 200, 64),  # A
        Point("lstm", 64, 256, 100, 64, layers=3),  # B
        Point("lstm", 256, 256, 1000, 32),  # C
    )
    flash = Point("lstm", 768, 768, 1024, 16)
    return [*(p for network in networks for p in _over(network, ALL)), *_over(flash, ALL[:2])]


def deepbench() -> list[Point]:
    """DeepBench's recurrent layers (of training, and B = 1, 2, 4 of its server inference), with the input product."""
    shapes = [("elman_relu", h, b, 50) for h in (1760, 2048, 2560) for b in (16, 32, 64, 128)]
    shapes += [("lstm", h, b, 25) for h in (512, 1024, 2048, 4096) for b in (1, 2, 4, 16, 32, 64, 128)]
    shapes += [("lstm", 1536, b, 50) for b in (1, 2, 4, 8, 16, 32)]
    shapes += [("lstm", 256, b, 150) for b in (1, 2, 4, 16, 32, 64)]
    shapes += [("gru", 2816, 32, 1500), ("gru", 2048, 32, 750), ("gru", 1536, 32, 375), ("gru", 2560, 32, 187)]
    shapes += [("gru", 1024, b, 1500) for b in (32, 64)] + [("gru", 512, 32, 1)]
    return [p for c, h, b, t in shapes for p in _over(Point(c, h, h, t, b), ALL[:2])]


def flashrnn() -> list[Point]:
    """FlashRNN's figures at one head: batches at T=1024, and lengths at B=16."""
    sizes = [(1024, b) for b in (2, 8, 16, 32, 64, 128, 256)] + [(t, 16) for t in (256, 512, 2048)]
    return [p for t, b in sizes for p in _over(Point("lstm", 768, 768, t, b), ALL[:2])]


def zoo() -> list[Point]:
    """Every cell at H=512, B=64, T=64; at H=64 those whose state is an image, or a matrix that fits on a chip. Cells
    with constants are left out: no peer has them."""
    points = []
    for cell in (cell for _, cell in sorted(cells.ZOO.items()) if not cell.constants):
        name = cell.name
        matrix = any(len(state.dims.present({}).axes) > 1 for state in cell.states)
        hidden = 64 if matrix else 512
        own = {"P": hidden // 2, "depth": 3, "Y": 16, "A": 8}
        sizes = tuple((axis, own[axis]) for axis in cell.size_names if axis in own)
        points.append(Point(name, hidden, hidden, 64, 64, sizes=sizes))
    return points


def ablation() -> list[Point]:
    """The sample code's network with no pass at all, then one pass more at a time."""
    network = Point("lstm", 512, 512, 100, 64, layers=4)
    return [replace(network, without=PASSES[done:]) for done in range(len(PASSES) + 1)]


def linear() -> list[Point]:
    """Linear recurrences over long sequences, each with and without the pass that runs them over all time; recurrences
    alone, one step of decoding among them; matrices with a nonlinearity, which take one step after the other; and both
    passes of training."""
    cells = (("gated_delta_net", 64), ("mlstm", 64), ("gla", 64), ("rwkv7", 64), ("min_gru", 512), ("sru", 512))
    points = [
        Point(cell, h, h, 16384, batch, precision) for cell, h in cells for batch in (1, 8) for precision in ALL[::3]
    ]
    heads = [Point(cell, 64, 128, 4096, 8, "bfloat16", sizes=(("N", 16),)) for cell in ("gla", "gated_delta_net")]
    sums = [Point("gated_sum", 2 * h, h, t, b, p) for h, t, b in ((1536, 65536, 8), (512, 16384, 1)) for p in ALL[::3]]
    n, m, h = 16, 2, 128
    whole, delta = n * (2 * h + m * h + 2 * m), (("N", n), ("M", m))
    alone = [Point("gated_delta", whole, h, t, b, sizes=delta) for t, b in ((1, 1), (1, 64), (32768, 1))]
    layers = [Point("gated_delta_net_conv", 64, h, t, b, sizes=delta) for t, b in ((1, 1), (1, 64), (32768, 1))]
    alone, layers = ([replace(p, calls=DECODED if p.steps == 1 else 1) for p in own] for own in (alone, layers))
    few = Point("gated_delta", n * (3 * h + 2), h, 2048, 16, sizes=(("N", n), ("M", 1)))
    memory = [Point("mlstm", 64, h, 8192, 8, sizes=(("N", 4),))]
    memory.append(Point("mlstm_capped", 64, 512, 32768, 1, sizes=(("K", 256), ("N", 8))))
    strict = [Point("m2rnn", 512, 64, 4096, batch, sizes=(("N", 8),)) for batch in (1, 16, 64)]
    both = [point for point in points if point.precision == "bfloat16" and point.cell not in ("min_gru", "sru")]
    trained = [replace(p, training=True) for p in (*both, *sums, *heads, alone[-1], few, *memory)]
    stepped = [replace(point, without=off) for point in (*points, *heads) for off in ((), IN_STEPS)]
    return [*stepped, *sums, *alone, few, *memory, *layers, *strict, *trained]


def heads() -> list[Point]:
    """Recurrences of several heads, alone, in the sizes of FlashRNN's and XMA's kernels; with products of their inputs
    sLSTM, M2RNN and DreamerV3's block GRU; each in inference, and in both passes of training."""
    own = [Point("headed_lstm", 4 * n * h, h, 1024, 16, sizes=(("N", n),)) for n, h in ((24, 32), (12, 64), (6, 128))]
    own += [Point("slstm", n * h, h, 1024, 16, sizes=(("N", n),)) for n, h in ((24, 32), (12, 64), (6, 128))]
    for cell, gates in (("headed_rnn", 1), ("headed_gru", 3)):
        own += [Point(cell, gates * n * h, h, 4096, 16, sizes=(("N", n),)) for n, h in ((64, 16), (8, 64))]
    own.append(Point("m2rnn", 512, 64, 4096, 16, sizes=(("N", 8),)))
    blocks = [Point("block_gru", 512, 64, t, 16, sizes=(("N", 8), ("P", 512), ("A", 8))) for t in (64, 512)]
    own += [*blocks, *(replace(point, resets=True) for point in blocks)]
    return [replace(point, training=training) for point in own for training in (False, True)]


def members() -> list[Point]:
    """Networks of many members beside one: a population, or an ensemble, in one call; in inference, and in both passes
    of training."""
    return [
        Point(cell, 128, 128, 128, 32, sizes=(("members", count),) if count else (), training=training)
        for cell in ("gru", "lstm")
        for count in (0, 4, 16, 64)
        for training in (False, True)
    ]


def generate() -> list[Point]:
    """An LSTM that writes, token after token, of a small vocabulary and of a large one, as on CPUs, in more steps."""
    return [
        Point(cell, 1, 512, 1000, batch, "float32", sizes=(("V", tokens),))
        for cell in writers.CELLS
        for tokens in (256, 32000)
        for batch in (1, 16, 256)
    ]


def images() -> list[Point]:
    """A ConvLSTM over frames of 64 x 64 pixels, and over smaller ones of more channels; in inference, and in both
    passes of training."""
    sizes = ((64, 64, 8), (128, 32, 8), (64, 64, 1))
    return [
        Point("conv_lstm", hidden, hidden, 20, batch, precision, sizes=(("Y", side),), training=training)
        for hidden, side, batch in sizes
        for precision in ALL
        for training in (False, True)
    ]


def spikes() -> list[Point]:
    """Spiking neurons alone, as a layer of a network and as feature maps of a convolutional one; in inference, and in
    both passes of training."""
    sizes = ((1024, 128, 32), (65536, 16, 32))
    points = [Point("lif_neuron", h, h, steps, batch, "float32") for h, steps, batch in sizes]
    return [replace(point, training=training) for point in points for training in (False, True)]


def random(seed: int = 0) -> list[Point]:
    """200 networks as chance has them."""
    return [Point.from_dict(facts) for facts in random_networks(seed)]


# Of suites that other peers run than torch's layers.
PEERS = {
    "random": "torch,cudnn",
    "images": "torch",
    "members": "torch,torch-compile",
    "spikes": "torch",
    "generate": "torch-cuda,torch-cuda-compile,torch-cuda-graph",
}
Suites = Mapping[str, Callable[..., list[Point]]]
RECURRENCES = (gpu_grid, any_batch, off_grid, blog, deepbench, flashrnn, heads, members, zoo, ablation, linear)
EVERY = (*RECURRENCES, generate, images, spikes, random)
DRAWN = ("random", "cpu-random")  # suites that are drawn by a seed
SUITES: Suites = {f.__name__.replace("_", "-"): f for f in EVERY}


def network(point: Point) -> RNN:
    """The point's network, without weights."""
    sizes: Facts = dict(point.sizes)
    cell, both = CELLS.get(point.cell) or find_cell(point.cell), point.directions == 2
    net = RNN(cell, point.input, point.hidden, point.layers, both, point.dtype, **sizes)
    check_without_constants("bench", net)
    return net


def tamed(net: RNN) -> RNN:
    """The network, with weights scaled where, as drawn, they make a chaotic cell: two dtypes never agree on that."""
    parameter, factor = TAMED.get(net.cell.name, ("", 1.0))
    own = {name: value * factor for name, value in net.weights.items() if name.startswith(f"{parameter}_l")}
    return net.load({**net.weights, **own}) if own else net


def suite(name: str, known: Suites = SUITES, seed: int | None = None) -> list[Point]:
    """All points of a suite; known: SUITES, or those of CPUs; seed: of one that is drawn. Raises ConfigError for a name
    that is none, and for the seed of a suite that has none."""
    if name not in known:
        raise ConfigError(message("--suite: no such suite", **unknown("suite", name, known)))
    if seed is None:
        return known[name]()
    if name not in DRAWN:
        do = f"leave it out, or name one of these: {', '.join(DRAWN)}"
        raise ConfigError(message("--seed: this suite is not drawn", got=name, do=do))
    return known[name](seed)


def select(points: Sequence[Point], only: str) -> list[Point]:
    """The points that `only` names: words of names; those of one kind are alternatives, kinds narrow each other.

    "h256,b16,b64,lstm" are the LSTMs of H=256 at B=16 or 64; a whole name chooses one point; "" chooses all. Raises
    ConfigError for a word that no point has, and where no point is left.
    """
    words = [word.strip() for word in only.split(",") if word.strip()]
    names = {point.name: set(_words(point)) for point in points}
    known = set().union(*names.values()) | names.keys() if names else set()
    for word in words:
        if word not in known:
            raise ConfigError(message("--only: no point has this", **unknown("word", word, known)))
    whole = {word for word in words if word in names}
    kinds: dict[str, set[str]] = {}
    for word in words:
        if word not in whole:
            kinds.setdefault(_kind(word), set()).add(word)
    found = [
        point
        for point in points
        if point.name in whole or (kinds and all(names[point.name] & kind for kind in kinds.values()))
    ]
    if words and not found:
        raise ConfigError(message("--only: no point has all of this", got=only, expected=", ".join(list(names)[:8])))
    return found if words else list(points)


def part(points: Sequence[Point], places: str) -> list[Point]:
    """The points from number A up to B, of places "A:B", in the suite's order; "": all. Of a suite that is drawn each
    part is a fair sample. Raises ConfigError for other places, and where there is no such point."""
    begin, colon, end = (places or ":").partition(":")
    if not colon or not all(number.isdecimal() or not number for number in (begin, end)):
        raise ConfigError(message("--points is no part of a suite", got=repr(places), expected="A:B, such as 0:50"))
    found = list(points[int(begin or 0) : int(end) if end else None])
    if not found:
        raise ConfigError(message("--points: there is no such point", got=places, expected=f"up to {len(points)}"))
    return found


def _words(point: Point) -> list[str]:
    """What a point can be chosen by: the words of its name, and its input and layers also where the name omits them."""
    return [*point.name.split("-"), f"i{point.input}", f"l{point.layers}"]


def _kind(word: str) -> str:
    """What a word speaks of: "h" of "h256". Cells are one kind, and so are precisions."""
    if word in SHORT.values():
        return "precision"
    if word in cells.ZOO or word in CELLS:
        return "cell"
    return word.rstrip("0123456789")


def batches(points: Iterable[Point]) -> dict[Point, tuple[int, ...]]:
    """For each network the batch sizes that its module is optimised for; none: all of them."""
    found: dict[Point, set[int]] = {}
    for point in points:
        found.setdefault(point.network, set()).update([] if point.any_batch else [point.batch])
    return {network: tuple(sorted(sizes)) for network, sizes in found.items()}


def beside_peers(points: Iterable[Point]) -> set[Point]:
    """The points that run beside their peers: of those that differ in `without` alone, the one of which the least was
    left out."""
    fewest = sorted(points, key=lambda point: -len(point.without))
    return set({replace(point, without=()): point for point in fewest}.values())

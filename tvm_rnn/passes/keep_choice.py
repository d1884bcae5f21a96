"""What training keeps, by name: which values, and where it is said in which dtype: "values", "states:bfloat16".

In: `keep=` of the user's, True for training without one. Out: both parts, the names that a network has, and errors.

A dtype is that of what the tape has and `backward` alone reads, in pointwise work: gates, cell states. What products
read, inputs and hidden states, and states that forward goes on from stay in the network's dtype, so that results of
forward, and forward that runs again, are the same bits. Networks of 16 bits have tapes of 16 bits in any case.

"auto", what True means: on GPUs "states" where the products that run again are predicted to take 22 % of both passes at
most, else, and on CPUs, "values". So does what tensor cores multiply; strict float32 of large layers does not. Of one
layer in one direction 18 % are the most: weights of such layers are so large that a tape with values adds little to
them. The model: a step of a layer takes 2.85 us at least, of a narrow one less; a third of the FLOPs of both passes,
those of products within the steps, and the rest, which are over all steps at once, have a rate each, and what products
that run again write and read has one too: small members wait for memory, products of matrix states do not. LSTMs on an
H200, predicted and measured: 4 x 512 in bfloat16 11, 12 %, 2560 20, 18; in TF32 2560 21, 18, GRU 1024 16, 17. Members
of 128 units, 32 rows: 4, 8 and 16 GRUs 14 and 12 %, 25 and 26, 38 and 43; as many LSTMs 18 and 3, 30 and 8, 44 and 16:
both products are counted, of which the sum is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING

from tvm_rnn.errors import ConfigError, message, unknown
from tvm_rnn.graph.flops import node_flops
from tvm_rnn.graph.graph import Graph, Node, depends
from tvm_rnn.graph.ops import TABLE

from .min_cut import HEAVY

if TYPE_CHECKING:
    from tvm_rnn.network.rnn import RNN
    from tvm_rnn.target import Target

AUTO, WHAT = "auto", ("values", "states")
NARROW = "bfloat16"
MOST_SHARE, MOST_ALONE, BATCH = 0.22, 0.18, 64  # of a stack, and of one layer; BATCH: where none is named
STEP_US = 2.85
NARROW_US, UNIT_US = 0.9, 0.004  # a step of few units takes so much, and for each unit more
# FLOPs per microsecond within the steps, and over all steps at once. Of float32: without tensor cores.
RATES = {"bfloat16": (150e6, 420e6), "float16": (150e6, 420e6), "tf32": (80e6, 220e6)}
RATES |= {"float32": (20e6, 40e6), "float64": (15e6, 30e6)}
RESULTS_PER_US = 400e3  # elements of products that run again, written and read


def split(training: bool | str) -> tuple[str, str]:
    """What is kept, and the dtype that is named, or ""."""
    what, _, dtype = ("values" if training is True else str(training)).partition(":")
    return what, dtype


def names(dtype: str, kind: str) -> list[str]:
    """The choices for a network of that dtype, on a target of that kind."""
    narrow = [f"{what}:{NARROW}" for what in WHAT] if dtype == "float32" and kind == "cuda" else []
    return [*WHAT, *narrow]


def check_name(training: bool | str) -> None:
    """Raises ConfigError for a choice that no network has."""
    check(training, "float32", "cuda")  # which have every choice


def check(training: bool | str, dtype: str, kind: str) -> None:
    """Raises ConfigError for a choice that a network of that dtype does not have there."""
    name = "values" if training is True else str(training)
    if not training or name in (AUTO, *names(dtype, kind)):
        return
    known = [AUTO, *names("float32", "cuda")]  # which have all
    if name not in known:
        raise ConfigError(message("no such choice of what training keeps", **unknown("choice", name, known)))
    got = f"keep={name!r} for a network of {dtype} on target kind {kind}"
    do = f"networks of float32 have it, on GPUs; here: keep={split(name)[0]!r}"
    raise ConfigError(message("tapes are narrower than the network in float32 alone", got=got, do=do))


def share_again(net: RNN, batch: int, precision: str = "") -> float:
    """What products that run again take of both passes, predicted: of their time without. precision: of products; "":
    that of the network's dtype."""
    flops, results, rows = 0.0, 0, batch * net.num_directions
    for layer in net.layers:
        nodes = layer.graph.nodes()
        leaves = depends(nodes)
        own = [n for n in nodes if not n.leaf and leaves[n]]
        flops += rows * sum(map(node_flops, own))
        results += rows * sum(prod(n.shape) for n in own if TABLE[n.op].kind == "contract" and not _of_matrices(n))
    within, over = RATES[precision or net.dtype]
    steps = sum(min(STEP_US, NARROW_US + UNIT_US * _width(layer.graph)) for layer in net.layers)
    once = steps * net.num_directions + flops / within + 2 * flops / over
    return max(flops / over, results / RESULTS_PER_US) / once


def most_share(net: RNN) -> float:
    """What products that run again may take of both passes: less of one layer, whose tape is small beside the weights
    where that is much. A matrix of each step is not."""
    alone = net.num_layers * net.num_directions == 1
    vectors = all(len(state.shape) == 1 for layer in net.layers for state in layer.graph.states)
    return MOST_ALONE if alone and vectors else MOST_SHARE


def _width(graph: Graph) -> int:
    return max((state.shape[-1] for state in graph.states if state.shape), default=1)


def _has_heavy(net: RNN) -> bool:
    return any(TABLE[n.op].kind in HEAVY for layer in net.layers for n in layer.graph.nodes() if not n.leaf)


def _of_matrices(product: Node) -> bool:
    """Whether both operands have rows of their own: a matrix state's product stays in the registers of its step."""
    if "spec" not in product.attrs:
        return False
    operands, _, result = product.attrs["spec"].partition("->")
    left, right = operands.split(",")
    return all({*own} & {*result} - {*other} for own, other in ((left, right), (right, left)))


def chosen(
    training: bool | str, net: RNN, target: Target, batches: Iterable[int] = (), precision: str = ""
) -> bool | str:
    """The name of what is kept, where it is left to the network."""
    if not training or str(training) not in ("True", AUTO):
        return training
    if target.kind != "cuda" or not _has_heavy(net):
        return "values"
    return "states" if share_again(net, max(batches, default=BATCH), precision) <= most_share(net) else "values"


def why(net: RNN, target: Target, batches: Iterable[int] = (), precision: str = "") -> str:
    """The reason for a choice that was left to the network."""
    if target.kind != "cuda":
        return "on CPUs products that run again take as long as they did"
    if not _has_heavy(net):
        return "it has no products that would run again"
    share = share_again(net, max(batches, default=BATCH), precision)
    return f"products that run again would take {share:.0%} of both passes; {most_share(net):.0%} is the most"


__all__ = ["AUTO", "NARROW", "WHAT", "check", "chosen", "most_share", "names", "share_again", "split", "why"]

"""All steps of a layer in one launch, units spread over the GPU: operands lie in shared memory once, for warpgroups.

In: a layer's phases, a batch size and a GPU. Out: a `Team` of many blocks; slices of the batch are teams of their own.
Values travel through L2 without a counter; weights stay in registers and shared memory. For layers in a wave, which
multiply their input while they wait for their own units' values.

Rewrite: for t: gemm; pointwise  -->  one kernel; units over all multiprocessors; wgmma; values polled for

Source: Diamos et al. 2016, "Persistent RNNs: Stashing Recurrent Weights On-Chip", ICML.
"""

from collections.abc import Iterator
from typing import Any

from tvm_rnn.cuda.predict import cheapest, distinct, predict
from tvm_rnn.cuda.team import MMA, Team
from tvm_rnn.schedule import Config, Knobs, Unit, template
from tvm_rnn.target import Target

UNITS = (1, 2, 3, 4)  # blocks of 8 units of each warp
ROWS = tuple(range(8, 136, 8))
WARPS_K = (1, 2, 3, 4)
REGISTER_WORDS = (32, 64, 96, 112, 128)
AHEAD = (0, 1, 2, 3, 4, 6, 8)
EVERYTHING = 1 << 20  # words of weights for shared memory: what registers do not keep lies there
CHOICES: dict[str, tuple[int, ...]] = {
    **{"rows": ROWS, "warps_k": WARPS_K, "register_words": REGISTER_WORDS, "ahead": AHEAD},
}


@template("persistent_staged_cuda", kinds=("recurrent",), targets=("cuda",))
class PersistentStaged:
    """Knobs: ctas (blocks of a team), rows (batch rows of a team), warps_k (warpgroups of a block, each with a part of
    K), register_words (weights per thread in registers; the rest is in shared memory), ahead (blocks of K of the input
    that are still to be multiplied when the other units' values are asked for)."""

    @staticmethod
    def configure(unit: Unit, target: Target, knob: Knobs) -> Config:
        """The geometry with the least predicted time; {} where nothing fits."""
        best = cheapest(_teams(unit, target, knob), unit, target)
        if best is None:
            return {}
        ctas = {"ctas": knob("ctas", range(1, target.sms + 1), best.ctas)}
        return ctas | {
            name: knob(name, CHOICES[name], value) for name, value in _knobs(best).items() if name not in ctas
        }

    @staticmethod
    def every(unit: Unit, target: Target) -> Iterator[Config]:
        """All geometries that fit."""
        return map(_knobs, distinct(_teams(unit, target, Knobs()), target, _knobs))

    @staticmethod
    def predict(unit: Any, config: Config, target: Target) -> float:
        """Microseconds per step."""
        return predict(_team(unit, **config), unit.batch, target)

    @staticmethod
    def schedule(sch: Any, unit: Unit, config: Config) -> Team:
        """The team of a configuration."""
        return _team(unit, **config)


def _knobs(team: Team) -> Config:
    return {name: int(getattr(team, name)) for name in ("ctas", *CHOICES)}


def _team(unit: Any, **knobs: int) -> Team:
    own: dict[str, Any] = {"warps_u": 4, "polled": 1, "staged": 1, "shared_words": EVERYTHING}
    return Team(unit.step, unit.precision, "grid", stored=unit.stored, **own, **knobs)


def _teams(unit: Any, target: Target, knob: Knobs) -> Iterator[Team]:
    """Every geometry that the record, if there is one, allows."""
    if unit.precision not in MMA or unit.stored or unit.layers == 1:
        return  # a layer alone, its input's product hoisted, was slower: LSTM 1024 bf16, B = 64, 4.40 us against 3.64

    def choices(name: str, every: tuple[int, ...]) -> tuple[int, ...]:
        return (knob.record[name],) if name in knob.record else every

    width = max(s.shape[0] for s in unit.step.graph.states)
    for ctas in choices("ctas", tuple(sorted({-(-width // (32 * n)) for n in UNITS}))):
        if ctas > target.sms:
            continue
        for rows in choices("rows", _rows(unit.batch, target.sms // ctas)):
            for warps_k in choices("warps_k", WARPS_K):
                for words in choices("register_words", REGISTER_WORDS):
                    for ahead in choices("ahead", (2,) if unit.step.given else (0,)):
                        knobs = {"ctas": ctas, "rows": rows, "warps_k": warps_k, "register_words": words}
                        team = _team(unit, **knobs, ahead=ahead)
                        if team.pollable:
                            yield team


def _rows(batch: int, most: int) -> tuple[int, ...]:
    """Rows per team when the batch is one slice, two, ... as many as can be resident."""
    tiles = -(-batch // 8)
    return tuple(sorted({min(ROWS[-1], -(-tiles // slices) * 8) for slices in range(1, max(1, most) + 1)}))

"""All steps of a layer in one launch, in thread-block clusters: values travel through distributed shared memory.

In: a layer's phases, a batch size and a GPU. Out: a `Team` of one cluster. The batch is split over clusters, which
never wait for each other. All weights stay on the chip: registers first, then shared memory.

Rewrite: for t: gemm; pointwise  -->  one kernel; units over the blocks of a cluster; st.async and mbarriers per phase

Source: Diamos et al. 2016, "Persistent RNNs: Stashing Recurrent Weights On-Chip", ICML.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

from tvm_rnn.cuda.predict import cheapest, distinct, predict
from tvm_rnn.cuda.team import Team
from tvm_rnn.schedule import Config, Knobs, Unit, template
from tvm_rnn.target import Target

CTAS = (1, 2, 4, 8, 16)
ROWS = (8, 16, 24, 32)
WARPS_U, WARPS_N, WARPS_K = (1, 2, 4, 8), (1, 2, 3, 4), (1, 2, 4, 8)
REGISTER_WORDS = (0, 32, 64, 96, 128, 160)
AHEAD = (1, 2, 3, 7)
CHOICES: dict[str, tuple[int, ...]] = {
    **{"ctas": CTAS, "rows": ROWS, "warps_u": WARPS_U, "warps_n": WARPS_N, "warps_k": WARPS_K},
    **{"register_words": REGISTER_WORDS, "ahead": AHEAD, "passes": (1, 2, 3, 4)},
}


@template("persistent_cluster_cuda", kinds=("recurrent",), targets=("cuda",))
class PersistentCluster:
    """Knobs: ctas (blocks of a cluster), rows (batch rows of a cluster), warps_u, warps_n, warps_k (how a block's
    warps share units, rows and K), register_words (weights per thread in registers; the rest is in shared memory),
    ahead, passes."""

    @staticmethod
    def configure(unit: Unit, target: Target, knob: Knobs) -> Config:
        """The geometry with the least predicted time; {} where nothing fits."""
        best = cheapest(_teams(unit, target, knob), unit, target)
        if best is None:
            return {}
        return {name: knob(name, CHOICES[name], value) for name, value in _knobs(best).items()}

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
    return {name: int(getattr(team, name)) for name in CHOICES}


def _team(unit: Any, **knobs: int) -> Team:
    return Team(unit.step, unit.precision, "cluster", stored=unit.stored, shared_words=1 << 20, **knobs)


def _teams(unit: Any, target: Target, knob: Knobs) -> Iterator[Team]:
    """Every geometry that the record, if there is one, allows."""

    def choices(name: str, every: tuple[int, ...]) -> tuple[int, ...]:
        return (knob.record[name],) if name in knob.record else every

    width = max(s.shape[0] for s in unit.step.graph.states)
    for ctas in choices("ctas", CTAS):
        for rows in choices("rows", ROWS):
            if rows > 8 and rows >= unit.batch + 8:
                continue
            for warps_u in choices("warps_u", WARPS_U):
                if ctas * warps_u * 8 >= width + ctas * 8 and (ctas, warps_u) != (1, 1):
                    continue  # blocks or warps without units
                for warps_n, warps_k in product(choices("warps_n", WARPS_N), choices("warps_k", WARPS_K)):
                    if rows % (8 * warps_n) or warps_u * warps_n * warps_k > 16:
                        continue
                    for words in choices("register_words", REGISTER_WORDS):
                        shape = {"warps_u": warps_u, "warps_n": warps_n, "warps_k": warps_k}
                        tiles = rows // (8 * warps_n)
                        # In float32 a lane sums all rows of a tile: one tile at a time.
                        more = {"ahead": 7 if tiles == 1 else 2, "passes": tiles if unit.precision == "float32" else 1}
                        yield _team(unit, ctas=ctas, rows=rows, register_words=words, **shape, **more)

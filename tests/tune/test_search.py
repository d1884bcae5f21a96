"""tune_search: it finds the best of a known landscape in few trials, tries nothing twice, and knows when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tvm_rnn.records import Choice
from tvm_rnn.schedule.schedule_template import Unit
from tvm_rnn.target import TABLE
from tvm_rnn.tune.journal import CRASHED, Outcome
from tvm_rnn.tune.search import Part, Search, Surrogate, part_of
from tvm_rnn.tune.workload import Candidate

V4 = TABLE["x86-64-v4"]
Cost = Callable[[dict[str, int]], float]


def part(width: int, knobs: dict[str, tuple[int, ...]], predicted: tuple[float, ...] = ()) -> Part:
    """All combinations; the first value of each knob is the default."""
    unit = Unit("gemm", "step", "float32", 4, width, (width,))
    configs: list[dict[str, int]] = [{}]
    for name, values in knobs.items():
        configs = [{**c, name: v} for c in configs for v in values]
    return Part(unit, tuple(Choice(unit.key, "t", 1, c) for c in configs), predicted)


def knobs_of(candidate: Candidate) -> dict[str, int]:
    return {
        f"{name}{choice.unit['sizes']['width'][0]}": value
        for choice in candidate.choices
        for name, value in choice.knobs.items()
    }


def run(search: Search, cost: Cost, budget: int, at_once: int = 8) -> list[float]:
    """Ratios in the order of the trials."""
    ratios: list[float] = []
    seen: set[str] = set()
    while len(ratios) < budget and (candidates := search.propose(min(at_once, budget - len(ratios)))):
        for candidate in candidates:
            assert candidate.key not in seen, "the same candidate twice"
            seen.add(candidate.key)
            ratios.append(cost(knobs_of(candidate)))
            failed = not math.isfinite(ratios[-1])
            search.learn(Outcome(candidate, CRASHED) if failed else Outcome(candidate, ratio=ratios[-1]))
    return ratios


WIDE = (
    part(512, {"rows": (4, 1, 2, 3, 5, 6, 8, 12), "panels": (2, 1, 4, 8), "ahead": (0, 4, 8, 16, 32), "turns": (0, 1)}),
    part(64, {"rows": (4, 1, 2, 3, 5, 6, 8, 12), "panels": (2, 1, 4, 8), "ahead": (0, 4, 8, 16, 32)}),
    part(7, {"size": (32, 64, 128, 256, 512, 1024, 2048)}),
)


def landscape(k: dict[str, int]) -> float:
    """1.0 at the defaults, 0.72 at best; a cliff where rows are many."""
    if k["rows512"] == 12 and k["panels512"] > 2:
        return math.inf
    bowl = 0.06 * (math.log2(k["rows512"] / 6)) ** 2 + 0.03 * (math.log2(k["panels512"])) ** 2
    far = 0.05 * (math.log2(k["size7"] / 512)) ** 2 / 4 + 0.02 * (k["turns512"] == 0) + 0.01 * abs(k["ahead64"] - 8) / 8
    return 0.72 + bowl + far + 0.02 * abs(math.log2(k["rows64"] / 2))


@pytest.mark.broad
@pytest.mark.parametrize("seed", (1, 0, 2))
def test_a_large_space_is_searched_in_few_trials(seed: int) -> None:
    noise = np.random.default_rng(seed)
    search = Search(WIDE, 150, seed=seed)
    assert search.size > 300_000
    run(search, lambda k: landscape(k) * math.exp(noise.normal(0, 0.01)), 150)
    assert landscape(knobs_of(search.candidate(search.best))) < 0.75


def test_it_does_better_than_random() -> None:
    random = np.random.default_rng(0)
    picks = [Candidate(tuple(p.choices[random.integers(len(p.choices))] for p in WIDE)) for _ in range(100)]
    found = min(run(Search(WIDE, 100), landscape, 100))
    assert found < min(landscape(knobs_of(candidate)) for candidate in picks)


def test_a_small_space_is_measured_whole_then_it_ends() -> None:
    parts = [part(5, {"a": (1, 2, 3)}), part(6, {"b": (0, 1), "c": (1, 2)})]
    search = Search(parts, 40)
    assert len(run(search, lambda k: 1.0 + k["a5"], 40)) == 3 * 4 - 1  # all but the defaults
    assert search.propose(8) == []


def test_it_ends_when_nothing_promises_to_be_faster() -> None:
    parts = (part(512, {"rows": tuple(range(4, 64)), "b": (0, 1)}),)
    search = Search(parts, 100)
    ratios = run(search, lambda k: 1.0 + 0.005 * k["rows512"], 100)
    assert len(ratios) < 60 and search.expected < 0.005


def test_seeds_come_first_and_what_is_no_choice_here_is_left_out() -> None:
    one = Candidate((WIDE[0].choices[77], WIDE[2].choices[3]))
    strange = Candidate((Choice(WIDE[0].unit.key, "t", 1, {"rows": 99}),))
    search = Search(WIDE, 50, seeds=[strange, one])
    first = search.propose(1)[0]
    assert knobs_of(first) == knobs_of(Candidate((WIDE[0].choices[77], WIDE[1].choices[0], WIDE[2].choices[3])))


def test_what_a_journal_holds_is_not_tried_again() -> None:
    search = Search(WIDE, 50)
    done = search.propose(8)
    again = Search(WIDE, 50)
    for candidate in done:
        again.learn(Outcome(candidate, ratio=0.9))
    keys = {c.key for c in done}
    assert not keys & {c.key for c in again.propose(8)}


def test_what_a_template_predicts_is_tried_first() -> None:
    predicted = tuple(float(abs(i - 30)) for i in range(320))
    search = Search([part(512, {"rows": tuple(range(1, 321))}, predicted)], 40)
    assert {knobs_of(c)["rows512"] for c in search.propose(3)} == {30, 31, 32}


def test_nothing_to_choose_is_no_search() -> None:
    search = Search([part(5, {"a": (1,)})], 10)
    assert search.parts == [] and search.propose(4) == [] and search.candidate(search.best) == Candidate()


def test_parts_are_ordered_by_the_work_in_them() -> None:
    assert [p.unit.width for p in Search(WIDE, 10).parts] == [512, 64, 7]


def test_a_part_has_the_default_first() -> None:
    unit = Unit("gemm", "step", "float32", 4, 64, (64,), batches=(16,))
    found = part_of(unit, V4)
    assert found.choices[0].knobs["rows"] == 6 and found.choices[0].knobs["turns"] == 1
    assert len({str(c) for c in found.choices}) == len(found.choices) > 100


def test_the_surrogate_knows_what_it_was_told_and_doubts_what_is_far() -> None:
    rng = np.random.default_rng(1)
    points = rng.random((40, 3))
    values = np.sin(3 * points[:, 0]) + 0.1 * points[:, 1]
    surrogate = Surrogate(points, values, rng)
    mean, variance, _ = surrogate.predict(points)
    deviation = np.sqrt(np.maximum(variance, 1e-10))
    assert abs(mean - values).max() < 0.05
    far = np.sqrt(surrogate.predict(points[:1] + 50)[1])
    assert far[0] > 5 * deviation.max()
    assert surrogate.picks(points, float(values.min()), 1)[1] < 0.05


def test_picks_keep_their_distance() -> None:
    rng = np.random.default_rng(2)
    points = np.array([[0.0], [1.0]])
    surrogate = Surrogate(points, np.array([0.0, 0.2]), rng)
    grid = np.linspace(0, 1, 101)[:, None]
    picks, gain = surrogate.picks(grid, 0.0, 4)
    assert len(set(picks)) == 4 and gain > 0
    distances = np.abs(grid[picks] - grid[picks].T) + np.eye(4)
    assert distances.min() > 0.05

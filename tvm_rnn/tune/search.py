"""Which candidates to measure next: a surrogate of the times learns from what was measured, and says where to look.

In: the units of a workload with all their choices, and outcomes as they come. Out: candidates, never one twice. Spaces
that fit the budget are measured whole. Larger ones begin with the nearest records, what templates predict and a random
sample; then a Gaussian process over all units' knobs proposes where the expected improvement on the best is largest,
among candidates that differ from the best in one unit, or in two.

Source: Jones, Schonlau & Welch 1998, "Efficient Global Optimization of Expensive Black-Box Functions".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_rnn.records import Choice
from tvm_rnn.schedule.schedule_template import Unit, space
from tvm_rnn.target import Target

from .journal import Outcome
from .workload import Candidate, able, choice_of

MOST_CHOICES = 4096  # of one unit that are looked at: more are sampled
POOL = 1500  # candidates that the surrogate ranks at a time
FIRST = 6  # random choices of a unit before the surrogate is asked
SLOW = 1.5  # a candidate that failed is as bad as the slowest, times this
REMEMBERED = 240  # outcomes that the surrogate is made of
NOTHING_LEFT = 0.003  # expected gain on the best, as a part of its time, below which the search ends


@dataclass(frozen=True)
class Part:
    """One unit with its choices, the default first. predicted: microseconds by the template, where it says so."""

    unit: Unit
    choices: tuple[Choice, ...]
    predicted: tuple[float, ...] = ()

    @property
    def weight(self) -> float:
        """How much time is in it, roughly: work of one row, more where it cannot wait for other rows."""
        unit = self.unit
        work = unit.gates * unit.width * (sum(unit.depths) or 1)
        return float(work * (2 if unit.region == "step" else 1))


def part_of(unit: Unit, target: Target, seed: int = 0) -> Part:
    """All choices that templates offer for a unit."""
    choices, predicted = list[Choice](), list[float]()
    for own in reversed(able(unit, target)):  # the last is the default
        for config in itertools.islice(space(own, unit, target), 16 * MOST_CHOICES):
            choices.append(choice_of(own, unit, config))
            if own.predict is not None:
                predicted.append(own.predict(unit, config, target))
    if len(predicted) != len(choices):
        predicted = []
    if len(choices) > MOST_CHOICES:
        rest = 1 + np.random.default_rng(seed).permutation(len(choices) - 1)[: MOST_CHOICES - 1]
        keep = [0, *sorted(int(i) for i in rest)]
        choices = [choices[i] for i in keep]
        predicted = [predicted[i] for i in keep] if predicted else []
    return Part(unit, tuple(choices), tuple(predicted))


Vector = tuple[int, ...]  # for each part the number of a choice


class Search:
    """Proposes candidates and learns from outcomes. budget: how many trials there will be."""

    def __init__(self, parts: Sequence[Part], budget: int, seeds: Sequence[Candidate] = (), seed: int = 0) -> None:
        self.parts = sorted((p for p in parts if len(p.choices) > 1), key=lambda p: -p.weight)
        self.budget, self.rng = budget, np.random.default_rng(seed)
        self.default: Vector = (0,) * len(self.parts)
        self._numbers = [{_text(c): i for i, c in enumerate(p.choices)} for p in self.parts]
        self._features = [_features(p.choices) for p in self.parts]
        self.costs: dict[Vector, float] = {self.default: 0.0}  # logarithms of ratios to the defaults
        self.proposed: set[Vector] = {self.default}
        self._first = self._opening(seeds)
        self.expected = math.inf  # gain that the surrogate sees in the best proposal

    @property
    def size(self) -> int:
        return math.prod(len(p.choices) for p in self.parts)

    @property
    def best(self) -> Vector:
        return min(self.costs, key=lambda v: self.costs[v])

    def candidate(self, vector: Vector) -> Candidate:
        return Candidate(tuple(p.choices[i] for p, i in zip(self.parts, vector, strict=True)))

    def vector(self, candidate: Candidate) -> Vector | None:
        """A candidate by the numbers of its choices; None where it has one that is no choice here."""
        found = []
        for part, numbers in zip(self.parts, self._numbers, strict=True):
            own = [c for c in candidate.choices if c.unit == part.unit.key]
            number = numbers.get(_text(own[0])) if own else 0
            if number is None:
                return None
            found.append(number)
        return tuple(found)

    def learn(self, outcome: Outcome) -> None:
        """Outcomes of other parts' spaces, and of other versions of templates, are passed over."""
        vector = self.vector(outcome.candidate)
        if vector is None:
            return
        self.proposed.add(vector)
        self.costs[vector] = math.log(outcome.ratio) if outcome.valid else math.inf

    def propose(self, count: int) -> list[Candidate]:
        """Up to `count` new candidates; none where there are no more, or none that promises anything."""
        found: list[Vector] = []
        while len(found) < count and self._first:
            vector = self._first.pop(0)
            if vector not in self.proposed:
                self.proposed.add(vector)
                found.append(vector)
        if len(found) < count and self.parts:
            found += self._promising(count - len(found))
        return [self.candidate(v) for v in found]

    # --- where to begin -----------------------------------------------------------------------------------------

    def _opening(self, seeds: Sequence[Candidate]) -> list[Vector]:
        known = [v for v in map(self.vector, seeds) if v is not None]
        if self.size <= self.budget:
            every = itertools.product(*(range(len(p.choices)) for p in self.parts))
            return [*known, *sorted(every, key=lambda v: sum(i != 0 for i in v))]
        first = list[Vector]()
        for at, part in enumerate(self.parts):
            count = min(FIRST, max(2, self.budget // (4 * len(self.parts))), len(part.choices) - 1)
            order = np.argsort(part.predicted, kind="stable") if part.predicted else self._sample(at, count)
            first += [self._changed(self.default, at, int(i)) for i in order[:count]]
        return [*known, *first]

    def _sample(self, at: int, count: int) -> list[int]:
        """Choices of a part far from each other: of several random ones always the farthest from those taken."""
        features, taken = self._features[at], [0]
        while len(taken) <= count:
            random = self.rng.integers(1, len(features), 16)
            far = ((features[random][:, None] - features[taken][None]) ** 2).sum(-1).min(1)
            taken.append(int(random[int(far.argmax())]))
        return taken[1:]

    @staticmethod
    def _changed(vector: Vector, at: int, number: int) -> Vector:
        return (*vector[:at], number, *vector[at + 1 :])

    # --- where to go on -----------------------------------------------------------------------------------------

    def _promising(self, count: int) -> list[Vector]:
        """By the surrogate's expected improvement; after each, as if it had come out as expected."""
        pool = self._pool()
        if not pool:
            self.expected = 0.0
            return []
        known = self._remembered()
        worst = max((c for c in self.costs.values() if math.isfinite(c)), default=0.0)
        costs = np.array([min(self.costs[v], worst + math.log(SLOW)) for v in known])
        surrogate = Surrogate(self._matrix(known), costs, self.rng)
        picks, self.expected = surrogate.picks(self._matrix(pool), float(costs.min()), count)
        if self.expected < NOTHING_LEFT:
            return []
        found = [pool[i] for i in picks]
        self.proposed.update(found)
        return found

    def _remembered(self) -> list[Vector]:
        known = sorted(self.costs, key=lambda v: self.costs[v])
        if len(known) <= REMEMBERED:
            return known
        best = REMEMBERED // 3
        rest = self.rng.permutation(len(known) - best)[: REMEMBERED - best]
        return known[:best] + [known[best + int(i)] for i in rest]

    def _pool(self) -> list[Vector]:
        """Neighbours of the best: any other choice of one unit, then random ones of two."""
        best = self.best
        near = [
            vector
            for at, part in enumerate(self.parts)
            for number in range(len(part.choices))
            if (vector := self._changed(best, at, number)) not in self.proposed
        ]
        if len(near) > POOL:
            near = [near[int(i)] for i in self.rng.permutation(len(near))[:POOL]]
        if len(self.parts) > 1:
            near += self._pairs(best, max(0, min(POOL - len(near), POOL // 4)))
        return list(dict.fromkeys(near))

    def _pairs(self, best: Vector, count: int) -> Iterator[Vector]:
        for _ in range(count):
            vector = best
            for at in self.rng.choice(len(self.parts), 2, replace=False):
                vector = self._changed(vector, int(at), int(self.rng.integers(len(self.parts[at].choices))))
            if vector not in self.proposed:
                yield vector

    def _matrix(self, vectors: Sequence[Vector]) -> np.ndarray:
        columns = [f[[v[at] for v in vectors]] for at, f in enumerate(self._features)]
        found: np.ndarray = np.concatenate(columns, axis=1)
        return found


def _text(choice: Choice) -> str:
    return f"{choice.template} {choice.version} {sorted(choice.knobs.items())}"


def _features(choices: Sequence[Choice]) -> np.ndarray:
    """[choices, features] in 0..1: each knob on a logarithmic axis, and a column per template."""
    names = sorted({name for c in choices for name in c.knobs})
    kinds = sorted({c.template for c in choices})
    rows = [
        [*(math.log2(1 + abs(c.knobs.get(n, 0))) for n in names), *(float(c.template == k) for k in kinds[1:])]
        for c in choices
    ]
    found = np.array(rows, float).reshape(len(choices), -1)
    low, high = found.min(0), found.max(0)
    return np.asarray((found - low) / np.where(high > low, high - low, 1.0))


class Surrogate:
    """A Gaussian process with a Matern 5/2 kernel, one length per feature, over logarithms of ratios."""

    TRIES = 24  # settings of the lengths that are compared; the likeliest counts

    def __init__(self, points: np.ndarray, values: np.ndarray, rng: np.random.Generator) -> None:
        self.points, self.mean = points, float(np.median(values))
        self.values = values - self.mean
        self.scale = max(float(self.values.std()), 0.02)
        best = -math.inf
        for number in range(self.TRIES):
            lengths = np.exp(rng.normal(0.0, 0.8 if number else 0.0, points.shape[1])) * 0.7
            noise = (0.01, 0.02, 0.04)[number % 3] ** 2
            likelihood = self._fit(lengths, noise)
            if likelihood > best:
                best, self.lengths, self.noise = likelihood, lengths, noise
        self._fit(self.lengths, self.noise)

    def _fit(self, lengths: np.ndarray, noise: float) -> float:
        """Returns the logarithm of the likelihood, up to a constant."""
        kernel = self._kernel(self.points, self.points, lengths)
        self.factor = np.linalg.cholesky(kernel + (noise + 1e-8) * np.eye(len(kernel)))
        self.weights = np.linalg.solve(self.factor.T, np.linalg.solve(self.factor, self.values))
        return float(-0.5 * self.values @ self.weights - np.log(np.diag(self.factor)).sum())

    def _kernel(self, a: np.ndarray, b: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        a, b = a / lengths, b / lengths
        square = (a**2).sum(1)[:, None] + (b**2).sum(1)[None] - 2 * a @ b.T
        far = np.sqrt(5 * np.maximum(square, 0.0))
        return np.asarray(self.scale**2 * (1 + far + far**2 / 3) * np.exp(-far))

    def predict(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means, variances, and what is known of each point in terms of the factor."""
        cross = self._kernel(points, self.points, self.lengths)
        half = np.linalg.solve(self.factor, cross.T)
        return np.asarray(cross @ self.weights + self.mean), self.scale**2 - (half**2).sum(0), half

    def picks(self, points: np.ndarray, best: float, count: int) -> tuple[list[int], float]:
        """The numbers of up to `count` points with the largest expected improvement on `best`, and the first one's, in
        logarithms (near 0: a part of the time). Each is chosen as if those before had come out as expected."""
        mean, variance, half = self.predict(points)
        taken, first = list[int](), 0.0
        for number in range(min(count, len(points))):
            gain = _improvement(mean, np.sqrt(np.maximum(variance, 1e-10)), best)
            gain[taken] = -1.0
            at = int(gain.argmax())
            if number == 0:
                first = float(gain[at])
            taken.append(at)
            # One more row of the factor: what this point, once known, says of all others.
            among = self._kernel(points, points[at : at + 1], self.lengths)[:, 0] - half.T @ half[:, at]
            row = among / math.sqrt(max(variance[at], 1e-10) + self.noise)
            half = np.vstack([half, row])
            variance = variance - row**2
        return taken, first


def _improvement(mean: np.ndarray, deviation: np.ndarray, best: float) -> np.ndarray:
    z = (best - mean) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + np.array([math.erf(value) for value in z / math.sqrt(2)]))
    return np.asarray((best - mean) * below + deviation * density)

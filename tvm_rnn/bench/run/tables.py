"""What a suite's benchmark found, for people: a table, Markdown for a README, geometric means.

In: the records of any suite (`*_suite.py`). Out: a `Report`, as rich table or text; `plot.py` draws it.
Nothing is computed here that is not in the records: ratios, shares of the measured ceilings, and means of ratios. Where
points differ in what was left out of the compilation, the one with all passes is compared with the others as if it were
a framework.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm_rnn.bench.measure.floors import shares
from tvm_rnn.bench.suites.gpu import SHORT
from tvm_rnn.names import markdown

from .compare import OURS, TAILS, doubts

if TYPE_CHECKING:
    from rich.table import Table

ALL_PASSES = "all passes"
SIZES = ("input", "hidden", "layers", "directions", "sizes", "steps", "batch")
NETWORK = ("cell", *SIZES, "precision", "lengths", "unaligned", "eager")
BEST = "the best of them"
SHORTER = ("cudnn-fp16",)  # who multiplies in another precision than it is asked for: never the best of them
BOUNDS = (1.0, 0.9)  # ratios below which points are counted
SHARES = {"byte_share": "bytes", "flop_share": "FLOPs"}
RATE = "x 48 kHz"
LEFT = ("point", "config", "regime", "note")  # columns of words
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """One point: the records of all frameworks by name, in the order of the run."""

    point: str
    rows: Mapping[str, Record]

    @property
    def ours(self) -> Record:
        return self.rows.get(OURS, {})

    @property
    def precision(self) -> str:
        return str(next(iter(self.rows.values()))["precision"])

    def us(self, framework: str) -> float | None:
        value = self.rows.get(framework, {}).get("us_per_step")
        return None if value is None else float(value)

    def ratio(self, framework: str) -> float | None:
        """That framework's time / ours: above 1 where ours is faster."""
        theirs, ours = self.us(framework), self.us(OURS)
        return theirs / ours if theirs and ours else None

    @property
    def best(self) -> float | None:
        """The ratio of the quickest of the others that multiply as we do."""
        others = (name for name in self.rows if name not in (OURS, ALL_PASSES, *SHORTER))
        ratios = [ratio for name in others if (ratio := self.ratio(name))]
        return min(ratios, default=None)


@dataclass(frozen=True)
class Report:
    """Records in order: facts, lines by point, and how the run ended."""

    facts: Record
    lines: tuple[Line, ...]
    stopped: Record | None = None

    @property
    def peers(self) -> list[str]:
        names = dict.fromkeys(name for line in self.lines for name in line.rows)
        return [name for name in names if name != OURS]

    @property
    def on_cpu(self) -> bool:
        """There every row has ceilings of its own, and there is one regime."""
        return self.on_audio or any("ceilings" in line.ours for line in self.lines)

    @property
    def on_audio(self) -> bool:
        """There every row says how many times as fast as 48 kHz it is."""
        return any("real_time" in line.ours for line in self.lines)

    def share(self, line: Line) -> tuple[float, str] | None:
        """How much of our time the slower of two floors takes, and which: "FLOPs" or "bytes"."""
        row = line.ours
        flops = (row.get("flops_per_row") or 0.0) * row.get("batch", 0) * row.get("steps", 0)
        found = shares({**row, "flops": flops}, row.get("ceilings") or self.facts.get("ceilings") or {})
        kind = max((name for name in SHARES if name in found), key=lambda name: found[name], default=None)
        return None if kind is None else (found[kind], SHARES[kind])

    def means(self) -> list[tuple[str, str, float, float, int]]:
        """(precision, peer, geometric mean of ratios, smallest ratio, points); precision "all" are all together; of
        several peers also the best of them at each point."""
        found = []
        precisions = list(dict.fromkeys(line.precision for line in self.lines))
        peers = [peer for peer in self.peers if peer != ALL_PASSES]
        timed = [peer for peer in peers if any(line.ratio(peer) for line in self.lines)]
        for peer in [*peers, *([BEST] if len(timed) > 1 else [])]:
            for precision in [*precisions, *(["all"] if len(precisions) > 1 else [])]:
                lines = [line for line in self.lines if precision in (line.precision, "all")]
                each = (line.best if peer == BEST else line.ratio(peer) for line in lines)
                ratios = [ratio for ratio in each if ratio is not None]
                if ratios:
                    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                    found.append((precision, peer, mean, min(ratios), len(ratios)))
        return found

    def header(self) -> list[str]:
        """Column titles: ours, then each peer's time and ratio, and, where it has several, which configuration won.

        Where a peer compiles, so do we: seconds of both.
        """
        peers = [title for peer in self.peers for title in (peer, "ratio", *self._more(peer))]
        ours = ["compile s"] if any("compile s" in self._more(peer) for peer in self.peers) else []
        gpu = [] if self.on_cpu else ["repeats", "regime"]
        rate = [RATE] if self.on_audio else []
        first = ["point", "us/step", *self._tokens(OURS), *self._tails(OURS), *rate, "spread", *ours]
        return [*first, *peers, "share", "error", *(gpu or ["note"])]

    def _tokens(self, framework: str) -> tuple[str, ...]:
        return ("tokens/s",) if any("tokens_per_second" in line.rows.get(framework, {}) for line in self.lines) else ()

    def _tails(self, framework: str) -> tuple[str, ...]:
        return TAILS if any("tail_us" in line.rows.get(framework, {}) for line in self.lines) else ()

    def _more(self, peer: str) -> list[str]:
        rows = [line.rows.get(peer, {}) for line in self.lines]
        several = any(len(row.get("configs", {})) + len(row.get("left_out", {})) > 1 for row in rows)
        compiles = ["compile s"] if any("compile_seconds" in row for row in rows) else []
        error = ["its error"] if peer in SHORTER else []
        return [*self._tokens(peer), *self._tails(peer), *(["config"] if several else []), *compiles, *error]

    def cells(self, line: Line) -> list[str]:
        """One line of the table as text, in the order of `header`."""
        ours = line.ours
        texts = [line.point, number(line.us(OURS))]
        texts += [number(ours.get("tokens_per_second"))] * len(self._tokens(OURS))
        texts += _percentiles(ours, self._tails(OURS)).values()
        texts += [number(ours.get("real_time"))] if self.on_audio else []
        texts.append(f"{ours['spread']:.1%}" if "spread" in ours else "")
        if self.header()[len(texts)] == "compile s":
            texts.append(number(ours.get("compile_seconds")))
        for peer in self.peers:
            ratio, row = line.ratio(peer), line.rows.get(peer, {})
            more = {"config": str(row.get("config", "")), "compile s": number(row.get("compile_seconds"))}
            more["its error"] = f"{row['error']:.1e}" if "error" in row else ""
            more |= _percentiles(row, self._tails(peer)) | {"tokens/s": number(row.get("tokens_per_second"))}
            texts += [number(line.us(peer)), "" if ratio is None else f"{ratio:.2f}"]
            texts += [more[title] for title in self._more(peer)]
        share = self.share(line)
        texts.append("" if share is None else f"{share[0]:.0%} {share[1]}")
        texts.append(f"{ours['error']:.1e}" if "error" in ours else "")
        if self.on_cpu:
            return [*texts, str(ours.get("reason", ""))]
        texts.append("" if "repeats_equal" not in ours else "equal" if ours["repeats_equal"] else "DIFFER")
        return [*texts, str(ours.get("regime") or "") if "us" in ours else str(ours.get("reason", ""))]

    def notes(self) -> list[str]:
        """Lines below the table: means, what it was measured on, why figures are missing."""
        lines = [
            f"{SHORT.get(name, name)}: {mean:.2f} x {peer} (geometric mean, least {least:.2f}, {_points(count)})"
            for name, peer, mean, least, count in self.means()
        ]
        ratios = [line.best for line in self.lines if line.best is not None]
        few = [f"{sum(ratio < bound for ratio in ratios)} below {bound}" for bound in BOUNDS]
        lines += [f"of {_points(len(ratios))} {', '.join(few)}"] if self.peers and ratios else []
        facts = self.facts
        if facts:
            versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
            lines.append(f"{facts['device']}; {versions}")
            if facts["ceilings"]:
                known = (f"{name.replace('_', ' ')} {value:.3g}" for name, value in facts["ceilings"].items())
                lines.append("ceilings: " + ", ".join(known))
        lines += self._reasons()
        lines += doubts(row.get("spread") for line in self.lines for row in line.rows.values())
        if self.stopped:
            lines.append(f"stopped after {self.stopped['limit']:g} s, {self.stopped['points_left']} points left")
        return lines

    def _reasons(self) -> list[str]:
        """Why peers, or some of their configurations, have no figures: each reason once, with the number of points."""
        found = []
        for peer in self.peers:
            for row in (line.rows.get(peer, {}) for line in self.lines):
                if "us_per_step" in row:
                    found += [f"{peer}, {config}: {reason}" for config, reason in row.get("left_out", {}).items()]
                elif row.get("reason"):
                    found.append(f"{peer}: {row['reason']}")
        return [f"{text} ({_points(count)})" for text, count in Counter(found).items()]

    def table(self) -> Table:
        from rich.table import Table

        caption = "\n".join(["", "ratio: that framework's time / tvm_rnn's", *self.notes()])
        table = Table(caption=caption, caption_justify="left", box=None, header_style="bold", pad_edge=False)
        for title in self.header():
            table.add_column(title, justify="left" if title in LEFT else "right", no_wrap=title != "regime")
        for line in self.lines:
            table.add_row(*self.cells(line))
        return table

    def markdown(self) -> str:
        header = self.header()
        rows = [header, ["---" if title in LEFT else "---:" for title in header], *map(self.cells, self.lines)]
        lines = ["| " + " | ".join(markdown(cell) for cell in row) + " |" for row in rows]
        return "\n".join([*lines, "", *(f"- {markdown(note)}" for note in self.notes()), ""])


def report(records: Iterable[Record], *, worst_first: bool = False) -> Report:
    """The Report of a run's points; of one that was measured twice the later records count. worst_first: points by the
    ratio of the quickest of the others, in place of the order of the run; those without one at the end."""
    facts: Record = {}
    stopped: Record | None = None
    lines: dict[str, dict[str, Record]] = {}
    for record in records:
        if record["kind"] == "facts":
            facts = record
        elif record["kind"] == "stopped":
            stopped = record
        elif "point" in record:
            lines.setdefault(record["point"], {})[record["framework"]] = record
    _compare_passes(lines.values())
    found = [Line(point, rows) for point, rows in lines.items()]
    if worst_first:
        found.sort(key=lambda line: math.inf if line.best is None else line.best)
    return Report(facts, tuple(found), stopped)


def _compare_passes(lines: Iterable[dict[str, Record]]) -> None:
    """Give points from whose compilation passes were left out, and those that have them, the time with all passes."""
    ours = [rows for rows in lines if OURS in rows]
    groups: dict[str, list[dict[str, Record]]] = {}
    for rows in ours:
        groups.setdefault(str([rows[OURS].get(name) for name in NETWORK]), []).append(rows)
    for group in groups.values():
        whole = next((rows[OURS] for rows in group if not rows[OURS].get("without")), None)
        if whole is not None and any(rows[OURS].get("without") for rows in group):
            known = {name: whole[name] for name in ("precision", "us_per_step", "reason") if name in whole}
            for rows in group:
                rows[ALL_PASSES] = {"framework": ALL_PASSES, **known}


def _percentiles(row: Record, titles: Sequence[str]) -> dict[str, str]:
    values = row.get("tail_us") or [None] * len(titles)
    return {title: number(value) for title, value in zip(titles, values, strict=True)}


def _points(count: int) -> str:
    return f"{count} point{'s' * (count > 1)}"


def number(value: float | None) -> str:
    """Three digits, or whole numbers from 100 on; nothing for None."""
    return "" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"

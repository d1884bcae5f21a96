"""What a GPU benchmark found, for people: a table, Markdown for a README, geometric means, a plot.

In: the records of `bench_gpu.py`. Out: a rich table, text, or an SVG file. Nothing is computed here that is not in the
records: ratios, shares of the measured ceilings, and means of ratios.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from .gpu_timing import floor_us
from .suites import SHORT

if TYPE_CHECKING:
    from rich.table import Table

OURS = "tvm_rnn"
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
        """Microseconds per step, None where there are none."""
        value = self.rows.get(framework, {}).get("us_per_step")
        return None if value is None else float(value)

    def ratio(self, framework: str) -> float | None:
        """That framework's time / ours: above 1 where ours is faster."""
        theirs, ours = self.us(framework), self.us(OURS)
        return theirs / ours if theirs and ours else None


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

    def share(self, line: Line) -> tuple[float, str] | None:
        """How much of our time the slower of two floors takes, and which: "arithmetic" or "memory"."""
        row, found = line.ours, self.facts.get("ceilings")
        if not found or not row.get("us"):
            return None
        flops = (row.get("flops_per_row") or 0.0) * row["batch"] * row["steps"]
        floors = floor_us({"flops": flops, "bytes": row["bytes"], "precision": row["precision"]}, found)
        name = max(floors, key=lambda key: floors[key])
        return floors[name] / row["us"], name

    def means(self) -> list[tuple[str, str, float, float, int]]:
        """(precision, peer, geometric mean of ratios, smallest ratio, points); precision "all" are all together."""
        found = []
        precisions = list(dict.fromkeys(line.precision for line in self.lines))
        for peer in self.peers:
            for precision in [*precisions, *(["all"] if len(precisions) > 1 else [])]:
                lines = [line for line in self.lines if precision in (line.precision, "all")]
                ratios = [ratio for line in lines if (ratio := line.ratio(peer)) is not None]
                if ratios:
                    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                    found.append((precision, peer, mean, min(ratios), len(ratios)))
        return found

    def header(self) -> list[str]:
        """Column titles: ours, then each peer's time and ratio."""
        peers = [title for peer in self.peers for title in (peer, "ratio")]
        return ["point", "us/step", "spread", *peers, "of floor", "error", "repeats", "regime"]

    def cells(self, line: Line) -> list[str]:
        """One line of the table as text, in the order of `header`."""
        ours = line.ours
        texts = [line.point, _number(line.us(OURS)), f"{ours['spread']:.1%}" if "spread" in ours else ""]
        for peer in self.peers:
            ratio = line.ratio(peer)
            texts += [_number(line.us(peer)), "" if ratio is None else f"{ratio:.2f}"]
        share = self.share(line)
        texts.append("" if share is None else f"{share[0]:.0%} {share[1]}")
        texts.append(f"{ours['error']:.1e}" if "error" in ours else "")
        texts.append("" if "repeats_equal" not in ours else "equal" if ours["repeats_equal"] else "DIFFER")
        return [*texts, str(ours.get("regime") or "") if "us" in ours else str(ours.get("reason", ""))]

    def notes(self) -> list[str]:
        """Lines below the table: means, what it was measured on, why figures are missing."""
        lines = [
            f"{SHORT.get(name, name)}: {mean:.2f} x {peer} (geometric mean, least {least:.2f}, {count} points)"
            for name, peer, mean, least, count in self.means()
        ]
        facts = self.facts
        if facts:
            versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
            lines.append(f"{facts['device']}; {versions}")
            lines.append(
                "ceilings: " + ", ".join(f"{n.replace('_', ' ')} {v:.3g}" for n, v in facts["ceilings"].items())
            )
        lines += self._reasons()
        if self.stopped:
            lines.append(f"stopped after {self.stopped['limit']:g} s, {self.stopped['points_left']} points left")
        return lines

    def _reasons(self) -> list[str]:
        """Why peers have no figures: each reason once, with the number of points."""
        counts: dict[str, int] = {}
        for line in self.lines:
            for peer in self.peers:
                reason = line.rows.get(peer, {}).get("reason")
                if reason and line.us(peer) is None:
                    counts[f"{peer}: {reason}"] = counts.get(f"{peer}: {reason}", 0) + 1
        return [f"{text} ({count} point{'s' * (count > 1)})" for text, count in counts.items()]

    def table(self) -> Table:
        """A rich table; the notes are its caption."""
        from rich.table import Table

        caption = "\n".join(["", "ratio: that framework's time / tvm_rnn's", *self.notes()])
        table = Table(caption=caption, caption_justify="left", box=None, header_style="bold", pad_edge=False)
        for title in self.header():
            left = title in ("point", "regime")
            table.add_column(title, justify="left" if left else "right", no_wrap=title != "regime")
        for line in self.lines:
            table.add_row(*self.cells(line))
        return table

    def markdown(self) -> str:
        """The table and the notes for a README."""
        header = self.header()
        rows = [header, ["---" if t in ("point", "regime") else "---:" for t in header], *map(self.cells, self.lines)]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes()), ""])


def report(records: Iterable[Record]) -> Report:
    """The Report of a run's records; of a point that was measured twice the later ones count."""
    facts: Record = {}
    stopped: Record | None = None
    lines: dict[str, dict[str, Record]] = {}
    for record in records:
        if record["kind"] == "facts":
            facts = record
        elif record["kind"] == "stopped":
            stopped = record
        else:
            lines.setdefault(record["point"], {})[record["framework"]] = record
    return Report(facts, tuple(Line(point, rows) for point, rows in lines.items()), stopped)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


COLOURS = ("#1b6ca8", "#e07b39", "#4c9f70", "#8d5a97", "#c44536", "#777777")
BAR, GAP, LEFT, WIDTH = 14, 10, 290, 560


def plot(found: Report) -> str:
    """Bars of microseconds per step on a logarithmic axis as an SVG picture: one group per point, shorter is better."""
    names = [OURS, *found.peers]
    values = [value for line in found.lines for name in names if (value := line.us(name))] or [1.0]
    first = math.floor(math.log10(min(values)))
    decades = max(1, math.ceil(math.log10(max(values)) - first))

    def x(value: float) -> float:
        return LEFT + WIDTH * (math.log10(value) - first) / decades

    top, parts = 40, list[str]()
    for line in found.lines:
        parts.append(_text(LEFT - 8, top + BAR * len(names) / 2 + 4, line.point, "end"))
        for index, name in enumerate(names):
            value, y = line.us(name), top + index * BAR
            if value:
                parts.append(_bar(LEFT, y, x(value) - LEFT, index) + _text(x(value) + 4, y + BAR - 4, _number(value)))
        top += BAR * len(names) + GAP
    for power in range(first, first + decades + 1):
        at = x(10.0**power)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="34" y2="{top}" stroke="#ccc"/>')
        parts.append(_text(at, top + 14, f"{10.0**power:g} us/step", "middle"))
    for index, name in enumerate(names):
        parts.append(_bar(LEFT + 110 * index, 10, 12, index) + _text(LEFT + 18 + 110 * index, 20, name))
    size = f'width="{LEFT + WIDTH + 80}" height="{top + 24}" font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>\n'


def _bar(x: float, y: float, width: float, index: int) -> str:
    colour = COLOURS[index % len(COLOURS)]
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR - 2}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'

"""A GPU benchmark as a picture: for each point how many times as long the others take, the largest first.

In: a `Report`. Out: the text of an SVG file: a row per point with a dot per framework on a logarithmic axis, where
right of 1 means that tvm_rnn is faster, and the figures beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from .tables import OURS, Line, Report, number

COLOURS = ("#e07b39", "#1b6ca8", "#4c9f70", "#8d5a97", "#c44536", "#777777")
# In pixels: a row, where the axis begins and how long it is, a column of figures, what one letter takes at most.
ROW, LEFT, WIDTH, COLUMN, LETTER, TOP = 18, 40, 480, 90, 6.6, 66
STEPS = (1, 2, 5)  # of each decade


def plot(found: Report) -> str:
    """The picture. Points where nothing can be compared are counted below it."""
    peers = [peer for peer in found.peers if any(line.ratio(peer) for line in found.lines)]
    lines = ordered(found, peers)
    ratios = [ratio for line in lines for peer in peers if (ratio := line.ratio(peer))]
    marks = ticks(min(ratios, default=1.0), max(ratios, default=1.0))
    left = LEFT + LETTER * max((len(line.point) for line in lines), default=0)
    bottom = TOP + ROW * len(lines)

    def x(ratio: float) -> float:
        first, last = math.log(marks[0]), math.log(marks[-1])
        return left + WIDTH * (math.log(ratio) - first) / (last - first)

    parts = [_text(left, 16, "time of the others / tvm_rnn's; right of 1: tvm_rnn is faster", bold=True)]
    for mark in marks:
        colour = "#555" if mark == 1 else "#ddd"
        parts.append(f'<line x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="{TOP - 8}" y2="{bottom}" stroke="{colour}"/>')
        parts += [_text(x(mark), at, f"{mark:g}", "middle") for at in (TOP - 12, bottom + 14)]
    titles = ["us/step", *peers]
    for index, title in enumerate(titles):
        parts.append(_text(left + WIDTH + COLUMN * (index + 1), TOP - 12, title, "end", _colour(index)))
    for index, peer in enumerate(peers):
        parts.append(_dot(left + 8 + 120 * index, 32, index, peer) + _text(left + 18 + 120 * index, 36, peer))
    for index, line in enumerate(lines):
        parts += _row(line, peers, TOP + ROW * index + ROW / 2, left, x)
    parts += [_text(left, bottom + 32 + 14 * index, note) for index, note in enumerate(_notes(found, lines))]
    width, height = left + WIDTH + COLUMN * len(titles) + 16, bottom + 64
    size = f'width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}"'
    style = 'font-family="sans-serif" font-size="11"'
    paper = f'<rect width="{width:.0f}" height="{height}" fill="#fff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{paper}{"".join(parts)}</svg>\n'


def ordered(found: Report, peers: Sequence[str]) -> list[Line]:
    """The points that have a ratio, by that to the first framework that has one there, the largest first."""
    keys = {line.point: next((ratio for peer in peers if (ratio := line.ratio(peer))), None) for line in found.lines}
    lines = [line for line in found.lines if keys[line.point]]
    return sorted(lines, key=lambda line: -(keys[line.point] or 0.0))


def ticks(least: float, most: float) -> list[float]:
    """Round numbers (1, 2, 5 of each decade) from below the least to above the most, 1 among them; at least two."""
    least, most = min(least, 1.0), max(most, 1.0)
    decades = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(most)) + 2)
    marks = [step * 10.0**decade for decade in decades for step in STEPS]
    first = max(mark for mark in marks if mark <= least * 1.0001)
    last = min(mark for mark in marks if mark >= most / 1.0001 and mark > first)
    return [mark for mark in marks if first <= mark <= last]


def _row(line: Line, peers: Sequence[str], y: float, left: float, place: Callable[[float], float]) -> Iterator[str]:
    ratios = [line.ratio(peer) for peer in peers]
    ends = [place(1.0), *(place(ratio) for ratio in ratios if ratio)]
    yield _text(left - 8, y + 4, line.point, "end")
    yield f'<line x1="{min(ends):.1f}" x2="{max(ends):.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="#bbb"/>'
    yield _text(left + WIDTH + COLUMN, y + 4, number(line.us(OURS)), "end")
    for index, (peer, ratio) in enumerate(zip(peers, ratios, strict=True)):
        if ratio:
            yield _dot(place(ratio), y, index, f"{peer}: {number(line.us(peer))} us/step")
            yield _text(left + WIDTH + COLUMN * (index + 2), y + 4, f"{ratio:.2f}", "end")


def _notes(found: Report, lines: Sequence[Line]) -> Iterator[str]:
    if found.facts:
        versions = ", ".join(f"{name} {version}" for name, version in found.facts["versions"].items())
        yield f"{found.facts['device']}; {versions}"
    if missing := len(found.lines) - len(lines):
        yield f"{missing} point{'s' * (missing > 1)} without a ratio"


def _colour(index: int) -> str:
    return "#000" if index == 0 else COLOURS[(index - 1) % len(COLOURS)]


def _dot(x: float, y: float, index: int, title: str) -> str:
    colour = COLOURS[index % len(COLOURS)]
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"><title>{escape(title)}</title></circle>'


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = "#000", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(text)}</text>'

"""Two explanations side by side as one HTML file, with the style of a report.

In: the facts of a `Beside` and of both explanations. Out: the text of a page: a table for each section, whose rows that
differ stand out, and a column of rooflines for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from tvm_rnn.explain.facts import BesideFacts, ExplanationFacts, PairFacts, SectionFacts

from .page import document, work


def page(found: BesideFacts, both: Sequence[ExplanationFacts], command: str = "") -> str:
    """The whole page. both: the explanations that are side by side. command: what made the page."""
    title = " beside ".join(found["names"])
    body = [f"<h1>{escape(title)}</h1>"]
    for network in found["networks"]:
        for section in network:
            body += _section(section, found["names"])
    body.append("<h2>Work, and the least time for it</h2>")
    columns = [
        f"<div><h3>{escape(name)}</h3>{''.join(part for own in one['networks'] for part in work(own))}</div>"
        for name, one in zip(found["names"], both, strict=True)
    ]
    body.append(f'<div class="columns">{"".join(columns)}</div>')
    versions = {f"{name} {v}": 0 for one in both for name, v in one["versions"].items()}
    body += ["<h2>How this page was made</h2>", f'<pre class="command">{escape(command)}</pre>' if command else ""]
    body += [f'<p class="soft">{escape(", ".join(versions))}. Charts by Vega-Lite.</p>']
    return document(title, body)


def _section(section: SectionFacts, names: Sequence[str]) -> Iterator[str]:
    title = section["title"]
    yield f"<h2>{escape(title[0].upper() + title[1:])}</h2>"
    if not section["rows"]:
        yield '<p class="soft">Nothing.</p>'
        return
    figures = any("ratio" in row for row in section["rows"])
    head = "".join(f'<th scope="col">{escape(words)}</th>' for words in (*names, *["ratio"] * figures))
    rows = "".join(_row(row, figures) for row in section["rows"])
    yield f'<div class="wide" tabindex="0"><table class="beside"><tr><td></td>{head}</tr>{rows}</table></div>'


def breakable(name: str) -> str:
    """A name that may go on in the next line behind each underscore."""
    return escape(name).replace("_", "_<wbr>")


def _row(row: PairFacts, figures: bool) -> str:
    """figures: the section has a column of ratios."""
    first, second = row["values"]
    cells = "".join(f"<td>{escape(words)}</td>" for words in (first, second))
    if figures:
        cells += f'<td class="number">{row["ratio"]:.3g}</td>' if "ratio" in row else '<td class="number"></td>'
    kind = ' class="differs"' if first != second else ""
    return f'<tr{kind}><th scope="row">{breakable(row["name"])}</th>{cells}</tr>'

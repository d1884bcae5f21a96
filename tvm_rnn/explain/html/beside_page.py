"""Two explanations side by side as one HTML file, with the style of a report.

In: a `Beside`. Out: the text of a page: a table for each section, whose rows that differ stand out, and a column of
rooflines for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from tvm_rnn.explain.facts import PairFacts, SectionFacts

from .page import document, work

if TYPE_CHECKING:
    from tvm_rnn.explain.beside import Beside


def page(found: Beside, command: str = "") -> str:
    """The whole page. command: what made it."""
    title = " beside ".join(found.names)
    body = [f"<h1>{escape(title)}</h1>"]
    for network in found.facts["networks"]:
        for section in network:
            body += _section(section, found.names)
    body.append("<h2>Work, and the least time for it</h2>")
    columns = [
        f"<div><h3>{escape(name)}</h3>{''.join(part for own in one.facts['networks'] for part in work(own))}</div>"
        for name, one in zip(found.names, (found.first, found.second), strict=True)
    ]
    body.append(f'<div class="columns">{"".join(columns)}</div>')
    versions = {f"{name} {v}": 0 for one in (found.first, found.second) for name, v in one.facts["versions"].items()}
    body += ["<h2>How this page was made</h2>", f"<pre>{escape(command)}</pre>" if command else ""]
    body += [f'<p class="soft">{escape(", ".join(versions))}. Charts by Vega-Lite.</p>']
    return document(title, body)


def _section(section: SectionFacts, names: tuple[str, str]) -> Iterator[str]:
    title = section["title"]
    yield f"<h2>{escape(title[0].upper() + title[1:])}</h2>"
    if not section["rows"]:
        yield '<p class="soft">Nothing.</p>'
        return
    head = "".join(f'<th scope="col">{escape(words)}</th>' for words in ("", *names, "ratio"))
    rows = "".join(map(_row, section["rows"]))
    yield f'<div class="wide" tabindex="0"><table class="beside"><tr>{head}</tr>{rows}</table></div>'


def _row(row: PairFacts) -> str:
    first, second = row["values"]
    cells = "".join(f"<td>{escape(words)}</td>" for words in (first, second))
    ratio = f"{row['ratio']:.3g}" if "ratio" in row else ""
    kind = ' class="differs"' if first != second else ""
    return f'<tr{kind}><th scope="row">{escape(row["name"])}</th>{cells}<td class="number">{ratio}</td></tr>'

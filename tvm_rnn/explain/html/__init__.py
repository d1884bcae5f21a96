"""The report page: an explanation as one self-contained HTML file.

In: an `Explanation`. Out: `page.py` assembles the file from equations (MathML, `graph/equations.py`), `drawing.py`
(graphs), `charts.py` (Vega-Lite) and the generated code; `beside_page.py` has two explanations side by side. Needs the
extra "report".
"""

"""Cells whose signature or sizes are wrong: each message names the class, the user's own file and line, and what to do.

In: definitions of a cell, one line of which is marked `# here` (the line of `@cell`). Out: failures where a message is
missing or poor. Errors inside equations are in `test_equation_errors.py`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tvm_rnn import CellError, ConfigError, TvmRnnError, cell, cells

# name: (definition, what the message says first, what was got, what was expected or what to do)
DEFINITIONS = {
    "unknown state": (
        '@cell(states="h s")  # here\ndef mine(x: "I", h: "H", c: "H"):\n    return h, c',
        "state s is not an argument",
        "'s'",
        "one of: c, h, x",
    ),
    "nearly the state": (
        '@cell(states="hidden")  # here\ndef mine(x: "I", hiden: "H"):\n    return hiden',
        "state hidden is not an argument",
        "'hidden'",
        "did you mean 'hiden'?",
    ),
    "default state missing": (
        '@cell  # here\ndef mine(x: "I", s: "H"):\n    return s',
        "state h is not an argument",
        "'h'",
        "one of: s, x",
    ),
    "a constant that is no argument": (
        '@cell(constants="memry")  # here\ndef mine(x: "I", h: "H", memory: "S"):\n    return h',
        "constant memry is not an argument",
        "'memry'",
        "did you mean 'memory'?",
    ),
    "a constant that is a parameter": (
        '@cell(constants="memory")  # here\ndef mine(x: "I", h: "H", *, memory: "S"):\n    return h',
        "constant memory is keyword-only",
        "",
        "keyword-only arguments are parameters",
    ),
    "a constant that is a state": (
        '@cell(states="h m", constants="m")  # here\ndef mine(x: "I", h: "H", m: "H"):\n    return h',
        "distinct names, and no states",
        "states h, m; constants m",
        'constants="memory"',
    ),
    "a constant as the output": (
        '@cell(constants="m", output="m")  # here\ndef mine(x: "I", h: "H", m: "H"):\n    return h',
        "output= must name a state",
        "'m'",
        "expected: h",
    ),
    "an initial value of a constant": (
        '@cell(constants="m", initial={"m": 1.0})  # here\ndef mine(x: "I", h: "H", m: "H"):\n    return h',
        "initial= names something unknown",
        "'m'",
        "h",
    ),
    "the same state twice": (
        '@cell(states="h h")  # here\ndef mine(x: "I", h: "H"):\n    return h, h',
        "distinct names",
        "('h', 'h')",
        'states="h c"',
    ),
    "no state": ('@cell(states="")  # here\ndef mine(x: "I"):\n    return x', "distinct names", "()", 'states="h c"'),
    "keyword-only state": (
        '@cell  # here\ndef mine(x: "I", *, h: "H"):\n    return h',
        "state h is keyword-only",
        "",
        "put it before the *",
    ),
    "no input": ('@cell  # here\ndef mine(h: "H"):\n    return h', "there is no input", "only states: h", 'x: "I"'),
    "a number as first input": (
        '@cell  # here\ndef mine(x: "", h: "H"):\n    return h',
        "first input must have an axis",
        "x[]",
        'x: "1"',
    ),
    "an input that may be absent": (
        '@cell  # here\ndef mine(x: "I?", h: "H"):\n    return h',
        "the first input has the size of what feeds the layer",
        "x[I?]",
        'x: "I"',
    ),
    "an input with a default": (
        '@cell  # here\ndef mine(x: "I=4", h: "H"):\n    return h',
        "the first input has the size of what feeds the layer",
        "x[I=4]",
        'x: "I"',
    ),
    "an axis that may be absent in one place": (
        '@cell  # here\ndef mine(x: "I", h: "N? H", *, b: "N H"):\n    return h',
        "axis N may be absent here, and not there",
        "h[N?, H] and b[N, H]",
        "write N? everywhere",
    ),
    "two defaults": (
        '@cell  # here\ndef mine(x: "I", h: "K=3", *, b: "K=4"):\n    return h + b',
        "axis K has two defaults",
        "h[K=3] and b[K=4]",
        "write one of them",
    ),
    "no annotation": (
        '@cell  # here\ndef mine(x: "I", h):\n    return h',
        "argument h needs its dims",
        "no annotation",
        '"4 H I"',
    ),
    "an annotation of another kind": (
        '@cell  # here\ndef mine(x: "I", h: float):\n    return h',
        "argument h needs its dims",
        "<class 'float'>",
        '"4 H I"',
    ),
    "a number as annotation": (
        '@cell  # here\ndef mine(x: "I", h: 4):\n    return h',
        "argument h needs its dims",
        "4",
        '"4 H I"',
    ),
    "axis T": (
        '@cell  # here\ndef mine(x: "T I", h: "H"):\n    return h',
        "axis T (steps) is implicit",
        "'T I'",
        '"4 H I"',
    ),
    "axis B": (
        '@cell  # here\ndef mine(x: "I", h: "B H"):\n    return h',
        "axis B (batch) is implicit",
        "'B H'",
        '"4 H I"',
    ),
    "axis 0": ('@cell  # here\ndef mine(x: "I", h: "0"):\n    return h', "a number of at least 1", "'0'", '"4 H I"'),
    "a fraction": ('@cell  # here\ndef mine(x: "I", h: "H/2"):\n    return h', "an axis is a name", "'H/2'", '"4 H I"'),
    "no axis at all": (
        '@cell  # here\ndef mine(x: "I", h: "H +"):\n    return h',
        "'+' is not an axis",
        "'H +'",
        '"4 H I"',
    ),
    "*args": (
        '@cell  # here\ndef mine(x: "I", h: "H", *more: "H"):\n    return h',
        "*more is not allowed",
        "",
        "name each one",
    ),
    "**kwargs": (
        '@cell  # here\ndef mine(x: "I", h: "H", **more: "H"):\n    return h',
        "**more is not allowed",
        "",
        "name each one",
    ),
    "a default": (
        '@cell  # here\ndef mine(x: "I", h: "H", *, W: "H H" = None):\n    return h',
        "argument W has a default",
        "None",
        "write the constant in the equations",
    ),
    "unknown initial": (
        '@cell(initial={"c": 1.0})  # here\ndef mine(x: "I", h: "H"):\n    return h',
        "initial= names something unknown",
        "'c'",
        "one of: h",
    ),
    "initial is no number": (
        '@cell(initial={"h": "ones"})  # here\ndef mine(x: "I", h: "H"):\n    return h',
        "initial= of h",
        "'ones'",
        "a finite number",
    ),
    "initial is no number at all": (
        '@cell(initial={"h": float("nan")})  # here\ndef mine(x: "I", h: "H"):\n    return h',
        "initial= of h",
        "nan",
        "inf or -inf or a finite number",
    ),
    "initial of other dims": (
        '@cell(initial={"h": "w"})  # here\ndef mine(x: "I", h: "H", *, w: "I"):\n    return h',
        "initial= of h: the parameter has other dims",
        "w[I]",
        "the dims of h[H]",
    ),
    "unknown init": (
        '@cell(init={"w": "ones"})  # here\ndef mine(x: "I", h: "H", *, W: "H H"):\n    return W @ h',
        "init= names something unknown",
        "'w'",
        "one of: W",
    ),
    "init of no known kind": (
        '@cell(init={"W": "orthogonal"})  # here\ndef mine(x: "I", h: "H", *, W: "H H"):\n    return W @ h',
        "init= of W",
        "'orthogonal'",
        "'uniform' or 'zeros' or 'ones' or a finite number",
    ),
    "output is an input": (
        '@cell(output="x")  # here\ndef mine(x: "I", h: "H"):\n    return h',
        "output= must name a state or an extra result",
        "'x'",
        "h",
    ),
    "output is no name": (
        '@cell(output=1)  # here\ndef mine(x: "I", h: "H"):\n    return h',
        "output= must name a state or an extra result",
        "1",
        "h",
    ),
    "a lambda": ("mine = cell(lambda x, h: h)  # here", "a lambda has no annotations", "", "write a def"),
}

DEFINITIONS["initial is too large"] = (
    f'@cell(initial={{"h": {10**400}}})  # here\ndef mine(x: "I", h: "H"):\n    return h',
    "initial= of h",
    "1000",
    "a finite number",
)

# Wrong only once sizes are known; `# here` is the line of the error.
TRACED = {
    "a parameter never used": (
        '@cell  # here\ndef mine(x: "I", h: "H", *, W: "H I", V: "H H"):\n    return W @ x + h',
        "a parameter is never used",
        "V",
        "remove it from the signature",
    ),
    "output is a scalar": (
        '@cell(states="h", output="y")\ndef mine(x: "I", h: "H"):\n    y = h[0] + 1.0  # here\n    return h, y',
        "the output must have an axis",
        "y[]",
        "output= in @cell",
    ),
    "output is a truth value": (
        '@cell(states="h", output="y")\ndef mine(x: "I", h: "H"):\n    y = h > 0.0  # here\n    return h, y',
        "the output must have an axis",
        "a truth value",
        "output= in @cell",
    ),
    "output is not returned": (
        '@cell(states="h", output="y")\ndef mine(x: "I", h: "H"):\n    return h  # here',
        "not the new states",
        "1 value(s)",
        "2: the new h, y",
    ),
    "two states without their names": (
        '@cell\ndef mine(x: "I", h: "H", c: "H"):\n    return h, c  # here',
        "not the new states",
        "2 value(s)",
        '@rnn.cell(states="h c"); without it c is an input',
    ),
    "an axis is misspelt": (
        '@cell  # here\ndef mine(x: "I", h: "H", *, W: "Hh I"):\n    return W @ x + h',
        "an axis has no size",
        "sizes for I, H",
        "did you mean H?",
    ),
    "initial= is too large for the dtype": (
        '@cell(initial={"h": 1e39})  # here\ndef mine(x: "I", h: "H"):\n    return 1.0 * h',
        "initial= of h",
        "1e+39",
        "in float32",
    ),
    "init= is too large for the dtype": (
        '@cell(init={"b": -1e39})  # here\ndef mine(x: "I", h: "H", *, b: "H"):\n    return h + b',
        "init= of b",
        "-1e+39",
        "in float32",
    ),
    "a parameter is too large": (
        '@cell  # here\ndef mine(x: "I", h: "H", *, W: "H 999999999999*I"):\n    return h',
        "W[H, 999999999999*I] is too large",
        "[4, 2999999999997]",
        "choose smaller sizes",
    ),
    "a size is missing": (
        '@cell  # here\ndef mine(x: "I", h: "H", *, W: "H K"):\n    return h',
        "an axis has no size",
        "sizes for I, H",
        "RNN(..., K=...)",
    ),
    "a default without end": (
        '@cell  # here\ndef mine(x: "I", h: "K=K"):\n    return h',
        "an axis has no size",
        "sizes for I, H",
        "RNN(..., K=...)",
    ),
    "an axis becomes empty": (
        '@cell  # here\ndef mine(x: "I", h: "H-4"):\n    return h',
        "an axis of h[H-4] is empty",
        "[0] for I=3, H=4",
        "choose other sizes",
    ),
    "division by an empty axis": (
        '@cell  # here\ndef mine(x: "I", h: "H//(I-3)"):\n    return h',
        "an axis of h[H//(I-3)] is empty",
        "[0] for",
        "choose other sizes",
    ),
}


def run(folder: Path, definition: str) -> tuple[Path, int, Any]:
    """Execute the definition as a file of the user's; the file, the marked line, and the module or the error."""
    path = folder / "user_cells.py"
    path.write_text(f"from tvm_rnn import cell\n\n{definition}\n")
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if "# here" in text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except CellError as error:
        return path, line, error
    return path, line, module


def check(text: str, where: str, what: str, got: str, rest: str) -> None:
    assert text.startswith("cell mine: ") or text.startswith("cell <lambda>: ")
    assert f"where:    {where}" in text.splitlines()[1]
    assert what in text.splitlines()[0]
    if got:
        assert got in text[text.index("got:") :].splitlines()[0]
    assert rest in text[text.index("where:") :].partition("\n")[2]


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_wrong_signature(name: str, tmp_path: Path) -> None:
    definition, what, got, rest = DEFINITIONS[name]
    path, line, error = run(tmp_path, definition)
    assert isinstance(error, CellError)
    check(str(error), f"{path}:{line}", what, got, rest)


@pytest.mark.parametrize("name", TRACED)
def test_wrong_with_these_sizes(name: str, tmp_path: Path) -> None:
    definition, what, got, rest = TRACED[name]
    path, line, module = run(tmp_path, definition)
    with pytest.raises(CellError) as caught:
        module.mine.trace({"I": 3, "H": 4})
    check(str(caught.value), f"{path}:{line}", what, got, rest)


@pytest.mark.parametrize("thing", [int, len, "h c", None, object()])
def test_what_is_no_function(thing: Any) -> None:
    with pytest.raises(CellError, match="@cell decorates a function") as caught:
        cell(states="h")(thing)
    assert 'write @cell or @cell(states="h c") above a def' in str(caught.value)


def test_states_without_their_name() -> None:
    with pytest.raises(CellError, match="decorates a function") as caught:
        cell("h c")
    assert "got:      'h c'" in str(caught.value)


def test_a_class() -> None:
    with pytest.raises(CellError, match="decorates a function"):

        @cell
        class Mine:
            pass


def test_unknown_names_of_the_zoo() -> None:
    with pytest.raises(AttributeError, match="did you mean 'lstm'"):
        _ = cells.lsmt
    with pytest.raises(ConfigError, match="did you mean 'gru'") as caught:
        cells.get("gruu")
    assert "mgu" in str(caught.value)


def test_every_error_is_of_one_family() -> None:
    assert issubclass(CellError, TvmRnnError) and issubclass(ConfigError, TvmRnnError)

"""Fixed point's rows: as C and as NumPy they give the same bits; and they round to what the equations say."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from plain_programs import HOST

from tvm_rnn.graph.ops import TABLE
from tvm_rnn.plain_c.fixed_point import HELPERS
from tvm_rnn.plain_c.fixed_rows import ROWS, CMachine, Exponents, NumpyMachine, Text, fitted

VALUES = np.array([0, 1, -1, 2, 77, -1234, 16384, -16384, 32767, -32768])
BOOLEAN = [name for name, op in TABLE.items() if op.boolean]


def cases(seed: int) -> list[tuple[str, Exponents]]:
    """Each row with some exponents."""
    rng, found = np.random.default_rng(seed), []
    for name in ROWS:
        for _ in range(6):
            out = 0 if name in BOOLEAN else int(rng.integers(-15, 31))
            found.append((name, Exponents(out, tuple(map(int, rng.integers(-15, 31, TABLE[name].arity))))))
    return found


def test_c_and_numpy_give_the_same_bits(tmp_path: Path) -> None:
    rng, lines, expected = np.random.default_rng(1), [], []
    for name, e in cases(0):
        operands = [rng.choice(VALUES, 40) for _ in e.of]
        texts = [Text(f"v{i}[k]") for i in range(len(e.of))]
        arrays = " ".join(f"static const int v{i}[] = {{{', '.join(map(str, v))}}};" for i, v in enumerate(operands))
        row = ROWS[name](CMachine(), e, *texts)
        lines.append(f'  {{ {arrays} for (int k = 0; k < 40; ++k) printf("%ld\\n", (long)({row})); }}')
        expected += [(name, e, *case) for case in zip(ROWS[name](NumpyMachine(), e, *operands), *operands, strict=True)]
    source, program = tmp_path / "rows.c", tmp_path / "rows"
    head = "#include <stdint.h>\n#include <stdio.h>\n" + "\n".join(HELPERS.values())
    source.write_text(head + "\nint main(void) {\n" + "\n".join(lines) + "\n  return 0;\n}\n")
    checked = ["-fsanitize=undefined", "-fno-sanitize-recover=undefined", "-Wno-unused-function"]
    subprocess.run([*HOST, *checked, str(source), "-o", str(program)], check=True)
    found = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    wrong = [(text, *case) for text, case in zip(found, expected, strict=True) if int(text) != int(case[2])]
    assert not wrong, wrong[:5]


@pytest.mark.parametrize("name", [n for n in ROWS if n not in BOOLEAN and n not in ("where", "floor")])
def test_results_are_the_nearest(name: str) -> None:
    """Within half a unit of the result, or of what an operand was moved by."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        of = tuple(map(int, rng.integers(5, 15, TABLE[name].arity)))
        e = Exponents(int(rng.integers(3, 12)), of)
        operands = [rng.integers(-30000, 30000, 50) for _ in of]
        real = [q * 2.0**-k for q, k in zip(operands, of, strict=True)]
        with np.errstate(all="ignore"):
            exact = TABLE[name].numpy(*real) * 2.0**e.out
        found = ROWS[name](NumpyMachine(), e, *operands)
        np.testing.assert_allclose(found, np.clip(exact, -32768, 32767), 0, 0.5 + 1e-9)


def test_numbers_are_rounded_and_cut_off() -> None:
    given = np.array([5, -5, 6, 70000, -70000])
    np.testing.assert_array_equal(fitted(given, 1), [3, -2, 3, 32767, -32768])
    np.testing.assert_array_equal(fitted(given, -2), [20, -20, 24, 32767, -32768])
    np.testing.assert_array_equal(fitted(given, 63), 0)
    text = ROWS["add"](CMachine(), Exponents(10, (10, 12)), Text("a"), Text("b"))
    assert text == "fit32(((a * 4) + b), 2)"

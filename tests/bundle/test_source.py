"""The generated source: text for C whatever is in it, and tables that no compiler has a word to say about."""

from __future__ import annotations

import subprocess
from pathlib import Path

from programs import STRICT
from tiny_module import Tiny

import tvm_rnn
from tvm_rnn.bundle.facts import Facts, read_facts
from tvm_rnn.bundle.header import header_text
from tvm_rnn.bundle.source import source_text
from tvm_rnn.names import c_string
from tvm_rnn.runtime import runtime


def test_text_for_c(tmp_path: Path) -> None:
    text = 'a"b\\c??/d\n\té\x01' + "9"
    source = tmp_path / "main.c"
    source.write_text(f"#include <stdio.h>\nint main(void) {{ fputs({c_string(text)}, stdout); return 0; }}\n")
    subprocess.run(["gcc", *STRICT, "-std=c99", source, "-o", tmp_path / "main"], check=True)
    assert subprocess.run([tmp_path / "main"], capture_output=True, check=True).stdout == text.encode()


def compile_source(facts: Facts, folder: Path) -> None:
    (folder / "tiny.h").write_text(header_text(facts))
    (folder / "module.c").write_text(source_text(facts))
    include = [f"-I{folder}", f"-I{Path(tvm_rnn.__file__).parent / 'bundle'}"]
    words = ["gcc", *STRICT, "-std=gnu11", "-c", *include, folder / "module.c", "-o", folder / "module.o"]
    subprocess.run(words, check=True)


def test_the_tables_compile_without_a_warning(tmp_path: Path) -> None:
    for number, tiny in enumerate((Tiny(), Tiny(2, 1, "float64", True), Tiny(directions=2))):
        path = tiny.write(tmp_path / f"{number}.so", target={**tiny.manifest()["target"], "features": ["avx", "sse3"]})
        facts = read_facts(path.read_bytes(), runtime.read_container(path)[0], "tiny")
        compile_source(facts, tmp_path)
        text = source_text(facts)
        assert '{"sse3", "pni"}' in text and ('{"sequence", 64,' in text) == (tiny.dtype == "float64")


def test_names_of_states_hide_nothing_that_a_quick_step_needs(tmp_path: Path) -> None:
    words = ["t", "n", "own", "call", "inputs", "states", "step", "weights", "engine_step", "engine_apart", "tiny_fits"]
    states = [{"name": word, "shapes": [[3]], "initial": 0.0} for word in words]
    direct = {"function": "direct", "packs": [], "packed_elements": 0, "blocks": True}
    path = Tiny(extra=True).write(tmp_path / "tiny.so", states=states, direct=direct)
    facts = read_facts(path.read_bytes(), runtime.read_container(path)[0], "tiny")
    compile_source(facts, tmp_path)
    assert "tiny_step_in_full(handle, batch" in source_text(facts)

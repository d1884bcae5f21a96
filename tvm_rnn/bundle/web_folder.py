"""A network as a folder for browsers and node: WebAssembly, an ES module with types, an AudioWorklet, a page.

In: a Module for wasm32 with weights, from `Module.export`. Out: a folder, whole or not at all (`whole_files.py`). The
.wasm is what a bundle's library is (`folder.py`), linked with the module's code and weights: it needs nothing else.
"""

from __future__ import annotations

import html
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tvm_rnn.cpu.c_compiler import compile_c, find_compiler, object_of, run
from tvm_rnn.module_file.schema import State
from tvm_rnn.names import c_string
from tvm_rnn.runtime import runtime
from tvm_rnn.runtime.runtime import Module
from tvm_rnn.target import Target, table_row

from ..errors import ConfigError, message
from ..locations import PACKAGE
from .facts import Array, Facts, Network, read_facts
from .folder import check_folder, write_whole
from .header import about_lines, header_text
from .source import source_text

STACK_BYTES = 1 << 20
SOURCES = PACKAGE / "bundle" / "browser"
FILES = {"network.js": "{}.js", "network.d.ts": "{}.d.ts", "worklet.js": "{}.worklet.js", "index.html": "index.html"}
API = re.compile(r"^\w+_API [^;(]*?(\w+)\(", re.M)  # the functions that a header declares
# A file's bytes as an array: C has no other way that takes no minutes for large ones.
BYTES = """\
__asm__(".section .rodata.weights,\\"\\",@\\n.globl {name}_weights\\n.p2align 6\\n.type {name}_weights,@object\\n"
        "{name}_weights:\\n.incbin \\"" {path} "\\"\\n.byte 0\\n.size {name}_weights, {size}\\n");
"""

README = """\
# {name}

{about}

| file | |
|---|---|
| `{name}.wasm` | the code with its weights; it imports nothing that is called |
| `{name}.js`, `{name}.d.ts` | an ES module that loads and runs it, in pages, workers and node; its types |
| `{name}.worklet.js` | the network as an AudioWorklet |
| `index.html` | a page that plays sounds and the microphone through it |
| `package.json` | for npm |

```js
import {{ open }} from "./{name}.js";
const network = await open();
{constants}const y = network.step({one}); // one step; y lasts until the next call
const all = network.run({many}); // 100 steps
network.reset({held});
```

See the page: `python3 -m http.server`, then open `http://localhost:8000` (the microphone and AudioWorklets need
localhost or https). Served `application/wasm` or not: either loads.
"""


def write_web(module: Module, path: str | os.PathLike[str], name: str | None = None) -> None:
    """Write a folder for browsers and node.

    module: one network for wasm32, with weights. name: of its files, and of the C functions in it; None: the folder's.
    A folder that is there already is replaced if it is empty or such a folder. Raises ConfigError (name; another
    target; a model of several networks; no weights; a folder with something else in it) and BuildError (no compiler for
    WebAssembly; cannot write).
    """
    target = module.manifest["target"]
    if target["machine"] != "wasm32":
        do = 'rnn.compile(net, "wasm32", batch=1)'
        raise ConfigError(message("web: only modules for wasm32", got=target["name"], do=do))
    if "networks" in module.manifest or module.manifest.get("model"):
        do = "compile model.networks one by one, and do in JavaScript what is around them"
        raise ConfigError(message("web: only networks alone", got="a model with operators around them", do=do))
    if module.manifest.get("draws"):
        do = "compile a cell that emits what is drawn from, and draw in JavaScript"
        raise ConfigError(message("web: a network that draws random numbers", got=module.manifest["cell"], do=do))
    folder, own = check_web(path, name)
    write_whole("the folder", folder, lambda work: _fill(module, work, own))


def check_web(path: str | os.PathLike[str], name: str | None = None) -> tuple[str, str]:
    """The folder and the name of its files, if it may be written there. Raises ConfigError."""
    files = {*FILES.values(), "{}.wasm", "README.md", "package.json"}
    return check_folder("web", path, name, lambda own: {file.format(own) for file in files})


def _fill(module: Module, folder: Path, name: str) -> None:
    place = folder / "module.so"
    module.export(place)
    data = place.read_bytes()
    place.unlink()
    facts = read_facts(data, module.manifest, name)
    _link(facts, data, folder)
    texts = texts_of(facts)
    for source, file in FILES.items():
        text = (SOURCES / source).read_text(encoding="utf-8")
        text = re.sub(r"@([A-Z_]+)@", lambda found: texts[found[1]], text)
        (folder / file.format(name)).write_text(text, encoding="utf-8")
    (folder / "package.json").write_text(package_text(facts), encoding="utf-8")
    (folder / "README.md").write_text(readme_text(facts), encoding="utf-8")


def _link(facts: Facts, data: bytes, folder: Path) -> None:
    """NAME.wasm. data: the module's file."""
    name, here = facts.name, PACKAGE / "bundle"
    row = table_row(facts.manifest.target.name) or Target("wasm32", triple="wasm32-wasi", machine="wasm32")
    compiler = find_compiler(row.elsewhere)
    _, _, _, code_bytes, start, size, _ = runtime.FOOTER.unpack(data[-runtime.FOOTER.size :])
    weights = data[start + 8 + facts.header_bytes : start + size]
    (folder / "code.o").write_bytes(object_file(data[:code_bytes]))
    (folder / "weights.bin").write_bytes(weights)
    (folder / f"{name}.h").write_text(header_text(facts), encoding="utf-8")
    (folder / "module.c").write_text(source_text(facts, linked=True), encoding="utf-8")
    path = c_string(str(folder / "weights.bin"))
    (folder / "weights.c").write_text(BYTES.format(name=name, path=path, size=len(weights) + 1), encoding="utf-8")
    options = ("-std=gnu11", f"-I{here}")
    for own in ("module", "weights"):
        compile_c(folder / f"{own}.c", folder / f"{own}.o", "-c", *options, f"-I{folder}", compiler=compiler)
    sources = ["bundle/engine", "bundle/code_linked", "cpu/c/alone"]
    sources += ["bundle/generate"] * any(network.manifest.generation is not None for network in facts.networks)
    for own in sources:
        (folder / f"{Path(own).name}.o").write_bytes(object_of(own, compiler, *options))
    exported = [*API.findall((folder / f"{name}.h").read_text()), "malloc", "free"]
    linker = ["-mexec-model=reactor", "-Wl,--gc-sections", "-Wl,--strip-all", f"-Wl,-z,stack-size={STACK_BYTES}"]
    linker += [f"-Wl,--export={function}" for function in exported]
    objects = sorted(folder.glob("*.o"))
    run([*compiler, *linker, *map(str, objects), "-o", str(folder / f"{name}.wasm"), "-lm"])
    for path_of in (*objects, *folder.glob("*.c"), folder / f"{name}.h", folder / "weights.bin"):
        path_of.unlink()


def object_file(code: bytes) -> bytes:
    """The object file of WebAssembly that a module's code begins with. Behind it: zeros, and what code says of itself.
    Linkers want it to end with its last section."""
    facts, arrays, _ = runtime.CARRIED.unpack(code[-runtime.CARRIED.size :])
    own, at = code[: len(code) - runtime.CARRIED.size - facts - arrays], 8
    while own[at:].strip(b"\0"):  # sections: a byte for the kind, the size in 7 bits a byte, the lowest first
        digits = 1
        while own[at + digits] > 127:
            digits += 1
        at += 1 + digits + sum((byte & 127) << 7 * i for i, byte in enumerate(own[at + 1 : at + 1 + digits]))
    return own[:at]


def texts_of(facts: Facts) -> Mapping[str, str]:
    """What the names between @ in the folder's texts stand for."""
    (network,) = facts.networks
    title = about_lines(facts)[0]
    several = len(network.inputs) > 1
    names = [json.dumps(own.name) for own in network.manifest.inputs]
    axes = ["".join(f"[{n}]" for n in own.shape) for own in (network.manifest.inputs[0], network.manifest.output)]
    return {
        "NAME": facts.name,
        "TITLE": title,
        "TITLE_HTML": html.escape(title),
        "VERSION": str(facts.manifest.versions["tvm_rnn"]),
        "FACTS": json.dumps(js_facts(facts), indent=2),
        "INPUTS": ", ".join(f"at[{i}].at" for i in range(len(network.inputs))),
        "STATES": "".join(f"states[{i}].at, " for i in range(len(network.states))),
        "NUMBERS": _numbers(network),
        "INPUT_TYPES": "\n".join(f"  {name}: Given;" for name in names),
        "STATE_TYPES": "\n".join(f"  {json.dumps(own.name)}: Given;" for own in network.manifest.states),
        "STEP_TYPE": "Inputs" if several else "Given | Inputs",
        "OR_NAMED": ", of each input" if several else "",
        "X_AXES": axes[0],
        "Y_AXES": axes[1],
    }


def js_facts(facts: Facts) -> Mapping[str, object]:
    """What NAME.js says of its network."""
    (network,) = facts.networks
    m = network.manifest
    inputs = [_shape(own, said.name, said.shape) for own, said in zip(network.inputs, m.inputs, strict=True)]
    states = [
        _state(own, said, m.num_directions * m.num_layers) for own, said in zip(network.states, m.states, strict=True)
    ]
    return {
        "name": facts.name,
        "title": network.title,
        "dtype": m.dtype,
        "inputs": inputs,
        "states": states,
        "output": _shape(network.output, "y", _output_shape(network)),
        "canStep": network.can_step,
        "features": list(network.manifest.target.features),
    }


def _state(own: Array, said: State, parts: int) -> dict[str, object]:
    """parts: layers and directions. A constant is given once, and is the same in all of them."""
    if math.isnan(own.initial):
        return {
            "name": said.name,
            "shape": said.shapes[0],
            "size": own.per_row // parts,
            "initial": None,
            "copies": parts,
        }
    same = len({*map(tuple, said.shapes)}) == 1
    shape = [parts, *said.shapes[0]] if same else [own.per_row]
    return {**_shape(own, said.name, shape), "initial": own.initial, "copies": 1}


def _shape(own: Array, name: str, shape: object) -> dict[str, object]:
    return {"name": name, "shape": shape, "size": own.per_row}


def _output_shape(network: Network) -> list[int]:
    first, *rest = network.manifest.output.shape or [1]
    return [network.manifest.num_directions * first, *rest]


def package_text(facts: Facts) -> str:
    """package.json."""
    name = facts.name
    package = {
        "name": name.lower().replace("_", "-"),
        "version": "0.0.1",
        "description": about_lines(facts)[0],
        "type": "module",
        "main": f"./{name}.js",
        "types": f"./{name}.d.ts",
        "exports": {
            ".": {"types": f"./{name}.d.ts", "default": f"./{name}.js"},
            "./worklet": f"./{name}.worklet.js",
            "./wasm": f"./{name}.wasm",
        },
        "files": [f"{name}.wasm", f"{name}.js", f"{name}.d.ts", f"{name}.worklet.js", "index.html"],
        "sideEffects": [f"./{name}.worklet.js"],
        "generator": f"tvm_rnn {facts.manifest.versions['tvm_rnn']}",
    }
    return json.dumps(package, indent=2) + "\n"


def readme_text(facts: Facts) -> str:
    """README.md."""
    (network,) = facts.networks
    m, numbers = network.manifest, _numbers(network)
    own = [(said.name, array.per_row) for array, said in zip(network.inputs, m.inputs, strict=True)]
    states = zip(network.states, m.states, strict=True)
    copies = m.num_directions * m.num_layers
    held = [(said.name, array.per_row // copies) for array, said in states if math.isnan(array.initial)]
    constants = _given(held, numbers, is_named=True)
    return README.format(
        name=facts.name,
        about="\n\n".join(about_lines(facts)),
        constants=f"network.reset({constants}); // what each step reads besides\n" if held else "",
        one=_given(own, numbers, is_named=len(own) > 1),
        many=_given([(name, 100 * size) for name, size in own], numbers, is_named=len(own) > 1),
        held=constants if held else "",
    )


def _numbers(network: Network) -> str:
    """The class of its arrays in JavaScript."""
    return "Float64Array" if network.c_type == "double" else "Float32Array"


def _given(arrays: Sequence[tuple[str, int]], kind: str, *, is_named: bool) -> str:
    """Arrays of so many numbers, as an argument in JavaScript."""
    values = [f"[{', '.join(['0.5'] * size)}]" if size < 4 else f"new {kind}({size}).fill(0.5)" for _, size in arrays]
    named = [f"{name}: {value}" for (name, _), value in zip(arrays, values, strict=True)]
    return f"{{ {', '.join(named)} }}" if is_named else values[0]

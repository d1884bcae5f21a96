"""runtime.py: which files load, which do not and what is then said, and use of runtime.py without the package.

In: files of the hand-written cell of tiny_cell.c, whole, damaged, or made for other machines.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tracemalloc
import weakref
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tiny_module import H, Tiny, compile_elf, elf

import tvm_rnn as rnn
from tvm_rnn.errors import BuildError, LoadError, WeightError
from tvm_rnn.module_file.manifest import serialize_weights, with_facts, write_container
from tvm_rnn.runtime import runtime
from tvm_rnn.runtime.runtime import FOOTER, load, read_container

pytestmark = pytest.mark.usefixtures("children_without_torch")

TINY = Tiny()
X = np.random.default_rng(1).normal(size=(4, 3, H)).astype("f4")
CONSTANT_PACK = [{"function": "pack_0", "weights": ["constant.0"], "offset": 0}]


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return TINY.write(tmp_path_factory.mktemp("whole") / "m.so").read_bytes()


def container(text: bytes, blob: bytes = b"", version: int = 1, code: bytes | None = None) -> bytes:
    """A file with a right checksum around whatever is wrong inside."""
    code = elf(TINY) if code is None else code
    padded = code + bytes(-len(code) % 64)
    body = padded + blob + text
    return body + struct.pack(
        "<8sIIQQQQ", b"TVMRNN\0\1", version, zlib.crc32(body), len(code), len(padded), len(blob), len(text)
    )


def refused(path: Path, data: bytes, *texts: str) -> None:
    path.write_bytes(data)
    with pytest.raises(LoadError) as error:
        load(path)
    for text in (str(path), *texts):
        assert text in str(error.value)


def works(path: Path) -> None:
    np.testing.assert_allclose(load(path)(X)[0], TINY.expected(X)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reader", [load, read_container], ids=["load", "read_container"])
def test_what_is_no_file_of_ours(tmp_path: Path, reader: Callable[[Path], Any]) -> None:
    (tmp_path / "empty.so").write_bytes(b"")
    (tmp_path / "short.so").write_bytes(b"\x7fELF")
    (tmp_path / "text.so").write_text("not a module\n" * 100)
    (tmp_path / "foreign.so").write_bytes(elf(TINY))
    (tmp_path / "tail.so").write_bytes(b"x" * 64 + container(b"{}")[-48:])
    cases = {
        "none.so": "no such file",
        "": "directory",
        "empty.so": "empty",
        "short.so": "not a complete tvm_rnn module",
        "text.so": "b'not '",
        "foreign.so": "do not end with its footer",
        "tail.so": "not a complete tvm_rnn module",
    }
    for name, text in cases.items():
        with pytest.raises(LoadError, match=text) as error:
            reader(tmp_path / name)
        assert str(tmp_path / name) in str(error.value) and "got:" in str(error.value)


def test_a_file_that_was_cut_short(tmp_path: Path, whole: bytes) -> None:
    """At 60 places, at each of the last 60 bytes, and where the parts meet."""
    ends = {*range(0, len(whole), len(whole) // 60), *range(len(whole) - 60, len(whole)), len(elf(TINY))}
    for end in sorted(ends):
        if end:
            refused(tmp_path / "m.so", whole[:end], "copy it again")
    refused(tmp_path / "m.so", whole + b"\0", "copy it again")
    refused(tmp_path / "m.so", whole[:100] + whole[164:], "is damaged")


def test_changed_bytes(tmp_path: Path, whole: bytes) -> None:
    """300 places anywhere: refused. The footer, which no checksum covers: refused, or nothing that matters changed."""
    rng, path = np.random.default_rng(0), tmp_path / "m.so"
    for place in rng.integers(0, len(whole) - 48, 300):
        data = bytearray(whole)
        data[place] ^= 1 << rng.integers(8)
        refused(path, bytes(data), "is damaged" if place > 3 else "not a complete")
    for place in range(len(whole) - 48, len(whole)):
        data = bytearray(whole)
        data[place] ^= 1 << rng.integers(8)
        path.write_bytes(data)
        try:
            manifest, _ = read_container(path)
        except LoadError:
            continue
        assert manifest == TINY.manifest() and place in range(len(whole) - 32, len(whole) - 24)
        works(path)


def test_files_of_a_newer_version(tmp_path: Path) -> None:
    text = json.dumps(TINY.manifest()).encode()
    refused(tmp_path / "m.so", container(text, version=2), "newer tvm_rnn", "container version 2", "upgrade")
    refused(tmp_path / "m.so", container(text, version=0), "is damaged")
    newer = json.dumps(TINY.manifest(format=3)).encode()
    refused(tmp_path / "m.so", container(newer), "newer tvm_rnn", "manifest format 3", "at most 2", "upgrade")


MANIFEST = json.dumps(TINY.manifest())


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", "1", "null", "\udcff", '{"format": 2}', '{"format": "2"}', '{"format": null}', "[" * 10**5],
    ids=lambda text: ascii(text[:20]),
)
def test_a_manifest_that_cannot_be_used(tmp_path: Path, text: str) -> None:
    """With a right checksum: the file is whole, but whoever wrote it was not tvm_rnn."""
    refused(tmp_path / "m.so", container(text.encode(errors="surrogateescape")), "manifest")


def safetensors(header: str, data: bytes = bytes(4 * H), size: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if size is None else size) + header.encode() + data


ENTRY = '{"decay_l0": {"dtype": "F32", "shape": [5], "data_offsets": [0, 20]}}'
BAD_BLOBS = {
    "header larger than the file": safetensors(ENTRY, size=2**63),
    "header larger than the blob": safetensors(ENTRY, size=len(ENTRY) + 21),
    "no header": b"abc",
    "not JSON": safetensors("{" * 20),
    "a list": safetensors("[]"),
    "beyond the end": safetensors(ENTRY.replace("[0, 20]", "[4, 24]")),
    "before the beginning": safetensors(ENTRY.replace("[0, 20]", "[-20, 0]")),
    "backwards": safetensors(ENTRY.replace("[0, 20]", "[20, 0]")),
    "other size": safetensors(ENTRY.replace("[5]", "[4]")),
    "negative": safetensors(ENTRY.replace("[5]", "[-1, -5]")),
    "huge": safetensors(ENTRY.replace("[5]", "[4611686018427387904, 4]")),
    "not numbers": safetensors(ENTRY.replace("[5]", '["5"]')),
    "text to repeat": safetensors(ENTRY.replace("[5]", '[1099511627776, "5", 1048576]')),
    "a gap": safetensors(ENTRY, bytes(4 * H + 4)),
    "unknown dtype": safetensors(ENTRY.replace("F32", "F33")),
    "no dtype": safetensors(ENTRY.replace("dtype", "type")),
}


@pytest.mark.parametrize("case", BAD_BLOBS)
def test_weights_that_cannot_be_read(tmp_path: Path, case: str) -> None:
    refused(tmp_path / "m.so", container(MANIFEST.encode(), BAD_BLOBS[case]), "weights", "safetensors")
    (tmp_path / "w.safetensors").write_bytes(BAD_BLOBS[case])
    module = load(TINY.write(tmp_path / "good.so"))
    with pytest.raises(WeightError, match="safetensors"):
        module.load_weights(tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"packed_elements": 5', '"packed_elements": -1', "packed_elements"),
        ('"packed_elements": 5', '"packed_elements": 5.0', "packed_elements"),
        ('"per_row": 3', '"per_row": 2', "workspace.per_row"),
        ('"rows_per_tile": 16', '"rows_per_tile": true', "rows_per_tile"),
        ('"offset": 0', '"offset": 5', "packs[0].offset"),
        ('"initial": 0.5', '"initial": 0.25', "states[0].initial"),
        ('"rows_per_tile": 16, ', "", "rows_per_tile"),
        ('"passes": []', '"passes": [], "more": 1', "more"),
    ],
    ids=lambda text: text[-20:],
)
def test_a_manifest_that_is_not_that_of_its_code(tmp_path: Path, whole: bytes, old: str, new: str, field: str) -> None:
    """With a right checksum: the code says what it was made for."""
    code, text = whole[: FOOTER.unpack(whole[-48:])[3]], MANIFEST.replace(old, new)
    assert text != MANIFEST
    refused(
        tmp_path / "m.so", container(text.encode(), code=code), f"another {field} than its code", "got:", "expected:"
    )
    assert container(MANIFEST.encode(), code=code)[:-48] == whole[: len(code)] + MANIFEST.encode()


@pytest.mark.parametrize("entry", [("F32", "I32"), ("[5]", "[5, 1]"), ("decay_l0", "decay_l1")], ids=str)
def test_arrays_that_are_not_those_of_the_code(tmp_path: Path, whole: bytes, entry: tuple[str, str]) -> None:
    code = whole[: FOOTER.unpack(whole[-48:])[3]]
    blob = safetensors(ENTRY.replace(*entry))
    refused(tmp_path / "m.so", container(MANIFEST.encode(), blob, code=code), "arrays.decay_l0", "float32 [5]")


def test_facts_that_cannot_be_read(tmp_path: Path, whole: bytes) -> None:
    code = whole[: FOOTER.unpack(whole[-48:])[3]]
    longer = code[:-24] + struct.pack("<QQ", 1 << 40, 1) + code[-8:]
    other = code.replace(b'"decay_l0":"float32', b'"decay_l0":\xff\xffloat32')
    for number, damaged in enumerate((longer, other)):
        assert damaged != code
        path = tmp_path / f"{number}.so"
        refused(path, container(MANIFEST.encode(), code=damaged), "no readable facts")


def test_files_of_checkouts_before_the_first_release(tmp_path: Path) -> None:
    """Their facts may mean something else. None was promised to load."""
    blob = serialize_weights(TINY.manifest(), TINY.weights())
    older = json.dumps(TINY.manifest(format=1)).encode()
    refused(tmp_path / "m.so", container(older, blob), "earlier tvm_rnn", "manifest format 1", "compile it again")
    refused(tmp_path / "m.so", container(MANIFEST.encode(), blob), "code that does not say which manifest")


def test_what_is_for_people_may_change(tmp_path: Path, whole: bytes) -> None:
    """An export has another error of stored weights, or none."""
    code, path = whole[: FOOTER.unpack(whole[-48:])[3]], tmp_path / "m.so"
    text = json.dumps(TINY.manifest(weight_error=0.5, created="today"))
    path.write_bytes(container(text.encode(), serialize_weights(TINY.manifest(), TINY.weights()), code=code))
    works(path)


def test_machines_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, path = TINY.manifest()["target"], tmp_path / "m.so"
    TINY.write(path, target={**good, "machine": "riscv128"})
    refused(path, path.read_bytes(), "another machine", "riscv128", "compile for this machine")
    TINY.write(path, target={**good, "features": ["sse4.1", "flying-cars"]})
    monkeypatch.setattr(runtime, "cpu_features", lambda: {"sse41", "avx512vl", "bmi1", "asimd", "avx512fp16"})
    refused(path, path.read_bytes(), "more features", "without ['flying-cars']", "compile for this machine")
    works(TINY.write(path, target={**good, "features": ["sse4.1", "bmi", "neon", "avx512vl", "avx512fp16"]}))
    monkeypatch.setattr(runtime, "cpu_features", lambda: None)  # a system that does not say
    works(TINY.write(path, target={**good, "features": ["flying-cars"]}))


def test_a_module_for_another_machine_is_exported_not_called(tmp_path: Path) -> None:
    path = TINY.write(tmp_path / "m.so", target={**TINY.manifest()["target"], "machine": "riscv128"})
    module = rnn.load(path, anywhere=True)
    assert (
        module.is_elsewhere
        and copy.copy(module).is_elsewhere
        and not load(TINY.write(tmp_path / "here.so")).is_elsewhere
    )
    weights = TINY.weights(seed=5)
    module.load_weights(weights)
    for call in (
        lambda: module(np.zeros((1, 1, H), "f4")),
        lambda: module.step(np.zeros((1, H), "f4")),
        lambda: module.threads,
    ):
        with pytest.raises(LoadError, match=r"another machine[\s\S]*riscv128"):
            call()
    module.export(tmp_path / "again.so")
    again = rnn.load(tmp_path / "again.so", anywhere=True).weights
    assert all((again[name] == value).all() for name, value in weights.items())


def test_cpu_features_are_those_of_the_kernel() -> None:
    found = runtime.cpu_features()
    if found is None:
        pytest.skip("this system does not say")
    assert found & {"sse2", "asimd", "fp"} and not any("_" in name for name in found)


def test_code_that_does_not_open(tmp_path: Path) -> None:
    def whole(code: bytes) -> bytes:
        said = with_facts(code, TINY.manifest(), TINY.weights())
        return container(MANIFEST.encode(), serialize_weights(TINY.manifest(), TINY.weights()), code=said)

    refused(tmp_path / "m.so", whole(b"\x7fELF" + bytes(500)), "cannot be loaded", "do:")
    for name, source in {
        "symbol": "extern int no_such_symbol; int* f(void) { return &no_such_symbol; }",
        "function": "int other_function(void) { return 0; }",
    }.items():
        (tmp_path / f"{name}.c").write_text(source)
        code = compile_elf([tmp_path / f"{name}.c"])
        refused(tmp_path / f"{name}.so", whole(code), "cannot be loaded", name)


def test_any_path_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "é 模 %s").mkdir()
    for name in ("m.so", "./m.so", "é 模 %s/m.so", "module", "m.so.1"):
        works(TINY.write(Path(name)))
    (tmp_path / "link.so").symlink_to(tmp_path / "m.so")
    works(Path("link.so"))
    assert load("m.so").path == load(b"m.so").path == "m.so"


def test_a_file_that_was_replaced_is_not_the_old_one(tmp_path: Path) -> None:
    """dlopen knows an open library by its path: other code at the same place must be seen all the same."""
    path, double = tmp_path / "m.so", Tiny(dtype="float64")
    old = load(TINY.write(path))
    new = load(double.write(path))
    x = X.astype("f8")
    np.testing.assert_allclose(new(x)[0], double.expected(x)[0])
    np.testing.assert_allclose(old(X)[0], TINY.expected(X)[0], rtol=1e-5, atol=1e-6)
    new.export(path)
    np.testing.assert_array_equal(load(path)(x)[0], new(x)[0])


def test_what_was_checked_is_what_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process puts a file in place of the one that was read, before its code is opened or meanwhile."""
    path, double = tmp_path / "m.so", Tiny(dtype="float64")
    other = double.write(tmp_path / "other.so").read_bytes()

    def replace() -> None:
        (tmp_path / "new.so").write_bytes(other)
        os.replace(tmp_path / "new.so", path)

    for module, name in ((runtime, "_open_library"), (tvm_ffi, "load_module")):
        TINY.write(path)
        whole, done = getattr(module, name), []

        def late(*given: Any, whole: Any = whole, done: list[bool] = done, **how: Any) -> Any:
            if not done:
                done.append(True)
                replace()
            return whole(*given, **how)

        with monkeypatch.context() as patch:
            patch.setattr(module, name, late)
            loaded = load(path)
        np.testing.assert_allclose(loaded(X)[0], TINY.expected(X)[0], rtol=1e-5, atol=1e-6)


def test_a_digest_is_that_of_the_bytes_that_run(tmp_path: Path) -> None:
    path = TINY.write(tmp_path / "m.so")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    np.testing.assert_allclose(load(path, sha256=digest.upper())(X)[0], TINY.expected(X)[0], rtol=1e-5, atol=1e-6)
    for wrong in ("", digest[:-1], "0" * 64):
        with pytest.raises(LoadError, match=f"another file than the one[\\s\\S]*SHA-256 {digest}"):
            load(path, sha256=wrong)


@pytest.mark.parametrize("reader", [load, read_container], ids=["load", "read_container"])
def test_pipes_devices_and_what_is_no_path(tmp_path: Path, reader: Callable[[Any], Any]) -> None:
    os.mkfifo(tmp_path / "pipe.so")
    for given in (tmp_path / "pipe.so", "/dev/null", "/dev/zero"):
        with pytest.raises(LoadError, match="no regular file"):
            reader(given)
    for given in (None, 0, 2.5, "a\0b"):
        with pytest.raises(LoadError, match=r"no path|cannot read"):
            reader(given)
    with pytest.raises(LoadError, match=r"absent.so[\s\S]*no such file[\s\S]*check the path"):
        reader(tmp_path / "absent.so")


def test_paths_of_any_bytes(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/m\xff.so"
    Path(os.fsdecode(path)).write_bytes(TINY.write(tmp_path / "m.so").read_bytes())
    for given in (path, os.fsdecode(path)):
        np.testing.assert_allclose(load(given)(X)[0], TINY.expected(X)[0], rtol=1e-5, atol=1e-6)


def test_a_footer_that_lies_about_sizes_is_refused_before_they_are_used(tmp_path: Path) -> None:
    whole = bytearray(TINY.write(tmp_path / "m.so").read_bytes())
    magic, version, crc, *_, size, text = FOOTER.unpack(whole[-FOOTER.size :])
    with open(tmp_path / "large.so", "wb") as file:
        file.write(whole[:64])
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(FOOTER.pack(magic, version, crc, 64, 1 << 29, size, text))
    tracemalloc.start()
    try:
        with pytest.raises(LoadError, match="parts of 64, "):
            load(tmp_path / "large.so")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_dropped_module_is_freed_at_once(tmp_path: Path) -> None:
    module = load(TINY.write(tmp_path / "m.so"))
    y, _ = module(X)
    gc.disable()
    try:
        gone = weakref.ref(module)
        del module
        assert gone() is None
    finally:
        gc.enable()
    np.testing.assert_allclose(y, TINY.expected(X)[0], rtol=1e-5, atol=1e-6)


def test_export_writes_the_present_weights(tmp_path: Path) -> None:
    module = load(TINY.write(tmp_path / "m.so"))
    new = TINY.weights(seed=3)
    module.load_weights(new)
    module.export(tmp_path / "n.so")
    manifest, weights = read_container(tmp_path / "n.so")
    assert manifest == module.manifest
    np.testing.assert_array_equal(weights["decay_l0"], new["decay_l0"])
    np.testing.assert_array_equal(load(tmp_path / "n.so")(X)[0], module(X)[0])
    with pytest.raises(BuildError, match="no directory"):
        module.export(tmp_path / "none" / "n.so")


def test_a_module_without_weights_asks_for_them(tmp_path: Path) -> None:
    """Constants of the equations stay with the module; they are nobody's weights."""
    constant = {"constant.0": np.linspace(0, 0.5, H, dtype="f4")}
    module = load(TINY.write(tmp_path / "m.so", constant, packs=CONSTANT_PACK))
    assert module.weights == {} and module.init_state(2)["h"].shape == (1, 2, H)
    for call in (module, lambda x: module.step(x[0])):
        with pytest.raises(WeightError, match=r"no weights(.|\n)*decay_l0(.|\n)*load_weights first"):
            call(X)
    module.export(tmp_path / "again.so")
    for path in (tmp_path / "m.so", tmp_path / "again.so"):
        module = load(path)
        module.load_weights(TINY.weights())
        assert module.weights.keys() == {"decay_l0"}
        expected = TINY.expected(X, weights={"": constant["constant.0"]})[0]
        np.testing.assert_allclose(module(X)[0], expected, rtol=1e-5, atol=1e-6)
        module.export(path)
        assert read_container(path)[1].keys() == {"decay_l0", "constant.0"}
    none = load(TINY.write(tmp_path / "none.so", {}))
    assert read_container(tmp_path / "none.so")[1] == {}
    none.load_weights(TINY.weights())
    np.testing.assert_allclose(none(X)[0], TINY.expected(X)[0], rtol=1e-5, atol=1e-6)


def test_a_cell_without_weights_is_ready(tmp_path: Path) -> None:
    constant = {"constant.0": TINY.weights()["decay_l0"]}
    for arrays, packs in ((constant, CONSTANT_PACK), ({}, [])):
        write_container(elf(TINY), TINY.manifest(weights=[], packs=packs), arrays, tmp_path / "m.so")
        y, _ = load(tmp_path / "m.so")(X)
        expected = TINY.expected(X, weights={"": constant["constant.0"] * bool(packs)})[0]
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_weights_are_views_of_the_file(tmp_path: Path) -> None:
    tiny = Tiny(2)
    _, weights = read_container(tiny.write(tmp_path / "m.so"))
    for name, array in tiny.weights().items():
        np.testing.assert_array_equal(weights[name], array, strict=True)
        assert not weights[name].flags.owndata
    before = (tmp_path / "m.so").read_bytes()
    weights["decay_l0"][:] = 0  # private: never written back
    assert (tmp_path / "m.so").read_bytes() == before
    assert serialize_weights(tiny.manifest(), tiny.weights()) in before


def alone(folder: Path, code: str, *arguments: str) -> str:
    """What Python prints that sees runtime.py in a folder, numpy and tvm_ffi, and nothing of tvm_rnn."""
    shutil.copy(runtime.__file__, folder / "runtime.py")
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_file_beside_a_module_is_enough(tmp_path: Path) -> None:
    TINY.write(tmp_path / "m.so")
    np.save(tmp_path / "x.npy", X)
    code = """
import sys, numpy as np, runtime
manifest, weights = runtime.read_container("m.so")
assert manifest.cell == "tiny" and "tvm_ffi" not in sys.modules
m, x = runtime.load("m.so"), np.load("x.npy")
y, state = m(x)
np.save("y.npy", y)
m.load_weights(m.weights)
m.step(x[0], m.init_state(batch=3))
wrong = {runtime.InputError: lambda: m(x[0]), runtime.WeightError: lambda: m.load_weights({}),
         runtime.LoadError: lambda: runtime.load("x.npy"), runtime.TvmRnnError: lambda: m.export("n.so")}
for error, call in wrong.items():
    try:
        call()
    except error as caught:
        last = str(caught)
        assert isinstance(caught, runtime.TvmRnnError) and "got:" in last
    else:
        raise AssertionError(error)
assert "tvm" not in sys.modules and "tvm_rnn" not in sys.modules
print(last)
"""
    assert "runtime.py alone cannot export" in alone(tmp_path, code)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), TINY.expected(X)[0], rtol=1e-5, atol=1e-6)


def test_repr_says_what_a_module_is(tmp_path: Path) -> None:
    made = repr(load(Tiny(1, 2).write(tmp_path / "repr.so")))
    assert made == "<Module tiny: x [5] -> h [5], 1 layer in both directions, float32 on tiny>"


@pytest.mark.parametrize(("name", "most"), [("runtime", 40), ("tvm_rnn.runtime", 120)])
def test_few_modules_are_imported(tmp_path: Path, name: str, most: int) -> None:
    """Beyond numpy's own; none of the compiler, of TVM or of torch, which take seconds."""
    code = f"""
import sys, numpy
before = set(sys.modules)
import {name}
print(*set(sys.modules) - before)
"""
    found = alone(tmp_path, code).split()
    assert name in found and len(found) <= most, sorted(found)
    assert not {"tvm", "tvm_ffi", "torch", "msgspec", "tvm_rnn.passes.pipeline"} & set(found)


def test_loading_leaves_no_files_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.tempfile, "tempdir", str(tmp_path / "t"))
    os.mkdir(tmp_path / "t")
    works(TINY.write(tmp_path / "no_suffix"))
    assert not os.listdir(tmp_path / "t")


def changed(path: Path, how: str) -> None:
    """Change a module's file where it is, or remove it."""
    data = path.read_bytes()
    if how == "removed":
        path.unlink()
    elif how == "cut":
        os.truncate(path, len(data) // 2)
    else:
        weights = {name: 2 * value for name, value in TINY.weights().items()}
        other = TINY.write(path.with_name("other.so"), weights=weights).read_bytes()
        with open(path, "r+b") as file:
            file.write(other)


EXPORT = """
import os, sys
from tvm_rnn.runtime.runtime import load
module = load("m.so")
print("loaded", flush=True)
sys.stdin.read()
try:
    module.export("copy.so")
except Exception as error:
    print(type(error).__name__, error)
sys.stdout.flush()
os._exit(0)  # no clean-up: dlclose reads code that may be gone
"""


@pytest.mark.parametrize("how", ["other", "cut", "removed"])
def test_the_bytes_that_were_checked_are_exported_or_none(tmp_path: Path, how: str) -> None:
    path = TINY.write(tmp_path / "m.so")
    data = path.read_bytes()
    command, pipe = [sys.executable, "-c", EXPORT], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline() == "loaded\n"
        changed(path, how)
        said, _ = process.communicate()
    if how == "removed":
        assert said == "" and (tmp_path / "copy.so").read_bytes() == data
    else:
        assert said.startswith("BuildError") and "changed in place" in said and not (tmp_path / "copy.so").exists()


@pytest.mark.parametrize("how", ["other", "cut", "removed"])
def test_what_had_the_digest_stays(tmp_path: Path, how: str) -> None:
    path, copied = TINY.write(tmp_path / "m.so"), tmp_path / "copy.so"
    data = path.read_bytes()
    module = load(path, sha256=hashlib.sha256(data).hexdigest())
    changed(path, how)
    module.export(copied)
    assert copied.read_bytes() == data
    np.testing.assert_allclose(module(X)[0], TINY.expected(X)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("path", ["", "a\0b", "m" * 300, "none/m.so", "folder/", 3])
def test_export_to_what_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any) -> None:
    module = load(TINY.write(tmp_path / "m.so"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BuildError, match=r"cannot write(.|\n)*do:"):
        module.export(path)
    assert os.listdir(tmp_path) == ["m.so"]


def lying_weights(path: Path, header: bytes, size: int | None = None, end: int = 0) -> Path:
    """A sparse file of weights of `end` bytes, whose header says that it has that size."""
    with open(path, "wb") as file:
        file.write((len(header) if size is None else size).to_bytes(8, "little") + header)
        file.truncate(max(end, file.tell()))
    return path


GIB = 1 << 30
ONE = b'"decay_l0": {"dtype": "F32", "shape": [5], "data_offsets": [0, 20]}'
LYING: dict[str, tuple[str, bytes, int | None, int]] = {
    "header of all": ("header of", b"", 8 * GIB - 8, 8 * GIB),
    "header beyond": ("header of", b"{}", 2**63, 100),
    "no header": ("header of", b"", 9, 0),
    "twice": ("twice", b"{" + ONE + b", " + ONE + b"}", None, 8 + 2 + 2 * len(ONE) + 2 + 20),
    "many axes": ("axes", b"{" + ONE.replace(b"5", b", ".join([b"9" * 18] * 5000)) + b"}", None, 100_000),
    "overlap": ("do not fill", b"{" + ONE + b", " + ONE.replace(b"decay_l0", b"b") + b"}", None, 500),
}


@pytest.mark.parametrize("kind", LYING)
def test_weights_that_lie_about_their_sizes(tmp_path: Path, kind: str) -> None:
    module, (said, header, size, end) = load(TINY.write(tmp_path / "m.so")), LYING[kind]
    path = lying_weights(tmp_path / "w.safetensors", header, size, end)
    tracemalloc.start()
    try:
        with pytest.raises(WeightError, match=said) as caught:
            module.load_weights(path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 1 << 23 and len(str(caught.value)) < 1000


def test_weights_are_compared_before_they_are_copied(tmp_path: Path) -> None:
    module = load(TINY.write(tmp_path / "m.so"))
    for said, own in (("does not fit", "decay_l0"), ("wrong names", "other")):
        header = f'{{"{own}": {{"dtype": "F32", "shape": [{GIB}], "data_offsets": [0, {4 * GIB}]}}}}'.encode()
        path = lying_weights(tmp_path / "w.safetensors", header, None, 8 + len(header) + 4 * GIB)
        tracemalloc.start()
        try:
            with pytest.raises(WeightError, match=said):
                module.load_weights(path)
            assert tracemalloc.get_traced_memory()[1] < 1 << 23
        finally:
            tracemalloc.stop()

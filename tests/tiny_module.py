"""A module without the compiler: tiny_cell.c, pool.c and ffi.c compiled by gcc, wrapped as a container.

In: the form of the module (layers, directions, dtype, extra input and state). Out: its file, manifest and weights, and
a NumPy version of the same cell to compare with. Used by the tests of runtime.py, module_file/manifest.py and pool.c.
"""

from __future__ import annotations

import functools
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

H = 5
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Tiny:
    """h = in + decay * h; with `extra` also an input a (a scalar) and a state m whose layers differ in shape."""

    layers: int = 1
    directions: int = 1
    dtype: str = "float32"
    extra: bool = False

    @property
    def names(self) -> list[str]:
        suffixes = ["", "_reverse"][: self.directions]
        return [f"decay_l{layer}{suffix}" for layer in range(self.layers) for suffix in suffixes]

    def weights(self, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        return {name: rng.uniform(-0.9, 0.9, H).astype(self.dtype) for name in self.names}

    def manifest(self, **changes: Any) -> dict[str, Any]:
        inputs = [{"name": "x", "shape": [H]}, {"name": "a", "shape": []}]
        m_shapes = [[2 + layer] for layer in range(self.layers)]
        states = [{"name": "h", "shapes": [[H]] * self.layers, "initial": 0.5}]
        states += [{"name": "m", "shapes": m_shapes, "initial": 0.0}] if self.extra else []
        packs = [{"function": f"pack_{i}", "weights": [name], "offset": i * H} for i, name in enumerate(self.names)]
        target = {"name": "tiny", "kind": "llvm", "mcpu": "", "machine": platform.machine(), "features": []}
        return {
            "format": 2,
            "versions": {"tvm_rnn": "0", "tvm": "0", "tvm_ffi": "0"},
            "cell": "tiny",
            "dtype": self.dtype,
            "num_layers": self.layers,
            "num_directions": self.directions,
            "inputs": inputs if self.extra else inputs[:1],
            "output": {"name": "h", "shape": [H]},
            "states": states,
            "weights": [{"name": name, "shape": [H]} for name in self.names],
            "target": target,
            "entry_points": ["sequence", "step", "init_state"],
            "batch": [1],
            "packs": packs,
            "packed_elements": len(packs) * H,
            "workspace": {"fixed": 7, "per_row": 3, "per_tile_row": 5, "per_sequence_row": 2},
            "rows_per_tile": 16,
            "flops_per_row": 2.0 * H,
            "templates": [],
            "passes": [],
            "created": "2026-01-01T00:00:00Z",
            **changes,
        }

    def write(self, path: Path, weights: dict[str, np.ndarray] | None = None, **changes: Any) -> Path:
        from tvm_rnn.module_file.manifest import write_container

        write_container(elf(self), self.manifest(**changes), self.weights() if weights is None else weights, path)
        return path

    def expected(
        self,
        x: np.ndarray,
        h: np.ndarray | None = None,
        lengths: Any = None,
        reset: np.ndarray | None = None,
        weights: dict[str, np.ndarray] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """(y, final h) of the module without `extra`, step by step in NumPy."""
        T, B, _ = x.shape
        rows = self.layers * self.directions
        h = np.full((rows, B, H), 0.5, x.dtype) if h is None else h.copy()
        lengths = [T] * B if lengths is None else lengths
        decays = list((weights or self.weights()).values())
        y = np.zeros((T, B, self.directions, H), x.dtype)
        for b in range(B):
            for d in range(self.directions):
                for s in range(int(lengths[b])):
                    t = s if d == 0 else int(lengths[b]) - 1 - s
                    mark = t + d
                    if reset is not None and mark < T and reset[mark, b]:
                        h[d :: self.directions, b] = 0.5
                    value = x[t, b]
                    for row in range(d, rows, self.directions):
                        value = h[row, b] = value + decays[row] * h[row, b]
                    y[t, b, d] = value
        return y.reshape(T, B, -1), h


def include_flags() -> list[str]:
    import tvm_ffi

    return [f"-I{p}" for p in (tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path())]


def compile_elf(sources: list[Path], *options: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "code.so")
        command = ["gcc", "-O2", "-fPIC", "-shared", *options, *include_flags(), *map(str, sources), "-o", str(output)]
        subprocess.run([*command, "-lpthread", "-ldl"], check=True)
        return output.read_bytes()


@functools.cache
def elf(tiny: Tiny) -> bytes:
    from tvm_rnn.locations import PACKAGE

    linked = [PACKAGE / "cpu" / "c" / name for name in ("pool.c", "ffi.c")]
    real = {"float32": "float", "float64": "double"}[tiny.dtype]
    sizes = [f"-DLAYERS={tiny.layers}", f"-DDIRECTIONS={tiny.directions}", f"-DEXTRA={int(tiny.extra)}", f"-DH={H}"]
    return compile_elf([HERE / "tiny_cell.c", *linked], f"-DREAL={real}", *sizes)


def without_the_package(program: str, folder: Path) -> str:
    """What a program prints that runs in a folder, where files of the runtime are, without tvm_rnn, TVM and torch."""
    text = f"import sys; sys.modules.update(tvm_rnn=None, tvm=None, torch=None)\n{program}"
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env={"PATH": ""})
    assert done.returncode == 0, done.stderr
    return done.stdout

"""Keras models as data: what a .keras file holds, or a layer or model in memory says of itself.

In: a path, or an object of Keras. Out: a `Source`: the config, and each layer's arrays in Keras's order; else
ConfigError.

A .keras file is a zip of config.json and model.weights.h5. Both are read as data: nothing is unpickled, no class is
looked up, no Lambda is run; HDF5 may not point outside of its file, sizes are compared with what is stored, and what
is unpacked and read is counted (`budget.py`).
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from tvm_rnn.network.origin import sha256_of

from ..budget import Spending
from ..errors import ConfigError, message, not_installed
from .fields import Fields, Unreadable, items, mapping

if TYPE_CHECKING:
    import h5py

Array = np.ndarray
Config = Fields  # of a layer, as Keras serializes it

CONFIG, WEIGHTS = "config.json", "model.weights.h5"
# HDF5 has an error for every damage; an address that is no number of C is an OverflowError.
DAMAGE = (RuntimeError, OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError)


@dataclass
class Source:
    """A model or a layer. config: as Keras serializes it, with class_name and config. arrays: of each layer by its
    name, where they are in memory; else `file` has them."""

    config: Config
    path: str | None = None
    sha256: str | None = None
    arrays: Mapping[str, Sequence[Array]] = field(default_factory=dict)
    file: h5py.File | None = None
    spending: Spending = field(default_factory=Spending)

    def weights(self, name: str, layer: Config, group: str) -> list[Array]:
        """A layer's arrays in Keras's order. group: its place among the layers in a file. Raises Unreadable."""
        if self.file is None:
            return [np.asarray(a) for a in self.arrays.get(name, ())]
        try:
            paths = [f"layers/{group}/{path}vars" for path in paths_of(layer)]
            return [a for path in paths for a in _variables(self.file, path, self.spending)]
        except DAMAGE as reason:
            raise Unreadable(f"its arrays cannot be read: {reason}") from None


def snake_case(name: str) -> str:
    """A class's name as Keras writes it in a file: SimpleRNN is simple_rnn."""
    words = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower()


def groups_of(names: Sequence[str]) -> list[str]:
    """What layers of these classes are called in a file, in their order: lstm, dense, lstm_1."""
    seen: dict[str, int] = {}
    found = []
    for name in map(snake_case, names):
        number = seen.get(name, -1) + 1
        seen[name] = number
        found.append(f"{name}_{number}" if number else name)
    return found


def paths_of(layer: Config) -> list[str]:
    """Where a layer's variables are below it, each path ending in "/" or empty, in the order of get_weights()."""
    kind, config = layer.get("class_name"), mapping(layer.get("config"))
    if kind in ("SimpleRNN", "LSTM", "GRU"):
        return ["cell/"]
    if kind == "RNN":
        cell = mapping(config.get("cell"))
        if cell.get("class_name") == "StackedRNNCells":
            names = [str(mapping(c).get("class_name", "")) for c in items(mapping(cell.get("config")).get("cells"))]
            return [f"cell/cells/{name}/" for name in groups_of(names)]
        return ["cell/"]
    if kind == "Bidirectional":
        return ["forward_layer/cell/", "backward_layer/cell/"]
    if kind == "MultiHeadAttention":
        return [f"{name}_dense/" for name in ("query", "key", "value", "output")]
    return ["layer/"] if kind == "TimeDistributed" else [""]


# --- files -----------------------------------------------------------------------------------------------------------


def read_file(path: str) -> Source:
    """A .keras file. Raises ConfigError where it is none, is damaged, or wants what a file of data may not."""
    if not os.path.isfile(path):
        raise ConfigError(message("no such Keras file", got=path, do="check the path"))
    try:
        import h5py
    except ImportError:
        raise ConfigError(not_installed("h5py")) from None
    spending = Spending(path, os.path.getsize(path))
    try:
        with zipfile.ZipFile(path) as archive:
            text, data = (_member(archive, name, spending) for name in (CONFIG, WEIGHTS))
        config = spending.json(text, CONFIG)
        file = h5py.File(io.BytesIO(data), "r")
    except ConfigError:
        raise
    except (zipfile.BadZipFile, OSError, KeyError, ValueError, NotImplementedError, EOFError) as reason:
        raise _unreadable(path, str(reason)) from None
    except Exception as reason:  # zlib.error, and whatever else a damaged archive makes of its reader
        raise _unreadable(path, f"{type(reason).__name__}: {reason}") from reason
    if not isinstance(config, Mapping):
        raise _unreadable(path, f"{CONFIG} holds a {type(config).__name__}")
    return Source(config, path, sha256_of(path), file=file, spending=spending)


def _unreadable(path: str, got: str) -> ConfigError:
    do = "write it with model.save('name.keras') of Keras 3; older .h5 files: load and save them there first"
    return ConfigError(message("not a .keras file", where=path, got=got, do=do))


def _member(archive: zipfile.ZipFile, name: str, spending: Spending) -> bytes:
    """A member's bytes: never more than the archive says, which is counted before they are unpacked."""
    size = archive.getinfo(name).file_size
    spending.take(f"{name}, which unpacks to {size} bytes", bytes=size)
    return archive.read(name)


def _variables(file: h5py.File, path: str, spending: Spending) -> list[Array]:
    """The arrays 0, 1, ... of a group; none where there is no such group. Raises Unreadable."""
    group = _inside(file, path)
    if group is None:
        return []
    names = sorted((n for n in group if n.isdecimal()), key=int)
    spending.take(path, nodes=len(names))
    return [_array(group, name, f"{path}/{name}", spending) for name in names]


def _inside(file: h5py.File, path: str) -> h5py.Group | None:
    """The group at a path, by links within this file alone."""
    import h5py

    group = file
    for part in path.split("/"):
        if not isinstance(group, h5py.Group) or part not in group:
            return None
        if not isinstance(group.get(part, getlink=True), h5py.HardLink):
            raise Unreadable(f"{path!r} is a link to elsewhere")
        group = group[part]
    return group if isinstance(group, h5py.Group) else None


def _array(group: h5py.Group, name: str, path: str, spending: Spending) -> Array:
    import h5py

    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise Unreadable(f"{path!r} is a link to elsewhere")
    found = group[name]
    if not isinstance(found, h5py.Dataset) or found.is_virtual or found.external:
        raise Unreadable(f"{path!r} is no array of this file")
    if found.dtype.kind not in "fiu" or found.dtype.itemsize > 8:
        raise Unreadable(f"{path!r} is of dtype {found.dtype}")
    wanted, stored = math.prod(found.shape) * found.dtype.itemsize, found.id.get_storage_size()
    if found.chunks is not None or stored < wanted:
        raise Unreadable(f"{path!r} has shape {list(found.shape)} and {stored} bytes")
    spending.take(f"{path!r} of {wanted} bytes", bytes=wanted)  # one array may have many names
    return np.asarray(found[()])


# --- objects ---------------------------------------------------------------------------------------------------------


@runtime_checkable
class Layer(Protocol):
    """A layer or a model of Keras."""

    name: str

    def get_config(self) -> dict[str, object]: ...
    def get_weights(self) -> list[Array]: ...


def describe(thing: object) -> Source:
    """A layer or model in memory. Raises ConfigError for what is none of Keras's own, or has no weights yet."""
    kind = type(thing)
    own = kind.__module__.split(".")[0] in ("keras", "tf_keras", "tensorflow")
    if not own or not isinstance(thing, Layer):
        expected = "a built-in layer or a Sequential or Functional model of Keras 3, or the path of a .keras file"
        got = f"{kind.__module__}.{kind.__qualname__}"
        raise ConfigError(message("from_keras: not a layer of Keras", got=got, expected=expected))
    if not getattr(thing, "built", True):
        do = "call it on an array, or layer.build((None, None, features))"
        raise ConfigError(message("from_keras: this layer has no weights yet", got=kind.__name__, do=do))
    config = thing.get_config()
    layers = getattr(thing, "layers", ()) if "layers" in config else [thing]
    text = json.dumps({"class_name": kind.__name__, "config": config}, default=str)
    arrays = {layer.name: layer.get_weights() for layer in layers}
    spending = Spending(size=sum(a.nbytes for own in arrays.values() for a in own))
    return Source(json.loads(text), arrays=arrays, spending=spending)

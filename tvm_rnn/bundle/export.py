"""What `Module.export` writes: a module's file, a folder for programs without Python, one for browsers.

In: a Module, with its present weights. Out: the file (`module_file/manifest.py`), the folders (`folder.py`,
`web_folder.py`), each whole or not at all.
"""

from __future__ import annotations

import os

from tvm_rnn.module_file.manifest import write_container
from tvm_rnn.runtime.runtime import Module

from ..errors import BuildError, ConfigError, message
from .folder import write_bundle
from .web_folder import write_web

Path = str | os.PathLike[str]


def export(module: Module, path: Path | None, bundle: Path | None, web: Path | None, name: str | None) -> None:
    """What `Module.export` does. Raises ConfigError where it is not told what to write, and what the writers raise."""
    if path is None and bundle is None and web is None:
        do = 'mod.export("m.so"), or mod.export(bundle="folder")'
        raise ConfigError(message("export: nothing to write", got="neither a path nor a bundle", do=do))
    if web is not None:
        write_web(module, web, name)
    if bundle is not None:
        write_bundle(module, bundle, name)
    if path is not None:
        _check_unchanged(module)  # to read what was cut off would be a signal
        code, arrays = module._file[: module._elf_size], {**module.weights, **module._constants}
        write_container(code, module.manifest, arrays, path, lambda: _check_unchanged(module))


def _check_unchanged(module: Module) -> None:
    if not module._file.is_as_checked():
        got, do = "its file was changed in place since it was loaded", "load the file again"
        raise BuildError(message("the module cannot be exported", got=got, do=do))

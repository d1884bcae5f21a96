"""Modules as folders for programs without Python: a library with a C API of the model's own, a header, examples; or
WebAssembly with an ES module, an AudioWorklet and a page."""

from .folder import check_place, write_bundle
from .web_folder import check_web, write_web

__all__ = ["check_place", "check_web", "write_bundle", "write_web"]

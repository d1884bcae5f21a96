"""Modules as folders for programs without Python: a library with a C API of the model's own, a header, examples."""

from .folder import check_place, write_bundle

__all__ = ["check_place", "write_bundle"]

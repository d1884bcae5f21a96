"""The version of this package, which every module's file names."""

__version__ = "0.1.0"

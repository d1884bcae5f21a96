"""The version of this package, which every module's file names."""

__version__ = "1.0.0"

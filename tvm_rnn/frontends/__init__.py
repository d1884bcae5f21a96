"""Layers of other frameworks as RNNs with weights, and back: one file per framework, imported when it is asked for."""

"""Compilation for NVIDIA GPUs: kernels from a layer's graph, and the host program that launches them."""

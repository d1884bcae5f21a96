"""Compiled networks in JAX. `to_jax.py` makes a network a function of weights and inputs; `layer.py` is that function;
`primitives.py` has its steps as primitives of JAX's, with their rules for gradients and batches, and `calls.py` is what
XLA calls for them.
"""

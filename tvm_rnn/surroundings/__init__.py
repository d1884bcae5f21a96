"""What is around a model's networks, as a list of calls: what a frontend hands to the compiler.

In: a graph of a framework's operators as a Relax module, whose sizes may have names. Out: a `Graph` (`calls.py`), of
which a back end makes functions (`cpu/surroundings/`); `demands.py` says what must be true of the sizes. Nothing of
Relax is left at run time.
"""

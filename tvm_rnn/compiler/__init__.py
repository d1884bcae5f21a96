"""The compiler from end to end: equations in, a module's file out.

In: an RNN or a Model, and options. Out: a loaded `Module`. `compile.py` is the way through: passes, then cpu/ or cuda/,
`link.py`, the file. `surroundings.py` adds functions for what is around networks, `compile_model.py` compiles several
networks at once, `stage_texts.py` shows every stage as text, `watched.py` says to whoever looks on which one is at
hand. `compiled_files.py` keeps modules on disk for those who compile without being asked to.
"""

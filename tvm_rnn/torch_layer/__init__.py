"""Compiled networks in torch. `to_torch.py` makes a network a torch.nn.Module; `autograd.py` is that module and its
autograd function; `graph_ops.py` has its steps as operations for graphs of torch's, `in_torch.py` has them in torch's
own operations, `second.py` has compiled gradients of gradients, `mapped.py` what torch.func makes of calls. `kept.py`
says whether a module still has a layer's weights. `nn.py` has torch.nn's own layers, run by compiled code,
`accelerate.py` puts these into models, `cell.py` is any cell as such a layer, and `fill_cache.py` compiles for machines
that have no compiler. `warn.py` has warnings with the user's line.
"""

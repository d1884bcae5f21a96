"""A network as a torch.nn.Module: `to_torch.py` makes it, `autograd.py` is the module and its autograd function."""

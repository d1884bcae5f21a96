"""`tvm-rnn fill-cache`: what layers of torch compile in their first call, compiled here for another machine.

In: a cell and sizes, and a target. Out: a file in a folder, which is TVM_RNN_CACHE on that machine.
"""

from __future__ import annotations

from typing import Annotated

import typer

from .console import print_json, progress
from .options import Json, Regularisers, Sizes, Spec, grouped

FOLDER = "Where the file goes: TVM_RNN_CACHE on that machine. Made if it is not there."


@grouped
def fill_cache(
    spec: Spec,
    folder: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help=FOLDER)],
    target: Annotated[str, typer.Option(metavar="TARGET", help="The machine that it is for, e.g. nvidia-h200.")],
    sizes: Sizes,
    regularisers: Regularisers,
    as_json: Json = False,
) -> None:
    """Compile what layers of torch compile in their first call, for a machine that has no compiler.

    Copy the folder to that machine and set TVM_RNN_CACHE to it: `rnn.nn.Cell`, `rnn.nn.LSTM`, `GRU` and `RNN` of these
    sizes find their code there. torch.nn's LSTM is `lstm`, its GRU `gru`, its RNN `elman`; with dropout between layers
    there is one file for training and, without --dropout, one for eval mode. In Python `rnn.fill_cache(model, target,
    folder)` does it for all layers of a model.

    **Examples**

    $ tvm-rnn fill-cache lstm --input-size 64 --hidden-size 256 --target nvidia-h200 -o cache

    $ tvm-rnn fill-cache gru --input-size 8 --hidden-size 32 --layers 2 --dropout 0.3 --target x86-64-v3 -o cache
    """
    from tvm_rnn.frontends.spec import is_model
    from tvm_rnn.torch_layer.fill_cache import fill_cache as fill

    from .networks import rnn_of

    if is_model(spec) or sizes.input_size is None:
        raise typer.BadParameter("give a cell and --input-size: a file of a whole network is for `tvm-rnn compile`")
    with progress(as_json) as stage:
        stage("tracing")
        net = rnn_of(spec, sizes, regularisers.parsed())
        stage(f"compiling for {target}")
        (path,) = fill(net, target, folder)
    if as_json:
        print_json({"file": str(path), "bytes": path.stat().st_size})
        return
    print(f"wrote {path}: {net!r}")
    print(f"next: on {target}: TVM_RNN_CACHE={folder}")

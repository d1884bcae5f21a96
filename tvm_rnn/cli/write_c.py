"""`tvm-rnn write-c`: a network as plain C99, for machines that no target is for.

In: words and options from the user's shell. Out: a folder of C, and what it needs there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from tvm_rnn.errors import ConfigError, message

from .console import print_json
from .options import Fixed, Json, Sizes, Spec, Values, grouped


@dataclass(frozen=True)
class FixedPoint:
    """What fixed point is made of."""

    bits: Annotated[
        int | None, typer.Option(metavar="8|16", help="Fixed point, with weights of so many bits. [floats]")
    ] = None
    samples: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Fixed point: inputs [T, B, I] as .npy; others: NAME=FILE. Repeatable."),
    ] = None


@dataclass(frozen=True)
class Folder:
    """What is written, and said."""

    output: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="The folder to write.")]
    as_json: Json = False


@grouped
def write_c(spec: Spec, sizes: Sizes, fixed: Fixed, values: Values, folder: Folder, fixed_point: FixedPoint) -> None:
    """Write a network as plain C99: math.h alone, no memory taken, for microcontrollers and whatever has a C compiler.

    With --bits numbers are integers: scales come from --samples, and the error over them is said and written down.

    **Examples**

    $ tvm-rnn write-c lstm --input-size 1 --hidden-size 16 --weights w.safetensors -o amp

    $ tvm-rnn write-c gru --input-size 10 --hidden-size 24 --weights w.safetensors --bits 8 --samples x.npy -o wake
    """
    from tvm_rnn.network.rnn import RNN
    from tvm_rnn.npy_files import read_npy
    from tvm_rnn.plain_c import check_c
    from tvm_rnn.plain_c import write_c as write

    from .networks import name_inputs, net_of

    output = folder.output
    check_c(output)
    net = net_of(spec, sizes, fixed, {}, values)
    if not isinstance(net, RNN):
        do = "compile it, and export a bundle"
        raise ConfigError(message("write-c: one network", got="a model of several, or of none", do=do))
    names = [*net.input_shapes, *net.constant_shapes]
    given = name_inputs(fixed_point.samples or [], names)
    samples = {name: read_npy(path) for name, path in given.items()} or None
    written = write(net, output, bits=fixed_point.bits, samples=samples)
    if folder.as_json:
        print_json(asdict(written))
        return
    kind = f"weights in {written.bits} bits" if written.bits else net.dtype
    needs = f"{written.flash} bytes of numbers, {written.ram} of a stream"
    print(f"wrote {output}: {net.cell.name} in C99, {kind}, {needs}")
    if written.bits:
        print(f"y differs from float64 by {written.error:.2g} of its largest magnitude over the samples")
    print(f"next: read {output}/README.md")

"""What the manifest of a module says, as types: they are its schema.

In: facts from the compiler, or the JSON of a module's file. Out: `CpuNetwork` or `GpuNetwork`, where a file has one
network, and `SeveralNetworks`. `plain` makes of these what is written; `read` makes these of it, and checks every
field. Fields that this version does not know are left out by `read`. The runtime reads the JSON itself, as a dict.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from msgspec import Meta, Struct

from tvm_rnn.decisions import DecisionFacts
from tvm_rnn.dtypes import DTYPES, PRECISIONS, STORED
from tvm_rnn.errors import BuildError, message
from tvm_rnn.runtime.runtime import CONSTANT, MANIFEST_FORMAT, OLDEST_FORMAT

MODEL_CONSTANT = f"{CONSTANT}model."  # begins the names of arrays that belong to a model around networks


def _one_of(names: Iterable[str]) -> Meta:
    return Meta(pattern=f"^({'|'.join(map(re.escape, names))})$")


LARGEST = sys.float_info.max
Size = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(min_length=1)]
Arch = Annotated[str, Meta(pattern=r"^(sm_\d{2,3}[a-z]?|compute_\d{2,3})$")]  # of GPUs
Shape = list[Size]
Finite = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
NotNegative = Annotated[float, Meta(ge=0, le=LARGEST)]
Dtype = Annotated[str, _one_of(DTYPES)]
Precision = Annotated[str, _one_of(dict.fromkeys(name for names in PRECISIONS.values() for name in names))]
WeightDtype = Annotated[str, _one_of(dict.fromkeys((*DTYPES, *STORED)))]
Row = dict[str, Any]  # of any kind: which template was chosen for what, a decision, attributes of an operation


class Array(Struct):
    """An input, the output or a weight. shape: of one row of one step."""

    name: Name
    shape: Shape


class State(Struct, omit_defaults=True):
    """A state. shapes: of one row, by layer; initial: the value of all its elements before the first step; constant: it
    never changes, and is given once for all layers."""

    name: Name
    shapes: Annotated[list[Shape], Meta(min_length=1)]
    initial: Finite
    constant: bool = False


class Machine(Struct):
    """What the code runs on. machine: as platform.machine() says; features: LLVM's names."""

    name: Name
    kind: Name
    mcpu: str
    machine: Name
    features: list[str]


class Pack(Struct):
    """One call of a function that lays out weights and constants, `offset` elements into the packed ones."""

    function: Name
    weights: list[str]
    offset: Size


class Finish(Pack):
    """One call of a function that makes gradients of weights from sums over steps."""

    gradients: list[str]


class Workspace(Struct):
    """Elements of working memory: fixed + B (per_row + tile * per_tile_row + T * per_sequence_row)."""

    fixed: Size
    per_row: Size
    per_tile_row: Size
    per_sequence_row: Size


class CpuFunction(Struct, kw_only=True, omit_defaults=True):
    """What a call of forward_train or backward on a CPU needs. packed_as_inference: its weights lie as inference's."""

    packs: list[Pack]
    packed_elements: Size
    workspace: Workspace
    rows_per_tile: Count
    packed_as_inference: bool = False


class CpuBackward(CpuFunction, kw_only=True):
    """backward also adds up `totals_elements` sums over rows, of which `finishes` make the gradients of weights."""

    totals_elements: Size
    finishes: list[Finish]


class CpuTape(Struct, omit_defaults=True):
    """Elements of the tape: fixed + B (per_row + T * per_sequence_row). inputs_per_row: of per_sequence_row, in
    networks of two directions: what all of the time has, where it is gone through in parts. per_mark: elements of each
    row for each `mark` of the T steps, and the rest of them: matrices are kept so often."""

    fixed: Size
    per_row: Size
    per_sequence_row: Size
    inputs_per_row: Size | None = None
    per_mark: Size | None = None
    mark: Count | None = None


class CpuTraining(Struct):
    """Both functions of training on a CPU, and the tape between them."""

    forward: CpuFunction
    backward: CpuBackward
    tape: CpuTape


class Generation(Struct, kw_only=True, omit_defaults=True):
    """What a call of generate needs. tokens: how many there are, where the first input is one."""

    tokens: Count | None = None


class CpuGeneration(Generation, kw_only=True):
    """The same on a CPU."""

    workspace: Workspace


class Kernel(Struct, kw_only=True, omit_defaults=True):
    """A CUDA kernel: what the compiler says that it takes, and what it is launched with."""

    kernel: Name
    registers: Size | None = None
    stack_bytes: Size | None = None
    spill_bytes: Size | None = None
    shared_bytes: Size | None = None
    threads: Size | None = None
    cluster: Size | None = None
    dynamic_shared_bytes: Size | None = None


class GpuProgram(Struct, kw_only=True, omit_defaults=True):
    """The code of one function for one GPU arch. parameters: (name, dtype) of the weights and constants that its
    packing reads, in order. tells_starts: its last argument says whether a call is given no states."""

    packed_bytes: Size
    parameters: list[tuple[str, str]]
    kernels: list[Kernel]
    templates: list[Row] | None = None
    tells_starts: bool = False


class Variant(GpuProgram, kw_only=True):
    """All code for one GPU arch. target: the GPU's name here."""

    arch: Arch
    target: Name
    templates: list[Row]
    forward_train: GpuProgram | None = None
    backward: GpuProgram | None = None
    generate: GpuProgram | None = None

    @property
    def programs(self) -> list[GpuProgram]:
        """That of inference, and those of training and generation where there are any."""
        return [self, *(own for own in (self.forward_train, self.backward, self.generate) if own is not None)]


class TimeParts(Struct, omit_defaults=True):
    """How calls on GPUs go through time in parts. by: "borders", or "visits" where each layer and direction goes for
    itself: then the tape's first `whole_arrays` arrays have room for all steps, and layers hand down `handed_bytes` a
    row and step."""

    by: Name
    whole_arrays: Size | None = None
    handed_bytes: Size | None = None


class Masks(Struct):
    """Of regularisers. streams: names of masks of rows; weights: of each weight that is dropped its name, the name of
    its mask, layer, direction, and the probability of being kept."""

    streams: list[str]
    weights: list[tuple[str, str, Size, Size, Annotated[float, Meta(gt=0, lt=1)]]]


class Memory(Struct, omit_defaults=True):
    """What a plan of training's memory must know. keep: what the tape keeps; FLOPs of one row of one step; max_bytes:
    the budget, where there is one."""

    keep: Name
    forward_flops_per_row: Size
    backward_flops_per_row: Size
    again_flops_per_row: Size
    max_bytes: Size | None = None


class Origin(Struct):
    """The layer or file of another framework that the network was made from."""

    framework: Name
    layer: Name
    file: Name | None
    sha256: Name | None
    batch_first: bool


class Declared(Struct):
    """An input or output of a model. shape: sizes, names of axes, None for any size; None: any shape."""

    name: Name
    dtype: Name
    shape: list[int | str | None] | None


class ModelConstant(Struct):
    """A constant of a model. array: its name in the file."""

    name: Name
    array: Annotated[str, Meta(pattern=f"^{re.escape(MODEL_CONSTANT)}")]


class ModelStep(Struct):
    """A network, or a function of the file. node: its name in the model's file."""

    op: Name
    inputs: list[str]
    outputs: list[str]
    attributes: Row
    node: str


class Model(Struct):
    """A whole model around its networks, in the order of its steps."""

    inputs: list[Declared]
    outputs: list[Declared]
    constants: list[ModelConstant]
    steps: list[ModelStep]


class Shared(Struct, kw_only=True, omit_defaults=True):
    """What a file says once, however many networks are in it. batch: the batch sizes that it was made for."""

    format: Annotated[int, Meta(ge=OLDEST_FORMAT, le=MANIFEST_FORMAT)]
    versions: dict[str, str]
    target: Machine
    batch: list[Size]
    passes: list[str]
    created: str


class Network(Shared, kw_only=True):
    """What is said of a network on any target, with what its file says once. equations: a digest."""

    cell: Name
    dtype: Dtype
    num_layers: Count
    num_directions: Annotated[int, Meta(ge=1, le=2)]
    inputs: list[Array]
    output: Array
    states: list[State]
    weights: list[Array]
    entry_points: list[str]
    equations: Name | None = None
    reverse: bool = False
    batch_first: bool = False
    regularisers: dict[str, object] | None = None
    decisions: list[DecisionFacts] | None = None
    origin: Origin | None = None
    model: Model | None = None
    masks: Masks | None = None
    memory: Memory | None = None
    weight_error: NotNegative | None = None
    draws: list[str] | None = None  # the streams of random numbers in inference


class Direct(Struct):
    """A plain C function of one step of one row, and what its weights are packed by. blocks: whether many steps are
    faster with it too."""

    function: Name
    packs: list[Pack]
    packed_elements: Size
    blocks: bool


class CpuNetwork(Network, kw_only=True):
    """A network with code for a CPU. sequence: the name of its function, in a file of several. direct: for bundles."""

    packs: list[Pack]
    packed_elements: Size
    workspace: Workspace
    rows_per_tile: Count
    flops_per_row: NotNegative
    templates: list[Row]
    weight_dtype: WeightDtype | None = None
    training: CpuTraining | None = None
    generation: CpuGeneration | None = None
    sequence: Name = "sequence"
    direct: Direct | None = None

    @property
    def calls(self) -> list[Pack]:
        training = self.training
        own = [*training.forward.packs, *training.backward.packs, *training.backward.finishes] if training else []
        return [*self.packs, *own, *(self.direct.packs if self.direct else [])]


class GpuNetwork(Network, kw_only=True):
    """A network with code for GPUs. tape: of each array bytes of a row, steps beyond T, and with a third number, 1,
    whether only calls with lengths or resets have it; with a fourth, how many steps share a row. gradients: names of
    weights, in the order of backward's. part: in a file of several, what the names of its functions end with."""

    precision: Precision
    weight_dtype: WeightDtype
    flops_per_row: NotNegative
    templates: list[Row]
    variants: Annotated[list[Variant], Meta(min_length=1)]
    tape: list[Annotated[list[Size], Meta(min_length=2, max_length=4)]] | None = None
    gradients: list[str] | None = None
    generation: Generation | None = None
    reads_inputs: bool | None = None
    reads_output: bool | None = None
    parts: TimeParts | None = None
    part: Name | None = None


class Several(Shared, kw_only=True):
    """A model of several networks."""

    entry_points: list[str]
    origin: Origin | None = None
    model: Model


class SeveralNetworks(Several, kw_only=True):
    """A model of several networks, or of none, with code for a CPU."""

    networks: list[CpuNetwork]


class SeveralOnGpus(Several, kw_only=True):
    """A model of several networks with code for GPUs. archs: those that all of them have code for."""

    archs: Annotated[list[Arch], Meta(min_length=1)]
    networks: Annotated[list[GpuNetwork], Meta(min_length=1)]


Facts = CpuNetwork | GpuNetwork | SeveralNetworks | SeveralOnGpus
SHARED = tuple(get_type_hints(Shared))
Kind = TypeVar("Kind", bound=Struct)


def plain(facts: Struct) -> dict[str, Any]:
    """As json.dumps takes it: what is not there is left out, and what networks share is said once."""
    found: dict[str, Any] = msgspec.to_builtins(facts)
    if isinstance(facts, Several):
        found["networks"] = [{k: v for k, v in own.items() if k not in SHARED} for own in found["networks"]]
    if isinstance(facts, SeveralNetworks):
        networks = found["networks"]
        names = [own.sequence for own in facts.networks]
        found["networks"] = [{**own, "sequence": name} for own, name in zip(networks, names, strict=True)]
    return found


def read(manifest: Mapping[str, object]) -> Facts:
    """The facts that a manifest says. Raises BuildError, naming the field, where one is missing or wrong."""
    networks = manifest.get("networks")
    if networks is None and "variants" in manifest:
        return _converted(manifest, GpuNetwork)
    if networks is None:
        return _converted(manifest, CpuNetwork)
    shared = {name: manifest[name] for name in SHARED if name in manifest}
    own = [{**shared, **network} for network in networks] if isinstance(networks, Sequence) else networks
    whole = {**manifest, "networks": own}
    return _converted(whole, SeveralOnGpus) if "archs" in manifest else _converted(whole, SeveralNetworks)


def _converted(manifest: Mapping[str, object], kind: type[Kind]) -> Kind:
    try:
        return msgspec.convert(manifest, kind)
    except msgspec.ValidationError as error:
        expected, _, path = str(error).partition(" - at `$")
        if missing := re.search(r"required field `(\w+)`", expected):
            path = f"{path.rstrip('`')}.{missing[1]}"
        where = path.rstrip("`").lstrip(".")
        raise invalid(where, _at(manifest, where), expected.removeprefix("Expected ").partition(", got")[0]) from None


def _at(value: object, path: str) -> object:
    """What a manifest has at a path such as "packs[0].offset"; None: nothing."""
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", path):
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, Sequence) and index and int(index) < len(value):
            value = value[int(index)]
        else:
            return None
    return value


def invalid(where: str, got: object, expected: str) -> BuildError:
    """The error for a field that is not right."""
    do = "this is a fault of whoever built the manifest, not of the model: report it with the command that led here"
    return BuildError(message("the manifest is not valid", where=where, got=repr(got), expected=expected, do=do))

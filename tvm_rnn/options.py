"""What travels together through a compilation: the arguments of `compile`, checked once.

In: what a user asked for. Out: `Options`, which passes, planners and back ends read and nobody changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from .dtypes import precision_name, stored_name
from .errors import ConfigError, message, one_or_several, unknown
from .target import Target

PASS_NAMES = (  # in the order they run
    "parallelise_time",
    "hoist_gemms",
    "combine_gemms",
    "fuse_pointwise",
    "tile_layers_and_time",
)


@dataclass(frozen=True)
class Call:
    """What of a call of inference decides which kernels it launches."""

    steps: int
    batch: int
    lengths: bool = False
    resets: bool = False


@dataclass(frozen=True)
class Options:
    """How one network is compiled. As asked, until `of` says what that means for the network's dtype.

    target: the machine. batches: the batch sizes to optimise for, rising. without: names of passes to switch off.
    precision: of products; "": that of the network's dtype. stored: the dtype of products' weights; "": that of the
    precision. training: False, or what forward_train leaves for backward, by name (`passes/keep_choice.py`); True: left
    to the network. max_bytes: of a call of training; None: no limit. targets: of GPUs one for each architecture that
    the file is for. generate: whether outputs can be the next inputs. calls: on GPUs, the only calls that the module
    is for, which leaves out other kernels; none: it is for all.
    """

    target: Target
    batches: tuple[int, ...] = ()
    without: tuple[str, ...] = ()
    precision: str = ""
    stored: str = ""
    training: bool | str = False
    max_bytes: int | None = None
    targets: tuple[Target, ...] = ()
    generate: bool = False
    calls: tuple[Call, ...] = ()

    @property
    def least(self) -> Target:
        """What passes are for: of several GPUs that with the least shared memory, whose kernels all others can run."""
        return min(self.targets, key=lambda gpu: gpu.shared_bytes, default=self.target)

    def of(self, dtype: str) -> Options:
        """For a network of that dtype: precision and stored as they are there. Raises ConfigError."""
        machine, precision = self.target, precision_name(dtype, self.precision or None)
        if machine.kind != "cuda" and precision not in ("float32", "float64"):
            got, do = f"{precision} for target {machine.name}", "compile for a GPU, or with precision='float32'"
            raise ConfigError(message("CPUs compute in float32 and float64 only", got=got, do=do))
        stored = stored_name(precision, machine.kind == "cuda", self.stored)
        _check_stored(stored, machine)
        if self.training and stored:
            do = "leave weights out, and compile once more for inference"
            got = f"weights={self.stored!r}"
            raise ConfigError(message("training keeps weights in the network's dtype", got=got, do=do))
        return replace(self, precision=precision, stored=stored)


class Products(TypedDict, total=False):
    """Arguments of `compile` that say what products compute in and which passes run."""

    without: Iterable[str]
    precision: str | None
    weights: str | None


class Tape(TypedDict, total=False):
    """Arguments of `compile` that say what training keeps."""

    training: bool
    keep: str | None
    max_bytes: int | None


def asked(
    target: Target,
    targets: Sequence[Target] = (),
    *,
    batch: int | Sequence[int] = (),
    without: Iterable[str] = (),
    precision: str | None = None,
    weights: object = None,
    training: bool = False,
    keep: str | None = None,
    max_bytes: int | None = None,
    generate: bool = False,
) -> Options:
    """The options that arguments of `compile` mean, for any network. Raises ConfigError for an argument that is wrong.

    What only passes know is checked by them: which passes there are, and which choices of `keep`.
    """
    given = {name: value for name, value in (("keep", keep), ("max_bytes", max_bytes)) if value is not None}
    if given and not training:
        got = ", ".join(f"{name}={value!r}" for name, value in given.items())
        do = f"give training=True, or leave {' and '.join(given)} out"
        raise ConfigError(message("only training keeps anything", got=got, do=do))
    if max_bytes is not None and (isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0):
        expected = "a number of bytes, or None"
        raise ConfigError(message("compile: max_bytes is wrong", got=repr(max_bytes), expected=expected))
    return Options(
        target,
        batch_sizes(batch),
        pass_names(without),
        precision or "",
        "" if weights is None else str(weights),
        training if keep is None else keep,
        max_bytes,
        tuple(targets),
        bool(generate),
    )


def batch_sizes(batch: int | Sequence[int]) -> tuple[int, ...]:
    """The batch sizes that were named, rising. Raises ConfigError."""
    sizes = tuple(batch) if isinstance(batch, Iterable) else (batch,)
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            do = "give a number, or several: batch=(1, 16)"
            raise ConfigError(message("compile: batch", got=repr(batch), expected="batch sizes of at least 1", do=do))
    return tuple(sorted(set(sizes)))


def pass_names(without: Iterable[str]) -> tuple[str, ...]:
    """The names that a caller gave, one or several. Raises ConfigError where they are none."""
    return one_or_several("without", without)


def check_passes(without: Iterable[str]) -> frozenset[str]:
    """The passes to switch off, or ConfigError for a name that is none."""
    names = frozenset(without)
    for name in names:
        if name not in PASS_NAMES:
            raise ConfigError(message("no such pass", **unknown("pass", name, PASS_NAMES)))
    return names


def _check_stored(stored: str, machine: Target) -> None:
    """Raises ConfigError where a CPU lacks the instructions that weights in this dtype need."""
    if stored == "float16" and machine.machine == "x86_64" and machine.isa not in ("avx2", "avx512"):
        got, do = f"{machine.name}, without F16C", 'weights="bfloat16", which needs no instruction of its own'
        raise ConfigError(message("float16 weights need a CPU that converts them", got=got, do=do))

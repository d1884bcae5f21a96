"""torch's own tests of its RNN, LSTM and GRU, run on this project's layers: a table of passed and failed, by name.

    python tests/torch_own_tests.py                 the samples and errors that are installed with torch (module_db)
    python tests/torch_own_tests.py PYTORCH/test    also the test files of a checkout of torch of the same version

In: `rnn.nn`'s layers in the place of torch.nn's, in a process of their own. Out: a line for each test whose name speaks
of these layers, with the reason of each failure; status 1 where one failed for no reason that `REASONS` has. Needs
`expecttest`, which torch's tests import.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import unittest
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import unoptimised

from tvm_rnn.oracle.tolerance import assert_close, relative_error, tolerance

SAMPLES, LAYERS = "module_db", ("RNN", "LSTM", "GRU")
FILES = (
    "test_nn",
    "test_modules",  # in parts: the longest
    "nn.test_packed_sequence",
    "nn.test_init",
)
NAMES = re.compile(r"rnn|lstm|gru", re.IGNORECASE)
CELLS = "torch's cells of one step are not replaced"
OUTSIDE = re.compile(r"(rnn|lstm|gru)_?cell|cells?_", re.IGNORECASE)
# Of failures, by what their name or their words match.
REASONS = {
    r"jit\.script|ScriptModule": "torch.jit.script has torch's layer, in torch's own words",
    r"_get_name|repr": "a layer says in its repr() whose it is",
    r"torch's own layer is off by": "float32 has no more digits here: {words}",
}
SEED = 0
LIMIT = 300  # seconds of one test
PASSED, FAILED, OTHER = "passed", "failed", "not applicable"


@dataclass(frozen=True)
class Result:
    """One test. outcome: PASSED, FAILED or OTHER; reason: of the latter two."""

    name: str
    outcome: str
    reason: str = ""


# --- in a process of its own ------------------------------------------------------------------------------------------


def in_place() -> None:
    """Ours are torch.nn's from here on: for what is imported later."""
    import torch

    import tvm_rnn as rnn

    for name in LAYERS:
        setattr(torch.nn, name, getattr(rnn.nn, name))
        setattr(torch.nn.modules.rnn, name, getattr(rnn.nn, name))
        setattr(torch.nn.modules, name, getattr(rnn.nn, name))


def samples(name: str, dtype_name: str, part: str = "0/1") -> Iterator[Result]:
    """Of what is installed with torch, those of one layer and dtype. part: "0/2" is every second sample."""
    import torch

    theirs, dtype = getattr(torch.nn, name), getattr(torch, dtype_name)
    in_place()
    module = importlib.import_module("torch.testing._internal.common_modules")
    torch.manual_seed(SEED)  # samples and weights are drawn: the same ones in every run
    (info,) = [one for one in module.module_db if getattr(one.module_cls, "torchs", None) is theirs]
    first, parts = map(int, part.split("/"))
    for training in (True, False):
        given = {"device": "cpu", "dtype": dtype, "requires_grad": True, "training": training}
        for number, sample in enumerate(info.module_inputs_func(info, **given)):
            if number % parts != first or sample.forward_input is None:
                continue
            for check in CHECKS:
                if check is second_gradients and not (training and dtype == torch.float64):
                    continue
                where = f"module_db {name} {dtype_name} {'train' if training else 'eval'} {check.__name__}"
                found = attempt(where, partial(each, check, (info.module_cls, theirs), given, sample))
                yield replace(found, reason=found.reason and f"sample {number}: {found.reason}")
    given = {"device": "cpu", "dtype": dtype, "requires_grad": False, "training": True}
    for number, item in enumerate(info.module_error_inputs_func(info, **given)):
        if number % parts == first:
            yield attempt(f"module_db {name} {dtype_name} error {number}", partial(refused, item, info.module_cls))


@contextmanager
def limited() -> Iterator[None]:
    """A test that takes longer fails."""

    def late(*_: object) -> None:
        raise TimeoutError(f"no end within {LIMIT} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attempt(name: str, run: Callable[[], None]) -> Result:
    try:
        with warnings.catch_warnings(), limited():
            warnings.simplefilter("ignore")
            run()
    except unittest.SkipTest as skipped:
        return Result(name, OTHER, str(skipped))
    except Exception as wrong:  # whatever it is, it is what the table is for
        return Result(name, FAILED, f"{type(wrong).__name__}: {str(wrong).splitlines()[0] if str(wrong) else ''}")
    return Result(name, PASSED)


def each(check: Callable[..., None], kinds: tuple[Any, Any], given: dict[str, Any], sample: Any) -> None:
    """Our layer and torch's with the same parameters, and the call. kinds: the two classes."""
    how, call = sample.constructor_input, sample.forward_input
    ours, peer = (kind(*how.args, **how.kwargs).to(given["dtype"]).train(given["training"]) for kind in kinds)
    peer.load_state_dict(ours.state_dict())
    check(ours, peer, call, sample)


def tensors(value: Any) -> list[Any]:
    """Of results, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return [value.data]
    return [part for item in value for part in tensors(item)] if isinstance(value, tuple | list) else []


def same(found: Any, expected: Any) -> None:
    import torch

    for one, two in zip(tensors(found), tensors(expected), strict=True):
        torch.testing.assert_close(one, two)


def forward(ours: Any, peer: Any, call: Any, sample: Any) -> None:
    found = ours(*call.args, **call.kwargs)
    same(found, peer(*call.args, **call.kwargs))
    if sample.reference_fn is not None and not isinstance(call.args[0], tuple):
        same(found, sample.reference_fn(ours, *call.args, **call.kwargs))


def leaves(layer: Any, call: Any) -> list[Any]:
    return [*(part for part in tensors(call.args) if part.requires_grad), *layer.parameters()]


def in_float64(value: Any) -> Any:
    """The same numbers, of a graph of their own."""
    import torch

    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return value._replace(data=in_float64(value.data))
    if isinstance(value, torch.Tensor):
        return value.detach().double().requires_grad_(value.requires_grad)
    return tuple(map(in_float64, value)) if isinstance(value, tuple) else value


def gradients(ours: Any, peer: Any, call: Any, sample: Any) -> None:
    """Beside torch's layer in float64, by this project's table. In float32 either layer's are off by some 1e-6 of the
    largest number, which is more than torch compares float32 by. Where torch's own layer misses the table too, what
    fails says by how much both do: of a gate near 1, float32 keeps few digits of the distance to 1, of which its
    gradient is made."""
    import torch

    def by(layer: Any, how: Any) -> list[Any]:
        total = sum(part.square().sum() for part in tensors(layer(*how.args, **how.kwargs)))
        found = torch.autograd.grad(total, leaves(layer, how), allow_unused=True)
        return [g.numpy() for g in found if g is not None]

    exact = type(call)(*map(in_float64, call.args), **{name: in_float64(v) for name, v in call.kwargs.items()})
    dtype, steps = str(next(ours.parameters()).dtype).removeprefix("torch."), max(tensors(call.args)[0].shape)
    found, theirs, expected = by(ours, call), by(peer, call), by(peer.double(), exact)
    try:
        assert_close(found, expected, dtype, steps, "gradients")
    except AssertionError as wrong:
        own, other = (max(map(relative_error, each, expected)) for each in (found, theirs))
        if not tolerance(dtype, steps) < other >= own / 2:
            raise
        text = f"torch's own layer is off by {other:.3g}, this one by {own:.3g}"
        raise AssertionError(text) from wrong


def second_gradients(ours: Any, peer: Any, call: Any, sample: Any) -> None:
    import torch

    found = []
    for layer in (ours, peer):
        own = leaves(layer, call)
        total = sum(part.square().sum() for part in tensors(layer(*call.args, **call.kwargs)))
        first = torch.autograd.grad(total, own, create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), own))
    same(found[0], found[1])


def non_contiguous(ours: Any, peer: Any, call: Any, sample: Any) -> None:
    import torch

    if not isinstance(call.args[0], torch.Tensor):
        return
    strided = [torch.stack([part, part], -1)[..., 0] if isinstance(part, torch.Tensor) else part for part in call.args]
    same(ours(*strided), peer(*call.args))


def pickles(ours: Any, peer: Any, call: Any, sample: Any) -> None:
    expected = ours(*call.args, **call.kwargs)
    for again in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        same(again(*call.args, **call.kwargs), expected)


def texts(ours: Any, peer: Any, call: Any, sample: Any) -> None:
    assert repr(peer).split("(", 1)[1] == repr(ours).split("(", 1)[1] and str(ours)


CHECKS = (forward, gradients, second_gradients, non_contiguous, pickles, texts)


def refused(item: Any, ours: Any) -> None:
    """The error that torch's layer would raise."""
    given, call = item.module_error_input.constructor_input, item.module_error_input.forward_input
    try:
        layer = ours(*given.args, **given.kwargs)
        if call is not None:
            layer(*call.args, **call.kwargs)
    except item.error_type as found:
        if not re.search(item.error_regex, str(found)):
            raise AssertionError(f"says {found}, expected {item.error_regex}") from None
        return
    raise AssertionError(f"no {item.error_type.__name__}: {item.error_regex}")


def of_file(folder: str, name: str, part: str = "0/1") -> Iterator[Result]:
    """The tests of a file whose names speak of these layers. part: "0/2" is every second one."""
    first, parts = map(int, part.split("/"))
    sys.path.insert(0, folder)
    in_place()
    sys.argv = [name]
    found = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(name))
    spoken = [test for test in flat(found) if NAMES.search(test.id())]
    for test in spoken[first::parts]:
        own = test.id().partition(".")[2] if "." in test.id() else test.id()
        if OUTSIDE.search(own):
            yield Result(own, OTHER, CELLS)
            continue
        with limited():
            result = unittest.TextTestRunner(stream=io.StringIO()).run(test)
        if result.skipped:
            yield Result(own, OTHER, result.skipped[0][1])
        elif wrong := [*result.failures, *result.errors]:
            yield Result(own, FAILED, last_words(wrong[0][1]))
        else:
            yield Result(own, PASSED)


def last_words(trace: str) -> str:
    """The line of a traceback that names the error; behind it torch says how to run the test again."""
    lines = trace.strip().splitlines()
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (named or lines)[-1][:200]


def flat(suite: Any) -> Iterator[unittest.TestCase]:
    for item in suite:
        if isinstance(item, unittest.TestCase):
            yield item
        else:
            yield from flat(item)


# --- the table --------------------------------------------------------------------------------------------------------


def collected(*given: str) -> list[Result]:
    """What a process of its own finds; how long it took goes to standard error. Raises RuntimeError with its last words
    where it finds nothing."""
    began = time.monotonic()
    done = subprocess.run([sys.executable, __file__, "--inside", *given], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        last = (done.stderr.strip() or "no test speaks of these layers").splitlines()[-1]
        raise RuntimeError(f"{' '.join(given)}: {last}")
    print(f"{' '.join(given)}: {len(lines)} checks in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return [Result(**json.loads(line)) for line in lines]


def merged(results: list[Result]) -> list[Result]:
    """One of each name, in their order: of the samples of a check the first that failed."""
    found = dict[str, Result]()
    for result in sorted(results, key=lambda one: one.outcome != FAILED):
        found.setdefault(result.name, result)
    return [found[name] for name in dict.fromkeys(result.name for result in results)]


def reason_of(result: Result) -> str:
    """A reason that is known; "": none is."""
    words = f"{result.name} {result.reason}"
    found = next((reason for pattern, reason in REASONS.items() if re.search(pattern, words)), "")
    return found.format(words=result.reason.replace("AssertionError: ", ""))


def table(results: list[Result]) -> str:
    """Markdown: how many, then all but those that passed, with their reasons."""
    count = {kind: sum(result.outcome == kind for result in results) for kind in (PASSED, FAILED, OTHER)}
    lines = [
        ", ".join(f"{number} {kind}" for kind, number in count.items()),
        "",
        "| test | | reason |",
        "|---|---|---|",
    ]
    rest = [result for result in results if result.outcome != PASSED]
    lines += [f"| {r.name} | {r.outcome} | {reason_of(r) or r.reason.replace('|', '/')} |" for r in rest]
    return "\n".join([*lines, "", *(f"passed: {r.name}" for r in results if r.outcome == PASSED)])


def write(path: Path, results: list[Result], files: str) -> None:
    """Records: facts, then a line for each test. files: the version of torch whose test files ran."""
    import torch

    from tvm_rnn.bench.run.compare import cpu_facts
    from tvm_rnn.bench.run.gpu_suite import writing

    with writing([], path) as note:
        facts = cpu_facts(1)
        facts["versions"] |= {"torch": torch.__version__, "torch's test files": files}
        note({"kind": "facts", **facts})
        for result in results:
            note({"kind": "test", **asdict(replace(result, reason=reason_of(result) or result.reason))})


def main(folder: str = "", records: str = "", processes: int = 0) -> int:
    """Print the table. folder: `test` of a checkout of torch; "": what is installed alone. records: a file of lines of
    JSON to write. processes: at a time; 0: half of the machine's CPUs."""
    kinds = [(SAMPLES, *kind) for kind in product(LAYERS, ("float32", "float64"), ("0/2", "1/2"))]
    for name in FILES if folder else ():
        if Path(folder, *name.split(".")).with_suffix(".py").exists():
            parts = 4 if name in FILES[:2] else 1
            kinds += [(folder, name, f"{part}/{parts}") for part in range(parts)]
        else:
            print(f"{name}: no such file in {folder}", file=sys.stderr)
    with ThreadPoolExecutor(processes or max(1, (os.cpu_count() or 1) // 2)) as pool:
        results = merged([result for part in pool.map(lambda kind: collected(*kind), kinds) for result in part])
    print(table(results))
    if records:
        version = Path(folder, "..", "version.txt")
        write(Path(records), results, version.read_text().strip() if folder and version.exists() else "none")
    return int(any(result.outcome == FAILED and not reason_of(result) for result in results))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        with unoptimised.code():  # what a layer answers is asked here, not how fast
            for one in samples(*sys.argv[3:]) if sys.argv[2] == SAMPLES else of_file(*sys.argv[2:]):
                print(json.dumps(asdict(one)), flush=True)
    else:
        parser = argparse.ArgumentParser(description="torch's own tests of its RNN, LSTM and GRU on this project's.")
        parser.add_argument("folder", nargs="?", default="", metavar="PYTORCH/test")
        parser.add_argument("--records", default="", help="a file of records to write")
        parser.add_argument("--processes", type=int, default=0, help="at a time; half of the machine's CPUs")
        sys.exit(main(**vars(parser.parse_args())))

"""Makes what `test_stored_modules.py` reads, once for a format of manifests:
`PYTHONPATH=.:tests:tests/frontends python tests/store_modules.py`.

In: nothing. Out: `golden/modules/format_N.zip`, which is not made anew where it is there: modules for any x86-64 and
one for a GPU (needs nvcc), and beside each what its calls are given and what the oracle says of them.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

import numpy as np
from derivatives import draw, oracle
from networks import arguments, flags, network
from test_onnx import classifier, words
from test_stored_modules import BATCH, FOLDER, STEPS, flat

import tvm_rnn as rnn
from tvm_rnn.runtime.runtime import MANIFEST_FORMAT

Arrays = dict[str, np.ndarray]


def inference(path: Path) -> Arrays:
    net = network("lstm", 3, [4, 5], num_layers=2)
    rnn.compile(net, "x86-64").export(path)
    return called(net, **flags(STEPS, BATCH))


def int8(path: Path) -> Arrays:
    """Weights that eight bits hold as they are: the module's results are the oracle's."""
    net = network("lstm", 3, 4)
    scale = {name: np.abs(w).max(-1, keepdims=True) / np.float32(127) for name, w in net.weights.items()}
    net = net.load({n: w if n[0] == "b" else np.rint(w / scale[n]) * scale[n] for n, w in net.weights.items()})
    rnn.compile(net, "x86-64", weights="int8").export(path)
    return called(net)


def training(path: Path) -> Arrays:
    net = network("gru", 3, 4, num_layers=2, dropout=0.25, zoneout={"h": 0.1}, weight_drop={"R": 0.2})
    rnn.compile(net, "x86-64", training=True).export(path)
    return trained(net, {"seed": 11, "first_step": 3})


def model(path: Path) -> Arrays:
    whole, given = rnn.from_onnx(classifier()), words(STEPS, BATCH)
    rnn.compile(whole, "x86-64").export(path)
    return flat(given, "x") | flat(rnn.reference(whole).run(given), "expected")


def gpu(path: Path) -> Arrays:
    net = network("elman", 3, 4)
    rnn.compile(net, "nvidia-h100", training=True).export(path)
    return trained(net, {})


def called(net: rnn.RNN, **rows: np.ndarray) -> Arrays:
    """What a call is given and what it returns."""
    x, state = arguments(net, STEPS, BATCH)
    expected = rnn.reference(net)(x, state, **rows)
    return flat(x, "x") | flat(state, "state") | flat(rows, "rows") | flat(expected, "expected")


def trained(net: rnn.RNN, numbers: dict[str, int]) -> Arrays:
    """The same of a call in training, and of its gradients. numbers: seed and first_step, where regularisers act."""
    case = draw(net, STEPS, BATCH, **flags(STEPS, BATCH))
    case.training.update(numbers)
    results = rnn.reference(net, **numbers)(case.x, case.state, **case.rows)
    given = flat(case.x, "x") | flat(case.state, "state") | flat(case.rows, "rows") | flat(numbers, "training")
    given |= flat(case.gy, "gy") | flat(case.gstate, "gstate")
    return given | flat(results, "expected") | flat(oracle(net, case), "gradients")


def main() -> None:
    target = FOLDER / f"format_{MANIFEST_FORMAT}.zip"
    if target.exists():
        raise SystemExit(f"{target} is there: files that were stored stay as they are")
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(target, "x", zipfile.ZIP_LZMA) as file:
        for make in (inference, int8, training, model, gpu):
            path = Path(place, f"{make.__name__}.so")
            np.savez(path.with_suffix(".npz"), **make(path))
            for own in (path, path.with_suffix(".npz")):
                file.write(own, own.name)


if __name__ == "__main__":
    main()

"""Modules on a real GPU: arrays of every library, streams, graphs and threads, against the oracle."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from gpu_modules import Allocations, gpu_module

import tvm_rnn as rnn
from tvm_rnn.oracle.tolerance import assert_close

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
T, B, WIDTH = 13, 5, 24
KINDS = {"float32": "float32", "tf32": "float32", "float64": "float64", "bfloat16": "bfloat16", "float16": "float16"}


def network(precision: str, seed: int = 0) -> rnn.RNN:
    return rnn.RNN(rnn.cells.lstm, WIDTH, 40, num_layers=2, dtype=KINDS[precision]).init(seed)


@pytest.fixture(params=KINDS)
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def module(precision: str) -> Any:
    """A module of its own for each test: some change its weights."""
    return gpu_module(f"lstm_{precision}", network(precision), precision=precision)


@pytest.fixture
def x(module: Any, precision: str) -> Any:  # after the module, which skips the test where there is no GPU
    generator = torch.Generator(device="cuda").manual_seed(1)
    dtype = getattr(torch, KINDS[precision])
    return torch.randn(T, B, WIDTH, generator=generator, device="cuda", dtype=torch.float32).to(dtype)


def plain(value: Any) -> np.ndarray:
    return np.asarray(value.double().cpu() if hasattr(value, "cpu") else value, np.float64)


def check(got: Any, x: Any, precision: str, seed: int = 0, **how: Any) -> None:
    y, state = rnn.reference(network(precision, seed))(plain(x), how.pop("state", None), **how)
    assert_close(plain(got[0]), y, precision, T, "y")
    assert_close({name: plain(value) for name, value in got[1].items()}, state, precision, T, "state")


def test_torch(module: Any, x: Any, precision: str) -> None:
    y, state = got = module(x)
    assert y.device == x.device and y.dtype == x.dtype and y.shape == (T, B, 40)
    check(got, x, precision)
    again = module(x, state)
    check(again, x, precision, state={name: plain(value) for name, value in state.items()})


def test_inputs_that_begin_between_multiples_of_16_bytes(module: Any, x: Any, precision: str) -> None:
    """They are copied: the result has the same bits."""
    memory = torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")
    moved = memory[1:].view(x.shape).copy_(x)
    assert moved.data_ptr() % 16
    (y, _), (y_moved, _) = module(x), module(moved)
    assert torch.equal(y, y_moved)
    check((y_moved, module(moved)[1]), x, precision)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(("cell", "hidden"), [("lstm", 40), ("gru_reset_before", 96), ("lstm", 1024), ("lstm", 2560)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_in_8_bits(cell: str, hidden: int, dtype: str) -> None:
    e4m3 = pytest.importorskip("e4m3")
    net = rnn.RNN(rnn.cells.get(cell), WIDTH, hidden, dtype=dtype).init(0)
    module = gpu_module(f"{cell}_{hidden}_{dtype}_float8", net, batch=[1, 16], weights="float8_e4m3")
    for batch in (1, 16, 70):
        x = torch.randn(T, batch, WIDTH, device="cuda").to(getattr(torch, dtype))
        y, state = rnn.reference(e4m3.network(net))(plain(x))
        got = module(x)
        assert_close(plain(got[0]), y, dtype, T, "y")
        assert_close({name: plain(value) for name, value in got[1].items()}, state, dtype, T, "state")


def test_lengths_and_reset(module: Any, x: Any, precision: str) -> None:
    lengths, reset = np.array([13, 0, 5, 7, 1]), np.random.default_rng(0).random((T, B)) < 0.2
    for n, mask in (
        (lengths.tolist(), reset),
        (torch.tensor(lengths, device="cuda").int(), torch.tensor(reset, device="cuda")),
        (torch.tensor(lengths), torch.tensor(reset, device="cuda").byte() * 3),
    ):
        check(module(x, lengths=n, reset=mask), x, precision, lengths=lengths, reset=reset)


def test_steps_are_the_sequence(module: Any, x: Any, precision: str) -> None:
    state, rows = None, []
    for row in x:
        y, state = module.step(row, state)
        rows.append(y)
    check((torch.stack(rows), state), x, precision)


def test_arrays_of_the_cpu(module: Any, x: Any, precision: str) -> None:
    got = module(x.cpu())
    assert not got[0].is_cuda and got[0].dtype == x.dtype
    check(got, x, precision)
    array = x.cpu().float().numpy() if precision == "bfloat16" else x.cpu().numpy()
    got = module(array, module.init_state(B))
    assert isinstance(got[0], np.ndarray) and got[0].dtype == array.dtype
    check(got, x, precision)
    check(module(x, module.init_state(B)), x, precision)


def test_strided_arrays(module: Any, x: Any, precision: str) -> None:
    check(module(x.transpose(0, 1).contiguous().transpose(0, 1)), x, precision)


def test_cupy(module: Any, x: Any, precision: str) -> None:
    cupy = pytest.importorskip("cupy")
    if precision == "bfloat16":
        pytest.skip("cupy has no bfloat16")
    with cupy.cuda.Stream() as stream:
        y, state = module(cupy.asarray(x.cpu().numpy()))
    stream.synchronize()
    assert isinstance(y, cupy.ndarray)
    check((cupy.asnumpy(y), {name: cupy.asnumpy(value) for name, value in state.items()}), x, precision)


@pytest.mark.parametrize("shape", [(0, B), (T, 0)])
def test_nothing_to_do(module: Any, x: Any, shape: tuple[int, int]) -> None:
    y, state = module(x[: shape[0], : shape[1]])
    assert y.shape == (*shape, 40) and all(not value.any() and value.is_cuda for value in state.values())


def test_a_graph_sees_new_inputs_and_new_weights(module: Any, x: Any, precision: str) -> None:
    module(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = module(x)
    for scale in (1, 0.5):
        x.mul_(scale)
        got[0].fill_(float("nan"))
        graph.replay()
        check(got, x, precision)
    module.load_weights(network(precision, seed=7).weights)
    graph.replay()
    check(got, x, precision, seed=7)


def test_every_run_gives_the_same_bits(module: Any, x: Any) -> None:
    long = x.repeat(20, 1, 1)
    first, _ = module(long)
    for _ in range(20):
        poison = torch.full_like(first, float("nan"))  # the next result's memory, if it is not all written
        del poison
        y, _ = module(long)
        assert torch.equal(y, first)
        del y


def test_threads_and_streams(module: Any, x: Any) -> None:
    wrong = []

    def work(rows: int) -> None:
        own = x[:, :1].repeat(1, rows, 1)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            expected, _ = module(own)
            for _ in range(10):
                y, _ = module(own)
                stream.synchronize()
                wrong.extend([rows] * (not torch.equal(y, expected)))
                wrong.extend([rows] * (not torch.equal(module(own.cpu())[0], expected.cpu())))

    threads = [threading.Thread(target=work, args=(rows,)) for rows in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_watchdog(module: Any, x: Any) -> None:
    module(x)
    module.watchdog_seconds = 20
    module(x)
    module.watchdog_seconds = 0.1
    torch.cuda._sleep(2_000_000_000)
    with pytest.raises(rnn.DeviceError, match="watchdog"):
        module(x)
    torch.cuda.synchronize()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m, x: m(x.to(torch.int8)), "wrong dtype"),
        (lambda m, x: m(x[..., :3]), "wrong shape"),
        (lambda m, x: m(x, lengths=torch.zeros(3, device="cuda").int()), "lengths does not fit"),
        (lambda m, x: m(x, reset=torch.zeros(T, B, device="cuda")), "reset does not fit"),
        (lambda m, x: m(x, {"h": x, "c": x}), "wrong shape"),
    ],
)
def test_what_does_not_fit(module: Any, x: Any, call: Any, says: str) -> None:
    with pytest.raises(rnn.InputError, match=says):
        call(module, x)


def test_memory_is_given_back(precision: str, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's, as it counts it: other processes may use the same GPU."""
    modules = Allocations(monkeypatch)

    def used() -> int:
        gc.collect()
        return modules.bytes + int(torch.cuda.memory_allocated())

    big = x.cpu().repeat(1, 4000, 1)
    gpu_module(f"lstm_{precision}", network(precision), precision=precision)(big)
    before = used()
    for _ in range(5):
        gpu_module(f"lstm_{precision}", network(precision), precision=precision)(big)
    assert used() == before


def test_three_files_are_enough(module: Any, x: Any, tmp_path: Any) -> None:
    module.export(tmp_path / "m.so")
    folder = os.path.join(os.path.dirname(rnn.__file__), "runtime")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import numpy, runtime\n"
        "m = runtime.load('m.so')\n"
        "kind = 'float32' if m.manifest.dtype == 'bfloat16' else m.manifest.dtype\n"
        f"print(m(numpy.ones((2, 1, {WIDTH}), kind))[0].shape, 'tvm_rnn' in sys.modules)"
    )
    for name in ("runtime.py", "runtime_cuda.py", "gpu_arrays.py"):
        shutil.copy(os.path.join(folder, name), tmp_path)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "(2, 1, 40) False\n", done.stderr

"""runtime_cuda.py without a GPU: the real host program on a fake CUDA runtime whose GPU memory is the CPU's."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_gpu import H, Log, expected, toolchain, write_tiny
from gpu_modules import Allocations

from tvm_rnn.errors import DeviceError, InputError, LoadError, WeightError
from tvm_rnn.runtime import gpu_arrays, runtime
from tvm_rnn.runtime.runtime import load
from tvm_rnn.runtime.runtime_cuda import CudaModule, fits

X = np.random.default_rng(0).normal(size=(5, 4, H)).astype("f4")


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain()
    monkeypatch.setenv("FAKE_GPUS", "90")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "m.so")


@pytest.fixture
def module(path: Path) -> Iterator[CudaModule]:
    found = load(path)
    assert isinstance(found, CudaModule)
    yield found


def test_numpy_in_and_out(module: CudaModule) -> None:
    y, state = module(X)
    expected_y, h = expected(X)
    np.testing.assert_array_equal(y, expected_y, strict=True)
    np.testing.assert_array_equal(state["h"], h, strict=True)
    np.testing.assert_array_equal(state["m"], np.full((1, 4, H), 6, "f4"), strict=True)


def test_with_the_batch_first(module: CudaModule) -> None:
    lengths, reset = [5, 0, 2, 4], np.random.default_rng(1).random((5, 4)) < 0.3
    expected_y, h = expected(X, None, lengths, reset)
    module.batch_first = True
    y, state = module(X.swapaxes(0, 1), lengths=lengths, reset=reset.T)
    np.testing.assert_array_equal(y.swapaxes(0, 1), expected_y)
    np.testing.assert_array_equal(state["h"], h)
    with pytest.raises(InputError, match=r"x has the wrong shape[\s\S]*\[B, T, "):
        module(X[0])


def test_states_lengths_and_reset(module: CudaModule) -> None:
    start = {"h": X[:1].copy(), "m": np.zeros((1, 4, H), "f4")}
    lengths, reset = [5, 0, 2, 4], np.random.default_rng(1).random((5, 4)) < 0.3
    y, state = module(X, start, lengths=lengths, reset=reset)
    expected_y, h = expected(X, start["h"], lengths, reset)
    np.testing.assert_array_equal(y, expected_y)
    np.testing.assert_array_equal(state["h"], h)
    again, _ = module(X, module.init_state(4), lengths=np.array(lengths, "i2"), reset=reset.astype("u1"))
    np.testing.assert_array_equal(again, expected(X, None, lengths, reset)[0])


def test_steps(module: CudaModule) -> None:
    state, rows = None, []
    for x in X:
        y, state = module.step(x, state)
        rows.append(y)
    np.testing.assert_array_equal(np.stack(rows), expected(X)[0])


@pytest.mark.parametrize("shape", [(0, 4), (5, 0), (0, 0)])
def test_nothing_to_do(module: CudaModule, shape: tuple[int, int]) -> None:
    y, state = module(np.zeros((*shape, H), "f4"))
    assert y.shape == (*shape, H) and state["m"].shape == (1, shape[1], H) and (state["m"] == 1).all()


def test_torch_on_the_cpu(module: CudaModule) -> None:
    torch = pytest.importorskip("torch")
    y, state = module(torch.from_numpy(X))
    assert isinstance(y, torch.Tensor) and isinstance(state["h"], torch.Tensor)
    np.testing.assert_array_equal(y.numpy(), expected(X)[0])


@pytest.mark.broad
def test_strided_and_double(tmp_path: Path, module: CudaModule) -> None:
    np.testing.assert_array_equal(module(np.asfortranarray(X))[0], expected(X)[0])
    wide = load(write_tiny(tmp_path / "d.so", "float64"))
    np.testing.assert_array_equal(wide(X.astype("f8"))[0], expected(X.astype("f8"))[0])
    with pytest.raises(InputError, match="wrong dtype"):
        wide(X)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: m(X[..., :2]), "wrong shape"),
        (lambda m: m(X[0]), "wrong shape"),
        (lambda m: m(X.astype("i4")), "wrong dtype"),
        (lambda m: m([1.0]), "not an array"),
        (lambda m: m(X, {"h": X}), "the state is not the module's"),
        (lambda m: m(X, {"h": X, "m": X}), "wrong shape"),
        (lambda m: m(X, lengths=[9, 0, 0, 0]), "out of range"),
        (lambda m: m(X, reset=np.zeros((5, 4))), "does not fit"),
        (lambda m: setattr(m, "threads", 2), "no threads"),
    ],
)
def test_what_does_not_fit(module: CudaModule, call: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        call(module)


def test_new_weights(module: CudaModule) -> None:
    module(X)
    module.load_weights({"w_l0": np.full(H, 0.25, "f4")})
    np.testing.assert_array_equal(module(X)[0], expected(X, weight=0.25)[0])
    with pytest.raises(WeightError):
        module.load_weights({"w_l0": np.full(H, 0.25, "f8")})


def test_export_keeps_everything(module: CudaModule, tmp_path: Path) -> None:
    module.load_weights({"w_l0": np.full(H, -1, "f4")})
    module.export(tmp_path / "again.so")
    np.testing.assert_array_equal(load(tmp_path / "again.so")(X)[0], expected(X, weight=-1)[0])


def test_memory_is_given_back(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(path, own := tmp_path / "own.so")
    counted = Allocations(monkeypatch)  # as tests on a GPU count
    module, log = load(own), Log(own)
    module(X)
    assert log.allocated > 0 and counted.bytes > 0
    del module
    gc.collect()
    assert log.allocated == counted.bytes == 0


def test_memory_is_used_again(path: Path) -> None:
    module, log = load(path), Log(path)
    module(X)
    before = log.allocated
    for _ in range(3):
        module(X)
    assert log.allocated == before


def test_threads_have_memory_of_their_own(module: CudaModule) -> None:
    wrong = []

    def work(rows: int) -> None:
        x = np.random.default_rng(rows).normal(size=(50, rows, H)).astype("f4")
        wrong.extend(rows for _ in range(20) if not np.array_equal(module(x)[0], expected(x)[0]))

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.broad
def test_the_right_arch_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_tiny(tmp_path / "three.so", archs=("compute_80", "sm_80", "sm_90a"))
    for capability, arch in (("90", "sm_90a"), ("89", "sm_80"), ("80", "sm_80"), ("120", "compute_80")):
        monkeypatch.setenv("FAKE_GPUS", capability)
        module = load(file)
        np.testing.assert_array_equal(module(X)[0], expected(X)[0])
        assert module._devices[0].variant.arch == arch


@pytest.mark.parametrize(("gpus", "says"), [("", "no GPU"), ("80", "8.0"), ("100", "10.0"), ("75,89", "7.5, 8.9")])
def test_the_wrong_gpu(path: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, says: str) -> None:
    monkeypatch.setenv("FAKE_GPUS", gpus)
    with pytest.raises(LoadError, match=rf"for {'another' if gpus else 'a'} GPU[\s\S]*{says}[\s\S]*sm_90a"):
        load(path)


def test_one_of_several_gpus(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "80,90")
    module = load(path)
    with pytest.raises(LoadError, match=r"8\.0"):
        module(X)
    module.device = 1
    np.testing.assert_array_equal(module(X)[0], expected(X)[0])


def test_the_watchdog(module: CudaModule, monkeypatch: pytest.MonkeyPatch) -> None:
    module.watchdog_seconds = 60
    module(X)
    module.watchdog_seconds = 0.05
    monkeypatch.setenv("FAKE_STATE", "hang")
    with pytest.raises(DeviceError, match=r"watchdog[\s\S]*50 ms"):
        module(X)


def test_the_watchdog_of_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_RNN_WATCHDOG_SECONDS", "2.5")
    assert load(path).watchdog_seconds == 2.5


def test_a_fault_is_an_error_of_ours(module: CudaModule, monkeypatch: pytest.MonkeyPatch) -> None:
    module(X)
    monkeypatch.setenv("FAKE_STATE", "fault")
    with pytest.raises(DeviceError, match="cudaErrorFake"):
        module(X)


def test_the_first_call_is_not_captured(module: CudaModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STATE", "capture")
    with pytest.raises(DeviceError, match="call it once, then capture"):
        module(X)
    monkeypatch.delenv("FAKE_STATE")
    module(X)
    monkeypatch.setenv("FAKE_STATE", "capture")
    np.testing.assert_array_equal(module(X)[0], expected(X)[0])


def test_weights_take_memory_in_the_first_call(module: CudaModule, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = module._device(gpu_arrays.HostArrays(module, None)).parts["sequence"]
    assert plain.stale and not plain.packed
    monkeypatch.setenv("FAKE_STATE", "capture")
    with pytest.raises(DeviceError, match="call it once, then capture"):
        module(X)
    monkeypatch.delenv("FAKE_STATE")
    module(X)
    assert plain.packed and not plain.stale
    module.load_weights({"w_l0": np.full(H, -1, "f4")})
    assert not plain.stale  # graphs that were captured before use them too


def test_a_gpu_without_memory(module: CudaModule) -> None:
    module.manifest["variants"][0]["packed_bytes"] = 1 << 50
    with pytest.raises(DeviceError, match="no memory"):
        module(X)


def test_fits() -> None:
    assert fits("sm_90a", 90) and not fits("sm_90a", 100) and not fits("sm_90a", 89)
    assert fits("sm_80", 89) and fits("sm_86", 89) and not fits("sm_86", 80) and not fits("sm_80", 90)
    assert not any(fits(arch, 90) for arch in ("", "sm_", "90", "sm_9x", "compute_90a", "sm_" + "9" * 5000))
    assert fits("compute_80", 80) and fits("compute_80", 120) and not fits("compute_86", 80)


@pytest.mark.broad
def test_three_files_beside_a_so_are_enough(path: Path, tmp_path: Path) -> None:
    for name in ("runtime.py", "runtime_cuda.py", "gpu_arrays.py"):
        shutil.copy(Path(runtime.__file__).with_name(name), tmp_path)
    shutil.copy(path, tmp_path / "m.so")
    code = "import numpy, runtime; y, s = runtime.load('m.so')(numpy.ones((2, 1, 3), 'f4')); print(y.ravel())"
    code += "\ntry: runtime.load('m.so')(1)\nexcept runtime.InputError as e: print(type(e).__mro__[1].__name__)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path[:0] = ['.']\n{code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "[1.  1.  1.  1.5 1.5 1.5]" in done.stdout and "TvmRnnError" in done.stdout


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch, whose tensors count as arrays of the fake GPU: it has its memory where the CPU has its own."""
    torch = pytest.importorskip("torch")

    class Arrays(gpu_arrays.TorchArrays):
        def __init__(self, module: Any, number: int, back: type | None) -> None:
            super().__init__(module, number, back)
            self.place = torch.device("cpu")

        def stream(self) -> int:
            return 7

    monkeypatch.setattr(gpu_arrays, "gpu_of", lambda value: 0 if isinstance(value, torch.Tensor) else None)
    monkeypatch.setattr(gpu_arrays, "TorchArrays", Arrays)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return torch


def test_torch_on_the_gpu(module: CudaModule, on_gpu: Any) -> None:
    x, lengths, reset = on_gpu.tensor(X), on_gpu.tensor([5, 0, 2, 4]).int(), on_gpu.tensor(X[..., 0] > 0.5)
    for _ in range(2):  # the second call has its initial states from the first
        y, state = module(x)
        expected_y, h = expected(X)
        np.testing.assert_array_equal(y.numpy(), expected_y)
        np.testing.assert_array_equal(state["h"].numpy(), h)
    before = {name: value.clone() for name, value in state.items()}
    y, _ = module(x.transpose(0, 1).contiguous().transpose(0, 1), state, lengths=lengths, reset=reset)
    np.testing.assert_array_equal(y.numpy(), expected(X, h, lengths.numpy(), reset.numpy())[0])
    assert all(on_gpu.equal(before[name], state[name]) for name in state)
    again, _ = module(x, module.init_state(4), lengths=lengths.tolist(), reset=reset.byte() * 3)
    np.testing.assert_array_equal(again.numpy(), expected(X, None, lengths.numpy(), reset.numpy())[0])


def test_the_callers_stream_is_used_and_nothing_is_copied(path: Path, on_gpu: Any) -> None:
    module, log, x = load(path), Log(path), on_gpu.tensor(X)
    module(x)
    log.take()
    module(x)
    assert log.take() == []  # the cell is C++ of the host program: no kernel, and no copy
    module(x.numpy())
    assert {word.split("(")[0] for word in log.take()} == {"transfer"}


@pytest.mark.parametrize(("width", "copied"), [(4, True), (3, False)])
def test_what_begins_between_multiples_of_16_bytes_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_gpu: Any, width: int, copied: bool
) -> None:
    """Kernels would read it value by value, as they do where rows are no whole pieces of 16 bytes."""
    module = load(write_tiny(tmp_path / "m.so", inputs=[{"name": "x", "shape": [width]}]))
    assert isinstance(module, CudaModule)
    memory, taken = on_gpu.zeros(5 * 4 * width + 1), list[Any]()
    monkeypatch.setattr(module, "_launch", lambda program, arrays, sizes, first, rest: taken.append(rest[1]))
    for first in (0, 1):
        x = memory[first:][: 5 * 4 * width].reshape(5, 4, width)
        assert x.data_ptr() % 16 == 4 * first
        module(x)
        own = taken.pop()
        assert (own.data_ptr() != x.data_ptr()) == (copied and bool(first)) and on_gpu.equal(own, x)


def test_results_that_nothing_is_done_for(module: CudaModule, on_gpu: Any) -> None:
    state = {"h": on_gpu.ones(1, 4, H), "m": on_gpu.ones(1, 4, H)}
    _, after = module(on_gpu.zeros(0, 4, H), state)
    state["h"].zero_()
    assert (after["h"] == 1).all()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"lengths": [1.0, 2.0, 3.0, 4.0]}, "lengths does not fit"),
        ({"lengths": [1, 2, 3]}, "lengths does not fit"),
        ({"reset": [[0.5] * 4] * 5}, "reset does not fit"),
    ],
)
def test_rows_of_the_gpu_that_do_not_fit(module: CudaModule, on_gpu: Any, how: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        module(on_gpu.tensor(X), **{name: on_gpu.tensor(value) for name, value in how.items()})


def test_several_layers_of_other_shapes(tmp_path: Path, on_gpu: Any) -> None:
    states = [{"name": "h", "shapes": [[1], [2]], "initial": 0.0}, {"name": "m", "shapes": [[3], [0]], "initial": 1.0}]
    module = load(write_tiny(tmp_path / "m.so", states=states, num_layers=2))
    given = [on_gpu.ones(1, 4, 1), on_gpu.full((1, 4, 2), 2.0)]
    for x in (on_gpu.tensor(X), X):
        _, state = module(
            x,
            {
                "h": given if isinstance(x, on_gpu.Tensor) else [g.numpy() for g in given],
                "m": module.init_state(4)["m"],
            },
        )
        assert [tuple(part.shape) for part in state["h"]] == [(1, 4, 1), (1, 4, 2)]
        flat = np.concatenate([np.asarray(part).ravel() for part in state["h"]])
        start = np.concatenate([g.numpy().ravel() for g in given]).reshape(1, 4, 3)
        np.testing.assert_array_equal(flat.reshape(1, 4, 3), expected(X, start)[1])
    with pytest.raises(InputError, match="not a list"):
        module(X, {"h": X, "m": module.init_state(4)["m"]})


# --- calls like earlier ones -----------------------------------------------------------------------------------------


@pytest.fixture
def whole_ways(monkeypatch: pytest.MonkeyPatch, on_gpu: Any) -> list[object]:
    """The calls that went the whole way."""
    found, run_on = list[object](), CudaModule._run_on

    def counted(self: CudaModule, arrays: Any, call: Any) -> Any:
        found.append(call)
        return run_on(self, arrays, call)

    monkeypatch.setattr(CudaModule, "_run_on", counted)
    return found


def same(module: CudaModule, x: Any, *given: Any, weight: float = 0.5, **rows: Any) -> None:
    """The module's results are the tiny cell's. given: a state, or nothing."""
    lengths, reset = (None if rows.get(name) is None else np.asarray(rows[name]) for name in ("lengths", "reset"))
    y, last = module(x, *given, **rows)
    h = given[0]["h"].numpy() if given and given[0] is not None else None
    expected_y, expected_h = expected(x.detach().numpy(), h, lengths, reset, weight)
    np.testing.assert_array_equal(y.numpy(), expected_y, strict=True)
    np.testing.assert_array_equal(last["h"].numpy(), expected_h, strict=True)
    assert not y.requires_grad and [*last.keys()] == ["h", "m"]


def test_a_call_like_an_earlier_one_goes_a_shorter_way(
    module: CudaModule, on_gpu: Any, whole_ways: list[object]
) -> None:
    torch = on_gpu
    x, lengths = torch.from_numpy(X), torch.tensor([5, 0, 2, 4])
    same(module, x)
    state = module(x)[1]
    assert len(whole_ways) == 1 and (state.m == 6).all()
    for _ in range(2):
        same(module, x)
        same(module, x, lengths=lengths)
        same(module, x, state)
        same(module, x, {**state}, lengths=lengths)
    assert len(whole_ways) == 1
    rows, state = [], None
    for step in x:
        y, state = module.step(step, state)
        rows.append(y)
    np.testing.assert_array_equal(torch.stack(rows).numpy(), expected(X)[0])
    assert len(whole_ways) == 2  # the first step


def test_what_is_not_like_it_goes_the_whole_way(module: CudaModule, on_gpu: Any, whole_ways: list[object]) -> None:
    torch = on_gpu
    x, state = torch.from_numpy(X), {"h": torch.rand(1, 4, H), "m": torch.zeros(1, 4, H)}
    same(module, x, state)
    same(module, x, None)  # the first one from the initial states
    assert len(whole_ways) == 2
    strided = torch.from_numpy(np.asfortranarray(X))
    shifted = torch.zeros(x.numel() + 1)[1:].reshape(x.shape).copy_(x)
    turned = torch.stack([state["h"]] * 2, -1)[..., 0]
    ways: list[tuple[Any, Any, dict[str, Any]]] = [
        (strided, None, {}),
        (shifted, None, {}),
        (torch.nn.Parameter(x, requires_grad=False), None, {}),
        (x, {**state, "h": turned}, {}),
        (x, None, {"lengths": [5, 0, 2, 4]}),
        (x, None, {"lengths": torch.tensor([5, 0, 2, 4], dtype=torch.int32)}),
        (x, None, {"reset": torch.zeros(5, 4, dtype=torch.bool)}),
        (x[:3].contiguous(), None, {}),
        (x[:, :2].contiguous(), None, {}),
    ]
    for count, (values, first, rows) in enumerate(ways, 3):
        same(module, values, first, **rows)
        assert len(whole_ways) == count
    wrong: list[tuple[Any, Any, dict[str, Any]]] = [
        (x.double(), None, {}),
        (x, {"h": state["h"]}, {}),
        (x, {"h": state["h"], "other": state["m"]}, {}),
        (x, {**state, "h": torch.rand(1, 5, H)}, {}),
        (x, [state["h"], state["m"]], {}),
        (x, None, {"lengths": torch.ones(5, dtype=torch.int64)}),
        (x.to_sparse(), None, {}),
        (x.to("meta"), None, {}),
    ]
    for values, first, rows in wrong:
        with pytest.raises((InputError, DeviceError)):
            module(values, first, **rows)
    with on_gpu.no_grad():
        same(module, x.clone().requires_grad_())
    same(module, x)
    assert len(whole_ways) == 3 + len(ways) + len(wrong)


def test_a_call_like_an_earlier_one_has_the_weights_stream_and_watchdog_of_now(
    module: CudaModule, on_gpu: Any, whole_ways: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, x = [3], on_gpu.from_numpy(X)
    monkeypatch.setattr(gpu_arrays.TorchArrays, "stream", lambda arrays: stream[0])
    same(module, x)
    module.load_weights({"w_l0": np.full(H, 0.25, "f4")})
    same(module, x, weight=0.25)
    given, functions = list[Any](), module._devices[0].parts["sequence"].functions
    run = functions["sequence"]
    functions["sequence"] = lambda *arguments: (given.append(arguments), run(*arguments))
    same(module, x, weight=0.25)
    stream[0] = 4
    same(module, x, weight=0.25)
    assert [arguments[1] for arguments in given] == [3, 4] and len(whole_ways) == 1
    module.watchdog_seconds = 5.0
    same(module, x, weight=0.25)
    assert len(whole_ways) == 2
    module.watchdog_seconds = None

    def fails(*_: object) -> None:
        raise RuntimeError("out of memory")

    functions["sequence"] = fails
    with pytest.raises(DeviceError, match="out of memory"):
        module(x)
    assert len(whole_ways) == 2

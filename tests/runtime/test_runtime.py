"""runtime.py: calling a module: arrays of every kind in, right results or one clear error out.

In: the hand-written cell of tiny_cell.c, and for steps into arrays that exist, which allocate nothing, compiled ones.
Files, machines and use without the package are in test_runtime_files.py.
"""

from __future__ import annotations

import copy
import functools
import pickle
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_module import H, Tiny

import tvm_rnn as rnn
from tvm_rnn.errors import InputError, TvmRnnError, WeightError
from tvm_rnn.runtime import runtime
from tvm_rnn.runtime.runtime import Module, load
from tvm_rnn.runtime.runtime_training import Trainable

pytestmark = pytest.mark.usefixtures("children_without_torch")

FORMS = [Tiny(), Tiny(2), Tiny(1, 2), Tiny(2, dtype="float64")]
Make = Callable[..., Module]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A loaded module of a form; the same one again for the same form unless something is changed."""
    known: dict[Tiny, Module] = {}

    def make(tiny: Tiny = FORMS[0], **changes: Any) -> Module:
        if changes or tiny not in known:
            module = load(tiny.write(tmp_path_factory.mktemp("tiny") / "m.so", **changes))
            return module if changes else known.setdefault(tiny, module)
        return known[tiny]

    return make


def numbers(*shape: int, dtype: str = "float32", seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def same(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6, strict=True)


@pytest.mark.parametrize("tiny", FORMS, ids=str)
@pytest.mark.parametrize(("T", "B"), [(1, 1), (7, 3), (33, 1), (2, 40)])
def test_a_call_agrees_with_numpy(make: Make, tiny: Tiny, T: int, B: int) -> None:
    x, h = numbers(T, B, H, dtype=tiny.dtype), numbers(tiny.layers * tiny.directions, B, H, dtype=tiny.dtype)
    for state, start in ((None, None), ({"h": h}, h)):
        y, after = make(tiny)(x, state)
        expected_y, expected_h = tiny.expected(x, start)
        same(y, expected_y)
        same(after["h"], expected_h)


@pytest.mark.parametrize("tiny", FORMS, ids=str)
@pytest.mark.parametrize("kind", [list, np.array, lambda n: np.array(n, "u1")], ids=["list", "int64", "uint8"])
def test_lengths_and_reset(make: Make, tiny: Tiny, kind: Callable[[Any], Any]) -> None:
    x, lengths = numbers(6, 4, H, dtype=tiny.dtype), [6, 0, 3, 1]
    reset = np.random.default_rng(2).random((6, 4)) < 0.4
    for mask in (None, reset, reset.astype("u1") * 2, reset.tolist(), np.asfortranarray(reset)):
        expected_y, expected_h = tiny.expected(x, None, lengths, None if mask is None else reset)
        y, after = make(tiny)(x, lengths=kind(lengths), reset=mask)
        same(y, expected_y)
        same(after["h"], expected_h)


@pytest.mark.parametrize("tiny", [FORMS[0], FORMS[1], FORMS[3]], ids=str)
def test_steps_and_pieces_are_the_sequence(make: Make, tiny: Tiny) -> None:
    module, x = make(tiny), numbers(9, 2, H, dtype=tiny.dtype)
    y, after = module(x)
    state = module.init_state(batch=2)
    steps = []
    for x_t in x:
        y_t, state = module.step(x_t, state)
        steps.append(y_t)
    np.testing.assert_array_equal(np.stack(steps), y)
    np.testing.assert_array_equal(state["h"], after["h"])
    first, between = module(x[:4])
    second, last = module(x[4:], between)
    np.testing.assert_array_equal(np.concatenate([first, second]), y)
    np.testing.assert_array_equal(last["h"], after["h"])
    np.testing.assert_array_equal(module.step(x[0])[0], y[0])


def test_with_the_batch_first(make: Make, tmp_path: Path) -> None:
    """As the same call with time first, of arrays of both kinds; the file keeps it."""
    plain, tiny = make(FORMS[1]), FORMS[1]
    module = copy.copy(plain)
    module.batch_first = True
    assert not plain.batch_first and "batch first" in repr(module) and "batch first" not in repr(plain)
    module.export(tmp_path / "m.so")
    x, reset, lengths = numbers(6, 4, H), np.random.default_rng(2).random((6, 4)) < 0.4, [6, 0, 3, 1]
    expected_y, expected_h = tiny.expected(x, None, lengths, reset)
    for own in (module, copy.copy(module), load(tmp_path / "m.so")):
        for turned in (reset.T, reset.T.tolist(), reset.T.astype("u1")):
            y, after = own(x.swapaxes(0, 1), lengths=lengths, reset=turned)
            same(y.swapaxes(0, 1), expected_y)
            same(after["h"], expected_h)
    state = after
    same(module({"x": x.swapaxes(0, 1)}, state)[0], plain(x, state)[0].swapaxes(0, 1))
    same(module.step(x[0], state)[0], plain.step(x[0], state)[0])
    assert module(x.swapaxes(0, 1)[:, :0])[0].shape == (4, 0, H) and module(x.swapaxes(0, 1)[:0])[0].shape == (0, 6, H)


def test_the_other_order_of_axes_is_told(make: Make) -> None:
    plain = make()
    first = copy.copy(plain)
    first.batch_first = True
    x = numbers(6, 4, H)
    calls: dict[str, Callable[[], object]] = {
        r"lengths does not fit x[\s\S]*x has 4 rows of 6 steps here": lambda: plain(x, lengths=[1] * 6),
        r"lengths does not fit x[\s\S]*x has 6 rows of 4 steps here": lambda: first(x, lengths=[1] * 4),
        r"reset does not fit x[\s\S]*\(6, 4\) = \[B, T\]": lambda: first(x, reset=np.zeros((4, 6), bool)),
        r"x has the wrong shape[\s\S]*\[B, T, 4\][\s\S]*a batch of one: x\[None\]": lambda: first(x[0]),
        r"state h has the wrong shape": lambda: first(x, {"h": np.zeros((1, 4, H), "f4")}),
        r"x is not an array": lambda: first(x.tolist()),
    }
    for text, call in calls.items():
        with pytest.raises(InputError, match=text.replace("[B, T, 4", f"[B, T, {H}")):
            call()


def test_a_state_is_a_dict_that_unpacks_as_torchs() -> None:
    state = runtime.State(h=1, c=2)
    h, c = state
    assert (h, c) == (1, 2) == (state.h, state["c"]) == (state[0], state[-1])
    assert list(state) == ["h", "c"] and {**state} == dict(state) == state
    for (a, b), name in zip([state], state, strict=False):
        assert (a, b, name) == (1, 2, "h")
    assert type(pickle.loads(pickle.dumps(state))) is dict and not hasattr(state, "k")
    with pytest.raises(KeyError):
        state["k"]
    with pytest.raises(ValueError, match="unpack"):
        h, c, _ = state


@pytest.mark.parametrize(("T", "B"), [(0, 3), (4, 0), (0, 0)])
def test_nothing_to_do_runs_no_code(make: Make, T: int, B: int) -> None:
    module, h = make(FORMS[2]), numbers(2, B, H)
    y, after = module(np.zeros((T, B, H), "f4"), {"h": h}, lengths=[0] * B, reset=np.zeros((T, B), bool))
    assert y.shape == (T, B, 2 * H) and y.dtype == np.float32
    np.testing.assert_array_equal(after["h"], h)
    assert not np.shares_memory(after["h"], h)
    y, after = make().step(np.zeros((0, H), "f4"))
    assert y.shape == (0, H) and after["h"].shape == (1, 0, H)


def test_several_inputs_and_states_of_different_shapes(make: Make) -> None:
    module = make(Tiny(2, extra=True))
    x, a = numbers(5, 3, H), numbers(5, 3)
    expected_y, expected_h = Tiny(2).expected(x + a[..., None])
    calls: list[tuple[Any, dict[str, Any]]] = [((x, a), {}), ([x, a], {}), ({"a": a, "x": x}, {}), (x, {"a": a})]
    for first, named in calls:
        y, after = module(first, **named)
        same(y, expected_y)
        same(after["h"], expected_h)
        assert [m.shape for m in after["m"]] == [(1, 3, 2), (1, 3, 3)]
        assert (after["m"][0] == 5).all() and (after["m"][1] == 10).all()
    state = module.init_state(3)
    assert [m.shape for m in state["m"]] == [(1, 3, 2), (1, 3, 3)] and (state["h"] == 0.5).all()
    _, again = module.step((x[0], a[0]), after)
    assert (again["m"][0] == 6).all() and (again["m"][1] == 12).all()
    wrong = {
        "the inputs are not the module's": [x, (x,), (x, a, a), {"x": x}, {"x": x, "a": a, "b": a}],
        "a has the wrong shape": [(x, a[:4]), (x, a[..., None])],
    }
    for text, values in wrong.items():
        for value in values:
            with pytest.raises(InputError, match=text):
                module(value)
    with pytest.raises(InputError, match="state m is not a list"):
        module((x, a), {"h": after["h"], "m": after["m"][0]})
    with pytest.raises(InputError, match="m has the wrong shape"):
        module((x, a), {"h": after["h"], "m": after["m"][::-1]})


def unaligned(array: np.ndarray) -> np.ndarray:
    raw = np.zeros(array.nbytes + 1, np.uint8)
    view = raw[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "fortran": np.asfortranarray,
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "reversed": lambda a: a[::-1].copy()[::-1],
    "unaligned": unaligned,
    "off by one element": lambda a: np.concatenate([a.ravel()[:1], a.ravel()])[1:].reshape(a.shape),
    "swapped": lambda a: a.astype(a.dtype.newbyteorder()),
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "memmap": lambda a: a.view(np.memmap),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tiny", [FORMS[1], FORMS[3]], ids=str)
def test_every_layout_gives_the_same(make: Make, tiny: Tiny, layout: str) -> None:
    change, module = LAYOUTS[layout], make(tiny)
    x, h = numbers(4, 3, H, dtype=tiny.dtype), numbers(2, 3, H, dtype=tiny.dtype)
    expected_y, expected = module(x, {"h": h})
    y, after = module(change(x), {"h": change(h)}, lengths=np.repeat([4, 4, 4], 2)[::2])
    assert type(y) is np.ndarray and type(after["h"]) is np.ndarray and y.dtype.isnative
    np.testing.assert_array_equal(y, expected_y)
    np.testing.assert_array_equal(after["h"], expected["h"])


def test_results_share_no_memory(make: Make) -> None:
    module, x, h = make(FORMS[1]), numbers(4, 3, H), numbers(2, 3, H)
    kept = x.copy(), h.copy()
    y, after = module(x, {"h": h})
    y2, after2 = module(x, {"h": h})
    arrays = [x, h, y, after["h"], y2, after2["h"]]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
    for result in arrays[2:]:
        assert result.flags.writeable
        result[...] = 0
    np.testing.assert_array_equal(x, kept[0])
    np.testing.assert_array_equal(h, kept[1])
    same(module(x, {"h": h})[0], FORMS[1].expected(x, h)[0])


def test_nan_and_infinity_pass_through(make: Make) -> None:
    x = numbers(3, 3, H)
    x[1, 0, 0], x[1, 1, 1] = np.nan, np.inf
    y, _ = make()(x)
    assert np.isnan(y[1:, 0, 0]).all() and np.isinf(y[1:, 1, 1]).all() and np.isfinite(y[:, 2]).all()


def test_torch_in_torch_out(make: Make) -> None:
    torch = pytest.importorskip("torch")
    module, x, h = make(FORMS[1]), numbers(4, 3, H), numbers(2, 3, H)
    expected_y, expected = module(x, {"h": h})
    for tensor in (
        torch.from_numpy(x),
        torch.from_numpy(x).requires_grad_(),
        torch.nn.Parameter(torch.from_numpy(x)),
        torch.from_numpy(np.ascontiguousarray(x.transpose(1, 0, 2))).transpose(0, 1),
    ):
        with torch.no_grad():
            y, after = module(tensor, {"h": torch.from_numpy(h)}, lengths=torch.tensor([4, 4, 4]))
        assert type(y) is torch.Tensor and type(after["h"]) is torch.Tensor and not y.requires_grad
        np.testing.assert_array_equal(y.numpy(), expected_y)
        np.testing.assert_array_equal(after["h"].numpy(), expected["h"])
    y, after = module.step(torch.from_numpy(x[0]), module.init_state(3))
    assert type(y) is torch.Tensor and type(after["h"]) is torch.Tensor
    y, after = module(x, {"h": torch.from_numpy(h)}, reset=torch.zeros(4, 3, dtype=torch.bool))
    assert type(y) is np.ndarray and type(after["h"]) is np.ndarray
    assert module(torch.zeros(0, 3, H))[0].shape == (0, 3, H)
    good = torch.zeros(4, 3, H)
    for wrong in (good.to("meta"), good.to_sparse(), good.bfloat16(), good.to(torch.complex64), good.half(), good > 0):
        with pytest.raises(InputError, match="do:"):
            module(wrong)


def test_tvm_ffi_in_tvm_ffi_out(make: Make) -> None:
    import tvm_ffi

    x = numbers(4, 3, H)
    y, after = make()(tvm_ffi.from_dlpack(x))
    assert isinstance(y, tvm_ffi.Tensor) and isinstance(after["h"], tvm_ffi.Tensor)
    same(np.from_dlpack(y), FORMS[0].expected(x)[0])


class OnGpu:
    """An array of another device, as far as DLPack can tell."""

    shape, dtype, device = (4, 3, H), "float32", "gpu:0"

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("memory of another device must not be asked for")


class NoShape:
    """As torch's nested tensors."""

    @property
    def shape(self) -> Any:
        raise RuntimeError("Internal error: no sizes")


X = numbers(4, 3, H)
STATE = {"h": numbers(1, 3, H)}
WRONG_CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "rank": (r"\(3, 5\)(.|\n)*\[T, B, 5\](.|\n)*a batch of one: x\[:, None\]", (X[0],), {}),
    "rank 0": (r"\(\)(.|\n)*\[T, B, 5\]", (np.zeros((), "f4"),), {}),
    "width": (r"\(4, 3, 4\)(.|\n)*\[T, B, 5\]", (X[..., :4],), {}),
    "float64": ("got: +float64(.|\n)*expected: float32(.|\n)*cast", (X.astype("f8"),), {}),
    "int": ("got: +int32(.|\n)*cast", (X.astype("i4"),), {}),
    "bool": ("got: +bool", (X > 0,), {}),
    "complex": ("got: +complex64", (X.astype("c8"),), {}),
    "object": ("got: +object", (X.astype(object),), {}),
    "list": (r"list(.|\n)*numpy.asarray\(x, dtype=...\)$", (X.tolist(),), {}),
    "None": ("NoneType", (None,), {}),
    "scalar": ("float", (1.0,), {}),
    "numpy scalar": ("float32", (np.float32(1),), {}),
    "device": (r"gpu:0(.|\n)*copy it to the CPU", (OnGpu(),), {}),
    "nested": (r"x has no shape(.|\n)*no sizes(.|\n)*\[T, B, 5\], and lengths", (NoShape(),), {}),
    "masked": (r"x is a masked array(.|\n)*60 masked(.|\n)*x.filled\(0\)", (np.ma.masked_array(X, True),), {}),
    "extra input": ("inputs are not the module's(.|\n)*expected: .*x", (X,), {"a": X}),
    "state batch": (r"h has the wrong shape(.|\n)*\(1, 3, 5\)", (X, {"h": numbers(1, 2, H)}), {}),
    "state rank": ("h has the wrong shape", (X, {"h": numbers(3, H)}), {}),
    "state layers": ("h has the wrong shape", (X, {"h": numbers(2, 3, H)}), {}),
    "state dtype": ("h has the wrong dtype", (X, {"h": STATE["h"].astype("f8")}), {}),
    "state list": ("h is not an array", (X, {"h": STATE["h"].tolist()}), {}),
    "state tuple": (r"tuple(.|\n)*\['h'\](.|\n)*such as {'h': h};", (X, (STATE["h"], STATE["h"])), {}),
    "state text": (r"h is not an array(.|\n)*state\['h'\], or by h, c", (X, {"h": "h"}), {}),
    "state missing": (r"state is not the module's(.|\n)*init_state", (X, {}), {}),
    "state unknown": ("state is not the module's", (X, {**STATE, "c": STATE["h"]}), {}),
    "state array": ("ndarray", (X, STATE["h"]), {}),
    "lengths dtype": ("lengths(.|\n)*float64", (X,), {"lengths": [1.0, 2.0, 3.0]}),
    "lengths bool": ("lengths(.|\n)*bool", (X,), {"lengths": np.ones(3, bool)}),
    "lengths shape": (r"lengths(.|\n)*\(2,\)(.|\n)*\(3,\)", (X,), {"lengths": [1, 2]}),
    "lengths rank": ("lengths", (X,), {"lengths": np.ones((3, 1), int)}),
    "lengths number": ("lengths", (X,), {"lengths": 4}),
    "lengths ragged": ("lengths", (X,), {"lengths": [1, [2], 3]}),
    "lengths text": ("lengths", (X,), {"lengths": ["1", "2", "3"]}),
    "lengths above": (r"5 for row 1(.|\n)*0 to 4", (X,), {"lengths": [4, 5, 4]}),
    "lengths below": ("-1 for row 2", (X,), {"lengths": [4, 4, -1]}),
    "lengths huge": ("lengths", (X,), {"lengths": np.array([4, 4, 2**64 - 1], "u8")}),
    "reset dtype": ("reset(.|\n)*int64", (X,), {"reset": np.zeros((4, 3), int)}),
    "reset shape": (r"reset(.|\n)*\(3, 4\)(.|\n)*\(4, 3\)", (X,), {"reset": np.zeros((3, 4), bool)}),
    "reset ragged": ("reset", (X,), {"reset": [[True], [True, False]]}),
}


@pytest.mark.parametrize("case", WRONG_CALLS)
def test_a_wrong_call_is_one_clear_error(make: Make, case: str) -> None:
    text, positional, named = WRONG_CALLS[case]
    with pytest.raises(InputError, match=text) as error:
        make()(*positional, **named)
    assert "got:" in str(error.value) and "expected:" in str(error.value)
    same(make()(X)[0], FORMS[0].expected(X)[0])


def test_what_torch_gives_is_told_what_to_do(make: Make) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, [4, 3, 1])
    for wrong, text in (
        (packed, r"PackedSequence[\s\S]*pad_packed_sequence[\s\S]*lengths=lengths"),
        (x.double(), r"float64[\s\S]*\.to\(torch\.float32\)"),
        (x.bfloat16(), r"bfloat16[\s\S]*x\.float\(\)"),
    ):
        with pytest.raises(InputError, match=text):
            make()(wrong)
    with pytest.raises(InputError, match=r"x\.float\(\); torch\.func"):
        torch.func.vmap(lambda row: make()(row)[0])(x[None])
    layer = torch.nn.LSTM(2, 3)
    with pytest.raises(WeightError, match=r"unknown.*weight_hh_l0[\s\S]*rnn\.from_torch\(layer\)\.weights"):
        make().load_weights(layer.state_dict())


def test_results_without_gradients_are_told_once(make: Make) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X).requires_grad_()
    runtime._say_no_gradient.cache_clear()
    with pytest.warns(UserWarning, match=r"no gradient[\s\S]*rnn\.to_torch\(net\)[\s\S]*no_grad"):
        y, _ = make()(x)
    assert not y.requires_grad
    make()(x)  # a second warning would be an error here
    runtime._say_no_gradient.cache_clear()
    make().load_weights({n: torch.nn.Parameter(torch.tensor(v)) for n, v in make().weights.items()})  # as they are
    with torch.no_grad():
        make()(x)


def test_copies_and_pickles(make: Make, tmp_path: Path) -> None:
    """A copy has the code of the module, and not of what its file has become, and weights of its own."""
    path, other = FORMS[1].write(tmp_path / "m.so"), FORMS[0].write(tmp_path / "o.so")
    module = load(path)
    module.threads = 3
    other.rename(path)
    for copied in (copy.deepcopy(module), copy.copy(module), copy.deepcopy(copy.deepcopy(module))):
        assert copied.threads == 3 and type(copied) is type(module)
        same(copied(X)[0], FORMS[1].expected(X)[0])
        copied.load_weights(FORMS[1].weights(seed=5))
        same(module(X)[0], FORMS[1].expected(X)[0])
    with pytest.raises(TvmRnnError, match=r"cannot be pickled[\s\S]*got: +<Module tiny[\s\S]*mod\.export"):
        pickle.dumps(module)


def test_modules_for_inference_cannot_train(make: Make) -> None:
    names = {name for name in vars(Trainable) if not name.startswith("_")} - {"tape_type"}
    assert {"forward_train", "backward", "max_bytes"} <= names
    for name in names:
        assert not hasattr(make(), name)
        with pytest.raises(AttributeError, match=r"Module cannot train[\s\S]*for inference[\s\S]*training=True"):
            getattr(make(), name)
    with pytest.raises(AttributeError, match="Module cannot train"):
        make().max_bytes = 3


@pytest.mark.parametrize("name", ["to_torch", "to_jax"])
def test_layers_are_made_of_networks(make: Make, name: str) -> None:
    assert not hasattr(make(), name)
    with pytest.raises(AttributeError, match=rf"Module has no {name}[\s\S]*tvm_rnn.{name}\(net\)"):
        getattr(make(), name)


def test_steps_have_the_same_checks(make: Make) -> None:
    for wrong in (X, X[0, 0], X[0].astype("f8"), X[0].tolist()):
        with pytest.raises(InputError):
            make().step(wrong)
    with pytest.raises(InputError, match="two directions"):
        make(FORMS[2]).step(X[0])
    for batch in (-1, 1.5, "2", None):
        with pytest.raises(InputError, match="batch size"):
            make().init_state(batch)


def test_the_manifest_is_a_dict_with_attributes(make: Make) -> None:
    manifest = make().manifest
    assert isinstance(manifest, dict) and manifest == FORMS[0].manifest()
    assert manifest.target.name == manifest["target"]["name"] == "tiny" and manifest.inputs[0].shape == [H]
    with pytest.raises(AttributeError, match=r"has no 'colour'; it has: .*cell"):
        _ = manifest.colour


def test_weights_can_be_replaced(make: Make, tmp_path: Path) -> None:
    tiny, module = FORMS[1], make(FORMS[1], cell="own")
    assert module.weights.keys() == tiny.weights().keys()
    new = tiny.weights(seed=5)
    save_file(new, tmp_path / "w.safetensors")
    swapped = {name: array.astype(">f4") for name, array in new.items()}
    for source in (new, tmp_path / "w.safetensors", str(tmp_path / "w.safetensors"), swapped):
        module.load_weights(tiny.weights())
        module.load_weights(source)
        same(module(X)[0], tiny.expected(X, weights=new)[0])
        for name, array in module.weights.items():
            np.testing.assert_array_equal(array, new[name])
            assert not np.shares_memory(array, new[name])
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
    new["decay_l0"][0] = 7  # the module has its own copy
    assert module.weights["decay_l0"][0] != 7


GOOD = FORMS[0].weights()
WRONG_WEIGHTS: dict[str, tuple[str, Any]] = {
    "missing": ("missing.*decay_l0", {}),
    "unknown": ("unknown.*extra", {**GOOD, "extra": GOOD["decay_l0"]}),
    "constant": ("unknown.*constant", {**GOOD, "constant.0": GOOD["decay_l0"]}),
    "shape": (r"decay_l0(.|\n)*\(6,\)", {"decay_l0": np.zeros(H + 1, "f4")}),
    "dtype": ("decay_l0(.|\n)*float64", {"decay_l0": np.zeros(H)}),
    "list": ("decay_l0", {"decay_l0": [0.0] * H}),
    "array": ("ndarray", GOOD["decay_l0"]),
    "none": ("NoneType", None),
    "no file": ("no_such_file", "no_such_file.safetensors"),
    "other file": ("cannot be read(.|\n)*safetensors", __file__),
}


@pytest.mark.parametrize("case", WRONG_WEIGHTS)
def test_wrong_weights_change_nothing(make: Make, case: str) -> None:
    text, weights = WRONG_WEIGHTS[case]
    module = make()
    with pytest.raises(WeightError, match=text) as error:
        module.load_weights(weights)
    assert "got:" in str(error.value)
    same(module(X)[0], FORMS[0].expected(X)[0])


def test_python_threads_may_share_a_module(make: Make) -> None:
    module, wrong = make(Tiny(2)), []
    module.threads = 2
    inputs = [numbers(3 + 10 * i, 1 + i, H, seed=i) for i in range(4)]
    answers = [Tiny(2).expected(x) for x in inputs]

    def work(i: int) -> None:
        for _ in range(200):
            y, after = module(inputs[i])
            if not (np.allclose(y, answers[i][0], 1e-5, 1e-6) and np.allclose(after["h"], answers[i][1], 1e-5, 1e-6)):
                wrong.append(i)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    module.threads = None
    assert not wrong


def test_small_steps_use_one_thread(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 kFLOP per step are the bound: flops_per_row times B."""
    module, used = make(flops_per_row=25_000.0), []
    sequence = module._sequence
    monkeypatch.setattr(module, "_sequence", lambda *arguments: (used.append(arguments[3]), sequence(*arguments))[1])
    whole = module.threads
    for B in (3, 4):
        module(numbers(2, B, H))
    for count in (1, 3, np.int64(2)):
        module.threads = count
        assert module.threads == count
        module(numbers(2, 3, H))
    module.threads = None
    assert module.threads >= whole
    assert used == [1, whole, 1, 3, 2]
    for wrong in (0, -1, 1.5, "2", 10**6):
        with pytest.raises(InputError, match=r"number of threads is wrong(.|\n)*an integer from 1"):
            module.threads = wrong


# --- steps into arrays that exist ---

NETS = {
    "lstm": lambda: rnn.RNN(rnn.cells.lstm, 7, 33),
    "inputs": lambda: rnn.RNN(rnn.cells.augru, 5, 9, num_layers=2, dtype="float64"),
    "widths": lambda: rnn.RNN(rnn.cells.lstm, 4, num_layers=2, H=[6, 9]),
}


@functools.cache
def compiled(name: str) -> Module:
    return rnn.compile(NETS[name]().init(3))


@pytest.fixture(params=NETS)
def module(request: pytest.FixtureRequest) -> Module:
    return compiled(request.param)


def steps_of(module: Module, steps: int, batch: int, seed: int = 0) -> list[Any]:
    """What each step reads: an array, or a tuple where the cell has several inputs."""
    rng, m = np.random.default_rng(seed), module.manifest
    whole = [rng.uniform(-1, 1, (steps, batch, *i.shape)).astype(m.dtype) for i in m.inputs]
    return [values[0] if len(values) == 1 else values for values in zip(*whole, strict=True)]


def arrays_of(module: Module, batch: int) -> tuple[np.ndarray, dict[str, Any]]:
    y, state = module.step(steps_of(module, 1, batch)[0])
    return np.full_like(y, np.nan), {n: poisoned(v) for n, v in state.items()}


def poisoned(value: Any) -> Any:
    return [poisoned(v) for v in value] if isinstance(value, list) else np.full_like(value, np.nan)


def same_states(a: Any, b: Any) -> None:
    assert a.keys() == b.keys()
    for name in a:
        values = (a[name], b[name]) if isinstance(a[name], list) else ([a[name]], [b[name]])
        for left, right in zip(*values, strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.broad_after(2)
@pytest.mark.parametrize("batch", [1, 3])
def test_in_place_and_in_turns_are_what_steps_return(module: Module, batch: int) -> None:
    state, mine = module.init_state(batch), module.init_state(batch)
    y, _ = arrays_of(module, batch)
    turns = [arrays_of(module, batch) for _ in range(2)]
    before: Any = None
    for t, x in enumerate(steps_of(module, 6, batch)):
        expected, state = module.step(x, state)
        pair = (y, mine)
        assert module.step(x, mine, out=pair) is pair
        np.testing.assert_array_equal(y, expected)
        same_states(mine, state)
        now = turns[t % 2]
        module.step(x, before, out=now)
        np.testing.assert_array_equal(now[0], expected)
        same_states(now[1], state)
        before = now[1]


@pytest.mark.broad_after(1)
def test_arrays_with_gaps_and_other_inputs_are_written_too(module: Module) -> None:
    x, given = steps_of(module, 2, 3), module.init_state(3)
    wide = np.zeros((3, *module.manifest.output.shape, 2), module.manifest.dtype)
    y, (_, new) = wide[..., 0], arrays_of(module, 3)
    strided = x[0][:, ::1] if isinstance(x[0], np.ndarray) else x[0]
    for value in (x[0], x[1], np.asfortranarray(strided) if isinstance(strided, np.ndarray) else strided):
        expected, state = module.step(value, given)
        module.step(value, given, out=(y, new))
        np.testing.assert_array_equal(y, expected)
        same_states(new, state)
    assert not wide[..., 1].any()


@pytest.mark.broad
def test_other_arrays_weights_and_threads_are_noticed() -> None:
    module = rnn.compile(rnn.RNN(rnn.cells.lstm, 7, 33).init(3))
    (x,), state = steps_of(module, 1, 1), module.init_state(1)
    y = np.empty((1, 33), np.float32)
    module.step(x, state, out=(y, state))
    old, state["h"] = state["h"], np.zeros((1, 1, 33), np.float32)
    kept = old.copy()
    expected = module.step(x, state)
    module.step(x, state, out=(y, state))
    np.testing.assert_array_equal(y, expected[0])
    same_states(state, expected[1])
    np.testing.assert_array_equal(old, kept)
    module.load_weights({name: 2 * value for name, value in module.weights.items()})
    module.threads = 2
    expected = module.step(x, state)
    module.step(x, state, out=(y, state))
    np.testing.assert_array_equal(y, expected[0])
    swapped = {"c": state["h"], "h": state["c"]}
    expected = module.step(x, swapped)
    module.step(x, swapped, out=(y, swapped))
    same_states(swapped, expected[1])


def test_no_rows_and_none_as_state() -> None:
    module = compiled("lstm")
    out = (np.empty((0, 33), np.float32), module.init_state(0))
    assert module.step(np.zeros((0, 7), np.float32), out=out) is out
    x, y, new = steps_of(module, 1, 2)[0], *arrays_of(module, 2)
    for _ in range(2):
        module.step(x, out=(y, new))
        np.testing.assert_array_equal(y, module.step(x)[0])


def test_tensors_of_torch_are_written_and_moved_ones_noticed() -> None:
    torch = pytest.importorskip("torch")
    module = compiled("lstm")
    x = torch.from_numpy(steps_of(module, 1, 2)[0])
    y, state = torch.empty(2, 33), {name: torch.from_numpy(v) for name, v in module.init_state(2).items()}
    for _ in range(3):
        expected = module.step(x, state)
        module.step(x, state, out=(y, state))
        np.testing.assert_array_equal(y.numpy(), expected[0].numpy())
        state["h"].set_(state["h"].clone())
        y.set_(torch.empty(2, 33))


def test_steps_allocate_nothing() -> None:
    module = compiled("lstm")
    x, state, y = np.ones((1, 7), np.float32), module.init_state(1), np.empty((1, 33), np.float32)
    out = (y, state)
    for _ in range(10):
        module.step(x, state, out=out)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    for _ in range(1000):
        module.step(x, state, out=out)
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert now - before < 1024 and peak - before < 4096  # Python's own frames and numbers; y alone would be 132 a step


WRONG = {
    "out is not what a step writes": lambda y, s: y,
    "does not fit": lambda y, s: (y[:, :-1], s),
    "float64 of shape": lambda y, s: (y.astype("f8"), s),
    "read-only": lambda y, s: (np.broadcast_to(y[:1, :1], y.shape), s),
    "the state of out is not the module's": lambda y, s: (y, {"h": s["h"]}),
    "state h of out does not fit": lambda y, s: (y, {**s, "h": s["h"][0]}),
    "arrays of out overlap": lambda y, s: (y, {"h": s["c"], "c": s["c"]}),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_cannot_be_written_to_is_an_error(text: str) -> None:
    module = compiled("lstm")
    y, state = np.empty((2, 33), np.float32), module.init_state(2)
    with pytest.raises(InputError, match=text):
        module.step(steps_of(module, 1, 2)[0], state, out=WRONG[text](y, state))


def test_a_module_without_weights_is_an_error() -> None:
    module = rnn.compile(rnn.RNN(rnn.cells.lstm, 3, 4))
    with pytest.raises(WeightError, match="no weights"):
        module.step(np.zeros((1, 3), np.float32), out=(np.zeros((1, 4), np.float32), module.init_state(1)))


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("steps", [2, 50_000])
def test_the_process_ends_with_threads_in_calls(tmp_path: Path, steps: int) -> None:
    """Daemon threads that call without end, for short and for long: it aborted."""
    code = f"""
import sys, threading, time, numpy
from tvm_rnn.runtime import runtime
mod, x, calls = runtime.load(sys.argv[1]), numpy.zeros(({steps}, 3, {H}), "f4"), [0, 0]
def work(number):
    while True:
        mod(x)
        calls[number] += 1
for number in range(2):
    threading.Thread(target=work, args=[number], daemon=True).start()
while not all(calls):
    time.sleep(0.001)
"""
    command = [sys.executable, "-c", code, str(Tiny().write(tmp_path / "m.so"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize("which", ["y", "h"])
def test_an_output_that_became_read_only_or_other_memory(which: str) -> None:
    module, x = compiled("lstm"), steps_of(compiled("lstm"), 1, 1)[0]
    y, state = np.zeros((1, 33), np.float32), module.init_state(1)
    array = y if which == "y" else state["h"]
    module.step(x, state, out=(y, state))
    for _ in range(2):  # kept as the latest one, and found again
        array.flags.writeable = False
        before = array.copy()
        with pytest.raises(InputError, match="read-only"):
            module.step(x, state, out=(y, state))
        assert np.array_equal(array, before)
        array.flags.writeable = True
        module.step(x, state, out=(y, state))
        module.step(x, out=(np.zeros((1, 33), np.float32), module.init_state(1)))
    with pytest.raises(ValueError, match="resize"):  # NumPy's own: the memory is in use
        array.resize((1 << 20,), refcheck=False)
    module.step(x, state, out=(y, state))


def test_a_tensor_with_other_memory_is_another_output() -> None:
    torch = pytest.importorskip("torch")
    module, x = compiled("lstm"), torch.tensor(steps_of(compiled("lstm"), 1, 1)[0])
    y, state = torch.zeros(1, 33), {name: torch.zeros(1, 1, 33) for name in "hc"}
    module.step(x, state, out=(y, state))
    expected = y.clone()
    y.set_(torch.zeros(1, 33))
    module.step(x, {name: torch.zeros(1, 1, 33) for name in "hc"}, out=(y, state))
    assert torch.equal(y, expected)
    y.resize_(1)
    with pytest.raises(InputError, match="does not fit"):
        module.step(x, state, out=(y, state))


def held(make: Make) -> Module:
    """The tiny cell, whose state counts as a constant here."""
    return make(states=[{"name": "h", "shapes": [[H]], "initial": 0.5, "constant": True}])


def test_constants_are_keywords_of_every_call(make: Make) -> None:
    module, x, h = held(make), numbers(5, 3, H), numbers(3, H, seed=2)
    expected = make()(x, {"h": h[None]})
    for got in (module(x, h=h), module(x, {"h": h[None]}), module(x, {"h": 0 * h[None]}, h=h)):
        same(got[0], expected[0])
        same(got[1]["h"], expected[1]["h"])
    same(module.step(x[0], h=h)[0], expected[0][0])
    assert module.init_state(3) == {}
    out = np.empty_like(x[0]), {"h": np.empty((1, 3, H), x.dtype)}
    same(module.step(x[0], {"h": h[None]}, out=out)[0], expected[0][0])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, r"the constant h is not given[\s\S]*mod\(x, h=h\)"),
        ({"state": {}}, "the constant h is not given"),
        ({"h": numbers(2, 3, H)}, "the constant h has the wrong shape"),
        ({"h": np.float32(1)}, "the constant h has the wrong shape"),
        ({"h": numbers(2, H)}, "state h has the wrong shape"),
        ({"h": numbers(3, H, dtype="float64")}, "wrong dtype"),
        ({"h": numbers(3, H), "k": 1}, "the inputs are not the module's"),
        ({"h": numbers(3, H), "reset": np.zeros((5, 3), bool)}, "reset= does not go with constants"),
    ],
)
def test_constants_that_do_not_fit(make: Make, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        held(make)(numbers(5, 3, H), **arguments)

"""Folders for browsers: what node makes of them is what the equations say; what does not fit is said."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import chromium
import javascript
import numpy as np
import pytest
from networks import arguments, network
from tiny_module import Tiny

import tvm_rnn as rnn
from tvm_rnn.bundle.web_folder import object_file
from tvm_rnn.errors import ConfigError
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.runtime import runtime

FILES = {"README.md", "index.html", "package.json", *(f"amp.{end}" for end in ("wasm", "js", "d.ts", "worklet.js"))}
# What a user meets who gives the wrong thing; each line is a message.
WRONG = """
import { Network, compile, open } from "./amp.js";
const module = await compile();
const network = Network.of(module, { rows: 2 });
const say = (work) => {
  try { work(); console.log("nothing"); }
  catch (error) { console.log(`${error.name}: ${error.message}`); }
};
say(() => network.step([1, 2, 3]));
say(() => network.step(7));
say(() => network.run(new Float32Array(3)));
say(() => network.run(new Float32Array(4), new Float32Array(3)));
say(() => Network.of(module, { rows: 0 }));
say(() => (network.states = { k: [1] }));
say(() => (network.states = { h: [1] }));
"""

# What the AudioWorklet makes of samples, in a graph that is computed faster than time: both channels, and what it says.
RENDER = """
(async (samples, inputs) => {
  const { compile } = await import("./amp.js");
  const context = new OfflineAudioContext(2, samples.length, 48000), values = [];
  await context.audioWorklet.addModule("./amp.worklet.js");
  const processorOptions = { module: await compile() };
  const node = new AudioWorkletNode(context, "amp", { processorOptions, outputChannelCount: [2] });
  node.port.onmessage = ({ data }) => data.y && values.push(...data.y);
  node.port.postMessage({ inputs });
  await new Promise((done) => setTimeout(done, 300));
  const from = context.createBufferSource();
  from.buffer = context.createBuffer(1, samples.length, 48000);
  from.buffer.copyToChannel(new Float32Array(samples), 0);
  from.connect(node).connect(context.destination);
  from.start();
  const made = await context.startRendering();
  await new Promise((done) => setTimeout(done, 300));
  return [Array.from(made.getChannelData(0)), Array.from(made.getChannelData(1)), values];
})"""
READY = "document.documentElement?.dataset.ready || document.getElementById('said')?.textContent"
SAMPLES = np.random.default_rng(0).uniform(-1, 1, 128 * 30).astype("f4")


@rnn.cell(states="h", output="y")
def knob(x: "1", g: "", h: "H", *, W: "H 1", R: "H H", V: "2 H"):
    """Two channels, as loud as g says."""
    h = rnn.tanh(W @ x + R @ h) * g
    return h, V @ h


def rendered(page: chromium.Page, inputs: dict[str, list[float]]) -> list[np.ndarray]:
    """The two channels, and the values that come as messages."""
    return [np.array(v) for v in page.evaluate(f"{RENDER}({SAMPLES.tolist()}, {json.dumps(inputs)})")]


@pytest.fixture(scope="module")
def amp(tmp_path_factory: pytest.TempPathFactory) -> tuple[rnn.RNN, Path]:
    if javascript.missing():
        pytest.skip(javascript.missing())
    net, path = network("lstm", 1, 6), tmp_path_factory.mktemp("web") / "amp"
    module = rnn.compile(net, "wasm32", batch=1)
    again = path.with_name("amp.so")
    module.export(again)
    rnn.load(again, anywhere=True).export(web=path)
    return net, path


def test_node_runs_it(amp: tuple[rnn.RNN, Path]) -> None:
    net, path = amp
    for rows in (1, 3):
        x = arguments(net, 150, rows)[0]
        expected, _ = rnn.reference(net)(x)
        for found in javascript.results(path, net, x, {}):
            assert_close((found, {}), (expected, {}), net.dtype, 150)
    assert {file.name for file in path.iterdir()} == FILES
    package = json.loads((path / "package.json").read_text())
    assert all((path / name).exists() for name in [*package["files"], package["main"], package["types"]])
    assert not any("@" in (path / name).read_text().replace("@vite-ignore", "") for name in ("amp.js", "amp.d.ts"))


def test_what_does_not_fit_is_said(amp: tuple[rnn.RNN, Path]) -> None:
    (amp[1].parent / "wrong.mjs").write_text(WRONG.replace("./amp.js", str(amp[1] / "amp.js")))
    assert javascript.node(amp[1].parent / "wrong.mjs").splitlines() == [
        "RangeError: amp: step: x has 3 numbers, not 1 x 2 rows x 1",
        "RangeError: amp: step: x is no array, not 1 x 2 rows x 1",
        "RangeError: amp: run: x has 3 numbers, not steps x 2 rows x 1",
        "RangeError: amp: run: y has 3 numbers, not 24",
        "RangeError: amp: rows: 0, not a whole number from 1",
        "TypeError: amp: no state k: h, c",
        "RangeError: amp: h has 1 numbers, not 12",
    ]


@pytest.mark.parametrize("name", ["gru", "lstm_attention", "augru", "indrnn"])
def test_the_lines_of_the_readme_run(name: str, tmp_path: Path) -> None:
    """Whatever it reads: one input or several, constants, numbers of 32 or 64 bits."""
    if javascript.missing():
        pytest.skip(javascript.missing())
    net = network(name, 5, 7, dtype="float64" if name == "indrnn" else "float32")
    rnn.compile(net, "wasm32", batch=1).export(web=tmp_path / "far")
    text = (tmp_path / "far" / "README.md").read_text()
    (tmp_path / "far" / "lines.mjs").write_text(text.split("```js\n")[1].split("```")[0] + "console.log(all.length);\n")
    assert javascript.node(tmp_path / "far" / "lines.mjs") == f"{100 * int(np.prod(net.output_shape))}\n"


@pytest.mark.slow
def test_chromium_plays_it(amp: tuple[rnn.RNN, Path], tmp_path: Path) -> None:
    """The worklet gives the first outputs of each sample; the page shows it, plays it, and says how long that takes."""
    if chromium.missing():
        pytest.skip(chromium.missing())
    net, path = amp
    with chromium.page(path, tmp_path / "profile") as page:
        page.until(READY)
        said = page.evaluate("document.body.innerText")
        assert page.evaluate("document.documentElement.dataset.ready") == "yes", said
        expected = rnn.reference(net)(SAMPLES.reshape(-1, 1, 1))[0][:, 0]
        for channel, found in enumerate(rendered(page, {})[:2]):
            assert np.abs(found - expected[:, channel]).max() < 1e-5
        for source in ("oscillator", "microphone"):
            page.evaluate(f"document.getElementById('source').value = '{source}'")
            page.evaluate("document.getElementById('play').click()")
            page.until("document.getElementById('load').textContent.endsWith('%')")
            page.evaluate("document.getElementById('play').click()")
        assert page.evaluate("document.getElementById('said').textContent") == ""
        page.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["frames to values", "frames to frames", "a knob, two channels"])
def test_frames_values_and_knobs_in_chromium(kind: str, tmp_path: Path) -> None:
    if missing := javascript.missing() or chromium.missing():
        pytest.skip(missing)
    net = {"frames to values": network("gru", 16, 1), "frames to frames": network("gru", 16, 16)}.get(kind)
    net = net or network(knob, 1, 8)
    rnn.compile(net, "wasm32", batch=1).export(web=tmp_path / "amp")
    with chromium.page(tmp_path / "amp", tmp_path / "profile") as page:
        page.until(READY)
        left, right, values = rendered(page, {"g": [0.5]})
    x = {"x": SAMPLES.reshape(-1, 1, net.input_size), "g": np.full((len(SAMPLES), 1), 0.5, "f4")}
    y = rnn.reference(net)({name: x[name] for name in net.input_shapes})[0][:, 0]
    if kind == "frames to values":
        assert (left == SAMPLES).all() and np.abs(values - y.ravel()).max() < 1e-5
    elif kind == "frames to frames":  # a frame late
        assert np.abs(left[16:] - y.ravel()[:-16]).max() < 1e-5 and not left[:16].any()
    else:
        assert np.abs(left - y[:, 0]).max() < 1e-5 and np.abs(right - y[:, 1]).max() < 1e-5


@pytest.mark.slow
def test_chromium_plays_the_amplifier_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site publishes the folder that its page makes of a network trained there."""
    pytest.importorskip("torch")
    if missing := javascript.missing() or chromium.missing():
        pytest.skip(missing)
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tutorials" / "site")
    net = importlib.import_module("amplifier").write(tmp_path / "site")
    with chromium.page(tmp_path / "site" / "amp", tmp_path / "profile") as page:
        page.until(READY)
        left, _, _ = rendered(page, {})
    assert np.abs(left - rnn.reference(net)(SAMPLES.reshape(-1, 1, 1))[0].ravel()).max() < 1e-5


def test_only_modules_for_wasm32_with_weights(tmp_path: Path, amp: tuple[rnn.RNN, Path]) -> None:
    here = runtime.load(Tiny().write(tmp_path / "tiny.so"))
    with pytest.raises(ConfigError, match=r"only modules for wasm32[\s\S]*rnn\.compile\(net, \"wasm32\""):
        here.export(web=tmp_path / "web")
    far: Any = rnn.load(amp[1].with_name("amp.so"), anywhere=True)
    with pytest.raises(ConfigError, match=r"only systems that load code[\s\S]*web="):
        far.export(bundle=tmp_path / "bundle")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match=r"'thesis.tex' is in it"):
        far.export(web=tmp_path / "mine")


@pytest.mark.parametrize("zeros", [0, 1, 2, 17])
def test_where_an_object_file_ends(zeros: int) -> None:
    sections = b"\0asm\1\0\0\0" + b"\1\3abc" + b"\3\x81\1" + bytes(129) + b"\0\2\1n"
    said = b"{}" + b"[1]" + runtime.CARRIED.pack(2, 3, runtime.CARRIED_MARK)
    assert object_file(sections + bytes(zeros) + said) == sections

# %% [markdown]
# # 8. Bring your model
#
# In this tutorial you will take layers and whole models of PyTorch, ONNX and Keras, compile each into one file, run it
# by the model's own names, see what is said of a model that is not supported, write a cell of your own as ONNX, and
# deploy a model where Python is not. Parts whose framework is not installed are skipped.

# %%
import importlib.util
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import tvm_rnn as rnn
from tvm_rnn import cli

folder = Path(tempfile.mkdtemp(prefix="bring_your_model_"))
x = np.random.default_rng(0).normal(size=(20, 4, 8)).astype(np.float32)  # 20 steps of 4 rows of 8 features


def installed(*names: str) -> bool:
    """Whether all of these packages are here; it says so if not."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        print("skipped:", ", ".join(missing), "not installed")
    return not missing


# %% [markdown]
# ## A layer of PyTorch
#
# Every option of `torch.nn.RNN`, `LSTM` and `GRU` is followed, `batch_first` too: the module takes and gives what the
# layer does. torch has two biases where our cells have their sum: both are kept, so that `state_dict` gives back the
# very bits.

# %%
if installed("torch"):
    import torch

    layer = torch.nn.GRU(8, 16, bidirectional=True, batch_first=True)
    net = rnn.from_torch(layer)
    mod = rnn.compile(net)
    rows = torch.from_numpy(x).transpose(0, 1)  # [B, T, I]
    y, _ = mod(rows)
    with torch.no_grad():
        expected, _ = layer(rows)
    assert (y - expected).abs().max() < 1e-5
    back = rnn.state_dict(net)
    same = all(torch.equal(back[name], value) for name, value in layer.state_dict().items())
    print(net, "same bits on the way back:", same)

# %% [markdown]
# ## A model of ONNX
#
# Here is one as exporters write it: two LSTM nodes with a squeeze between them, a linear layer on the last state, a
# softmax. The two nodes become the two layers of one network, because what is between them comes to nothing. What is
# around the network is compiled too, into the same file.

# %%
if installed("onnx"):
    import onnx
    from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

    rng = np.random.default_rng(1)
    shapes = {"W0": (1, 64, 8), "R0": (1, 64, 16), "W1": (1, 64, 16), "R1": (1, 64, 16), "F": (16, 3)}
    arrays = {name: rng.uniform(-0.3, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    arrays |= {"one": np.array([1]), "zero": np.array([0])}
    nodes = [
        make_node("LSTM", ["X", "W0", "R0", "", "lengths"], ["Y0"], "lower", hidden_size=16),
        make_node("Squeeze", ["Y0", "one"], ["between"]),
        make_node("LSTM", ["between", "W1", "R1", "", "lengths"], ["", "last"], "upper", hidden_size=16),
        make_node("Squeeze", ["last", "zero"], ["h"]),
        make_node("MatMul", ["h", "F"], ["logits"]),
        make_node("Softmax", ["logits"], ["p"]),
    ]
    inputs = [make_tensor_value_info("X", 1, ["T", "B", 8]), make_tensor_value_info("lengths", 6, ["B"])]
    constants = [onnx.numpy_helper.from_array(value, name) for name, value in arrays.items()]
    graph = make_graph(nodes, "classifier", inputs, [make_tensor_value_info("p", 1, ["B", 3])], constants)
    model = make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "classifier.onnx")

    net = rnn.from_onnx(folder / "classifier.onnx")
    print(net, "with", [step.op for step in net.program.steps])
    rnn.compile(net).export(folder / "classifier.so")
    mod = rnn.load(folder / "classifier.so")
    p = mod.run({"X": x, "lengths": np.array([20, 5, 12, 1], np.int32)})["p"]
    print("classes", p.shape, "each row sums to 1:", bool(np.allclose(p.sum(-1), 1)))
    reference = rnn.reference(net).run({"X": x, "lengths": [20, 5, 12, 1]})["p"]  # the oracle takes whole models too
    assert np.abs(p - reference).max() < 1e-5

# %% [markdown]
# On the command line the same is `tvm-rnn compile classifier.onnx -o classifier.so`. `inspect` says where it is from.

# %%
if installed("onnx"):
    cli.app(["inspect", str(folder / "classifier.so")], standalone_mode=False)

# %% [markdown]
# ## What is not supported is named
#
# All of it at once, with the node's name, before anything is compiled.

# %%
if installed("onnx"):
    graph.node.insert(0, make_node("NonZero", ["X"], ["where"], "odd"))
    graph.node[1].attribute.append(onnx.helper.make_attribute("clip", -1.0))
    graph.output.append(make_tensor_value_info("where", 7, None))
    try:
        rnn.from_onnx(make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8))
    except rnn.ConfigError as error:
        print(error)

# %% [markdown]
# ## A cell of your own as ONNX
#
# `to_onnx` writes the standard's RNN, LSTM or GRU where the cell is one of these. Any other cell becomes a Scan, whose
# body is one step: every runtime that has Scan can run it, if more slowly.

# %%
if installed("onnx"):
    rnn.to_onnx(rnn.RNN(rnn.cells.mgu, 8, 16).init(seed=0), folder / "mgu.onnx")
    kinds = [node.op_type for node in onnx.load(folder / "mgu.onnx").graph.node]
    print("mgu as ONNX:", "Scan" in kinds, "and the LSTM:", end=" ")
    rnn.to_onnx(rnn.RNN(rnn.cells.lstm, 8, 16).init(seed=0), folder / "lstm.onnx", lengths=True)
    print("LSTM" in [node.op_type for node in onnx.load(folder / "lstm.onnx").graph.node])

# %% [markdown]
# ## A model of Keras
#
# A layer or a model in memory, or a .keras file, which is read without Keras. Arrays are [B, T, ...] by the names of
# the input layers, as Keras has them; a mask becomes lengths.

# %%
if installed("keras", "torch"):
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((None, 8), name="x"),
            layers.Masking(),
            layers.Bidirectional(layers.SimpleRNN(8, return_sequences=True)),
            layers.Dense(3, activation="softmax", name="tags"),
        ]
    )
    model.save(folder / "tagger.keras")
    mod = rnn.compile(rnn.from_keras(folder / "tagger.keras"))
    rows = np.ascontiguousarray(x.swapaxes(0, 1))
    rows[1, 5:] = 0  # masked from step 5 on
    tags = mod.run({"x": rows})["tags"]
    assert np.abs(tags - keras.ops.convert_to_numpy(model(rows))).max() < 1e-5
    print("tags", tags.shape)

# %% [markdown]
# ## Deploy it without Python
#
# `export(bundle=...)` writes a folder for programs in C, C++, Rust, Go: the module, a library with an API of the
# model's own, its header, and examples. Nothing else is needed where it runs: no Python, no TVM, no tvm_ffi.

# %%
net = rnn.RNN(rnn.cells.lstm, 8, 16).init(seed=0)
mod = rnn.compile(net, batch=1)
mod.export(bundle=folder / "lstm")
for path in sorted((folder / "lstm").iterdir()):
    print(f"{path.name:16} {path.stat().st_size:7} bytes")

# %% [markdown]
# The header says what the model's arrays are, and which functions there are. This is how one step is called:

# %%
header = (folder / "lstm" / "lstm.h").read_text()
print(header[header.index("/* lstm, 1 layer") : header.index("/* Take the memory")])
print(header[header.index("/* One step of") : header.index("/* All steps")])

# %% [markdown]
# `stream.c` reads numbers from its input, takes a step, writes the result: its function `process` is what a real-time
# thread may call. It is built with a C compiler alone, and runs with an empty environment.

# %%
lines = (folder / "lstm" / "README.md").read_text()
build = next(line for line in lines.splitlines() if line.startswith("cc -O2 stream.c"))
print(build)
subprocess.run(build, shell=True, cwd=folder / "lstm", check=True)
sound = np.random.default_rng(1).normal(size=(200, 1, 8)).astype(np.float32)
done = subprocess.run([folder / "lstm" / "stream"], input=sound.tobytes(), capture_output=True, check=True, env={})
y, _ = mod(sound)
streamed = np.frombuffer(done.stdout, np.float32).reshape(y.shape)
print("steps in C:", len(streamed), "the same as here:", bool(np.allclose(streamed, y, rtol=1e-5, atol=1e-6)))

# %% [markdown]
# `example.c` takes whole sequences from files, and times steps: here its median and its tail. A model that came from a
# file has `lstm_run` in place of this, with the file's own inputs and outputs, heads included.

# %%
build = next(line for line in lines.splitlines() if line.startswith("cc -O2 example.c"))
subprocess.run(build, shell=True, cwd=folder / "lstm", check=True)
sound.tofile(folder / "sound.raw")
words = [folder / "lstm" / "example_c", "--time", "2000", folder / "sound.raw"]
print(subprocess.run(words, capture_output=True, check=True, env={}, text=True).stdout.splitlines()[-1])

# %% [markdown]
# ## What to read next
#
# `tvm_rnn/frontends/onnx_recurrent.py` says how ONNX's layouts and gates become ours, `tvm_rnn/surroundings/`
# what becomes of the operators around a network, `tvm_rnn/bundle/engine.c` what a bundle's library does.
# `02_write_a_cell.py` is for cells that no framework has.

# %% [markdown]
# # 21. Play an amplifier
#
# In this tutorial you will train a small network to sound like a guitar amplifier, draw and hear what it makes of a
# note, and take it to where it is to play: a program in plain C, for a plug-in or a microcontroller, and a page in a
# browser.
#
# It needs torch and a C compiler; for the browser a compiler for WebAssembly (`pip install ".[cross]"`), and node to
# try that here. With matplotlib it draws.

# %%
import shutil
import subprocess
import tempfile
import time
import wave
from pathlib import Path

import numpy as np
import torch
from drawing import draw_loss

import tvm_rnn as rnn

torch.manual_seed(0)
torch.set_num_threads(1)
RATE, H = 48000, 12  # samples a second; units
folder = Path(tempfile.mkdtemp(prefix="amplifier_"))

# %% [markdown]
# ## The amplifier
#
# A valve that clips one half of a wave more than the other, and a tone control. You would record a real one instead: a
# guitar's signal going in, and what comes out at the same time.


# %%
def amplifier(x: torch.Tensor) -> torch.Tensor:
    """[T, B, 1] to the same."""
    loud, low, y = torch.tanh(6 * x + 0.4) - 0.38, torch.zeros_like(x[0]), []
    for now in loud:
        low = low + 0.35 * (now - low)
        y.append(0.6 * low)
    return torch.stack(y)


def notes(pitches: torch.Tensor, loud: torch.Tensor, count: int) -> torch.Tensor:
    """[count, B, 1]: strings of those pitches, in Hz, with their first overtone."""
    t = torch.arange(count)[:, None] / RATE
    return (loud * (torch.sin(2 * torch.pi * pitches * t) + 0.4 * torch.sin(4 * torch.pi * pitches * t + 1)))[..., None]


x = notes(80 * 2 ** (3 * torch.rand(32)), torch.rand(32), 1024)
y = amplifier(x)

# %% [markdown]
# ## The network
#
# An LSTM whose output is added to what came in: the cell of this network is written here, with the output as a part of
# it, so that one call is all there is to a sample.


# %%
@rnn.cell(states="h c", output="y")
def amp(x: "1", h: "H", c: "H", *, W: "4 H 1", R: "4 H H", b: "4 H", V: "1 H", d: "1"):
    """An LSTM, and what is played."""
    h, c = rnn.cells.lstm(x, h, c, W=W, R=R, b=b)
    return h, c, V @ h + d + x


net = rnn.RNN(amp, 1, H).init(seed=0)
layer = rnn.to_torch(net)
optimiser = torch.optim.Adam(layer.parameters(), 1e-2)
losses = []
for step in range(1, 101):
    loss = (layer(x)[0] - y).square().mean() / y.square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
    if step % 50 == 0:
        print(f"step {step:4}   part of the power that is wrong {loss.item():.3f}")
draw_loss(losses, "part of the power")
net.load({name: value.detach().numpy() for name, value in layer.named_parameters()})

# %% [markdown]
# ## A note that it has not heard
#
# As a picture, and as two sounds: `string.wav` goes in, `played.wav` comes out.

# %%
note = notes(torch.tensor([146.8]), torch.tensor([0.5]), RATE)
note = note * torch.exp(-3 * torch.arange(RATE) / RATE)[:, None, None]
heard, wanted = note.numpy(), amplifier(note).numpy()
mod = rnn.compile(net, batch=1)
played, _ = mod(heard)
wrong = np.mean((played - wanted) ** 2) / np.mean(wanted**2)
print(f"part of the power that is wrong, of a new note: {wrong:.3f}")
assert wrong < 0.1
for name, sound in {"string": heard, "played": played}.items():
    with wave.open(str(folder / f"{name}.wav"), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())
try:
    import matplotlib.pyplot as plt

    plt.figure(figsize=(7, 2.5), layout="constrained")
    plt.plot(heard[:1000, 0, 0], label="the string")
    plt.plot(wanted[:1000, 0, 0], label="the amplifier", linewidth=4, alpha=0.4)
    plt.plot(played[:1000, 0, 0], label="the network")
    plt.xlabel("sample")
    plt.legend()
    plt.savefig("amplifier.png")
except ImportError:
    print("no picture of the note: pip install matplotlib")

# %% [markdown]
# ## Plain C
#
# `write_c` writes C99 that calls nothing but `math.h`: a header, a source, and an example that reads samples and writes
# what is played. Here it reads a second of sound.

# %%
said = rnn.write_c(net, folder / "amp")
subprocess.run(["cc", "-std=c99", "-O2", "amp.c", "example.c", "-o", "example", "-lm"], cwd=folder / "amp", check=True)
begun = time.perf_counter()
done = subprocess.run([folder / "amp" / "example"], input=heard.tobytes(), capture_output=True, check=True)
took = time.perf_counter() - begun
in_c = np.frombuffer(done.stdout, np.float32).reshape(heard.shape)
print("in C the largest difference is below 1e-4:", bool(abs(in_c - played).max() < 1e-4))
print(f"bytes of weights: {said.flash}, of a stream: {said.ram}; a second of sound takes {took:.3f} s")
assert abs(in_c - played).max() < 1e-4

# %% [markdown]
# ## A page in a browser
#
# The same network as WebAssembly, with a page to hear it and an AudioWorklet that plays it: serve the folder `web` and
# open its page. `example.mjs` runs in node what the page runs.

# %%
try:
    rnn.compile(net, "wasm32", batch=1).export(web=folder / "web")
    print("for the browser:", *sorted(path.name for path in (folder / "web").iterdir()))
except rnn.BuildError as reason:
    print("not for the browser:", str(reason).splitlines()[0])
PROGRAM = """
import { readFileSync, writeFileSync } from "node:fs";
import { open } from "./web/web.js";
const network = await open();
writeFileSync("played.raw", network.run(new Float32Array(new Uint8Array(readFileSync("note.raw")).buffer)));
"""
if (folder / "web").is_dir() and shutil.which("node"):
    (folder / "note.raw").write_bytes(heard.tobytes())
    (folder / "play.mjs").write_text(PROGRAM)
    subprocess.run(["node", "play.mjs"], cwd=folder, check=True)
    in_node = np.fromfile(folder / "played.raw", np.float32).reshape(heard.shape)
    print("in node the largest difference is below 1e-4:", bool(abs(in_node - played).max() < 1e-4))

# %% [markdown]
# ## What to read next
#
# `20_read_digits.py` takes a whole model to C. "Run in the browser", "Run on a microcontroller" and "Deploy in C and
# C++" of the documentation have all that these folders can do: 8-bit weights without floating point, several streams,
# a step in an audio thread that takes no lock. `tvm_rnn/plain_c/` writes the C, `tvm_rnn/bundle/browser/` is the page.

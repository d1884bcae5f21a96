# %% [markdown]
# # 20. Read digits
#
# In this tutorial you will train a network of convolutions, pooling, LSTMs in both directions and a linear layer in
# PyTorch to read rows of digits (a CRNN, Shi et al. 2015), have torch export it, compile the whole of it, run it from a
# program in C where neither Python nor torch is, and on a GPU where there is one.
#
# It needs torch and onnx.

# %%
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import tvm_rnn as rnn
from tvm_rnn.target import names

rng = np.random.default_rng(0)
torch.manual_seed(0)
torch.set_num_threads(1)  # steps this small are not worth a second one
folder = Path(tempfile.mkdtemp(prefix="read_digits_"))

# %% [markdown]
# ## Pictures
#
# A font of 5 x 7 points, drawn into pictures of 16 rows: each digit a little higher or lower, brighter or darker, one
# and a half times as wide or not, with gaps of its own, and noise over all of it. A picture may have any width.

# %%
FONT = [
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
]
GLYPHS = [np.array([[float(point) for point in row] for row in glyph.split()]) for glyph in FONT]
ROWS = 16


def picture(digits: list[int], width: int) -> np.ndarray:
    """A picture [ROWS, width] of digits; those that do not fit are left out, and out of the list."""
    page, at, seen = np.zeros((ROWS, width)), int(rng.integers(1, 4)), 0
    for digit in digits:
        glyph = GLYPHS[digit].repeat(rng.integers(1, 3), axis=0)
        glyph = glyph[:, np.floor(np.arange(5 * 1.5) / 1.5).astype(int)] if rng.random() < 0.5 else glyph
        if at + glyph.shape[1] + 1 > width:
            break
        top = rng.integers(0, ROWS - len(glyph) + 1)
        page[top : top + len(glyph), at : at + glyph.shape[1]] = glyph * rng.uniform(0.6, 1)
        at, seen = at + glyph.shape[1] + int(rng.integers(1, 5)), seen + 1
    del digits[seen:]
    return page + rng.normal(0, 0.1, page.shape)


def pictures(count: int, width: int = 64) -> tuple[torch.Tensor, list[list[int]]]:
    """Pictures [count, 1, ROWS, width], and what stands in them."""
    texts = [[int(digit) for digit in rng.integers(0, 10, rng.integers(3, 7))] for _ in range(count)]
    x = np.stack([picture(text, width) for text in texts])[:, None]
    return torch.from_numpy(x.astype(np.float32)), texts


x, texts = pictures(2)
print("\n".join("".join(" .:*#"[int(4 * min(max(value, 0), 1))] for value in row) for row in x[0, 0].tolist()))
print(texts[0])

# %% [markdown]
# ## The network
#
# Convolutions and pooling make features of a quarter of the columns. Two LSTMs in both directions look at all of these,
# and the linear layer says of each column: one of ten digits, or nothing.


# %%
class Reader(nn.Module):
    """[B, 1, 16, W] -> logarithms of probabilities [W / 4, B, 11]."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.lstm = nn.LSTM(32 * ROWS // 4, 48, num_layers=2, bidirectional=True)
        self.head = nn.Linear(96, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        columns = self.features(x).permute(3, 0, 1, 2).flatten(2)
        y, _ = self.lstm(columns)
        return self.head(y).log_softmax(-1)


def read(scores: np.ndarray) -> list[list[int]]:
    """Digits of [W / 4, B, 11]: the best of each column, once where columns repeat it, without nothing (10)."""
    best = scores.argmax(-1).T
    return [[int(d) for d, before in zip(row, [10, *row[:-1]], strict=True) if d not in (10, before)] for row in best]


# %% [markdown]
# ## Learn
#
# The loss is CTC's (Graves et al. 2006), which knows what stands in a picture but not where.

# %%
model, loss_of = Reader(), nn.CTCLoss(blank=10)
optimizer = torch.optim.Adam(model.parameters(), 4e-3)
STEPS = 800
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, STEPS)
started = time.perf_counter()
for step in range(1, STEPS + 1):
    x, texts = pictures(32)
    scores = model(x)
    lengths = torch.tensor([len(text) for text in texts])
    columns = torch.full((32,), len(scores))
    loss = loss_of(scores, torch.tensor([digit for text in texts for digit in text]), columns, lengths)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    if step % 200 == 0:
        print(f"step {step:5}   loss {loss.item():.3f}")
print(f"{time.perf_counter() - started:.0f} s of training")

# %% [markdown]
# ## Export it, and compile the whole of it
#
# `from_torch` has torch export the model as it runs on an example, with names for the sizes that may differ: how many
# pictures, how wide. All of it is compiled into one file: the convolutions, the pooling, the LSTMs, what is behind
# them. `torch.onnx.export` and `from_onnx` do the same by way of a file.

# %%
model.eval()
x, texts = pictures(500)
net = rnn.from_torch(model, x[:1], axes={"x": {0: "B", 3: "W"}})
mod = rnn.compile(net)
print([step.op for step in net.program.steps])
(scores,) = mod.run({"x": x}).values()
with torch.no_grad():
    expected = model(x)
print("the largest difference is below 1e-4:", bool((scores - expected).abs().max() < 1e-4))
right = sum(found == text for found, text in zip(read(scores.numpy()), texts, strict=True))
print(f"{right / len(texts):.1%} of {len(texts)} new pictures are read without a fault")
assert right > 0.8 * len(texts)
wide, long = pictures(1, width=96)
(found,) = mod.run({"x": wide}).values()
print("in a picture of 96 columns:", read(found.numpy())[0], "of", long[0])

# %% [markdown]
# ## Read in C
#
# A bundle has the model's own function, `reader_run`. This program reads pictures from its input, one after the other,
# and prints their digits. No other library is loaded but the bundle's and libc.

# %%
PROGRAM = """
#include <stdio.h>
#include "reader.h"

int main(void) {
  static float picture[ROWS * WIDTH];
  reader *handle;
  reader_array in = {picture, {1, 1, ROWS, WIDTH}, 4, READER_FLOAT32}, out;
  int status = reader_open(NULL, &handle);
  while (!status && fread(picture, sizeof picture, 1, stdin) == 1) {
    if ((status = reader_run(handle, &in, &out))) break;
    const float *scores = out.data;
    for (int t = 0, before = 10; t < out.shape[0]; ++t, scores += 11) {
      int best = 0;
      for (int i = 1; i < 11; ++i) best = scores[i] > scores[best] ? i : best;
      if (best != 10 && best != before) putchar('0' + best);
      before = best;
    }
    putchar('\\n');
  }
  if (status) fprintf(stderr, "%s\\n", reader_error());
  else reader_close(handle);
  return status;
}
"""
mod.export(bundle=folder / "reader")
(folder / "reader" / "read.c").write_text(PROGRAM)
build = f"cc -O2 -DROWS={ROWS} -DWIDTH=64 read.c -o read -L. -lreader -Wl,-rpath,'$ORIGIN'"
subprocess.run(build, shell=True, cwd=folder / "reader", check=True)
started = time.perf_counter()
done = subprocess.run([folder / "reader" / "read"], input=x.numpy().tobytes(), capture_output=True, check=True, env={})
took = time.perf_counter() - started
lines = done.stdout.decode().split()
same = [list(map(int, line)) for line in lines] == read(scores.numpy())
print(f"{len(lines)} pictures in C, {1e3 * took / len(lines):.2f} ms each; the same as here: {same}")
assert same

# %% [markdown]
# ## On a GPU
#
# With `target="cuda"` all of it is kernels of the GPU, the convolutions and the pooling too, in one stream: a call can
# be captured in a CUDA graph, whose replay launches all of them at once. Beside it torch's own layers, which are told
# not to round what they multiply either. For a GPU that is elsewhere, name it: `nvidia-h200` compiles here.


# %%
def microseconds(call: Callable[[], object]) -> float:
    """Of a call: of a hundred, one after the other."""
    for count in (3, 100):  # at first the GPU wakes, and torch chooses its kernels
        started = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
    return 1e4 * (time.perf_counter() - started)


def captured(call: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
    """The replay of a call's CUDA graph, and the tensor that it writes."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph.replay, result


print("GPUs that have names:", ", ".join(name for name in names() if name.startswith("nvidia")))
if torch.cuda.is_available():
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    gpu, theirs, few = rnn.compile(net, "cuda", batch=32), model.cuda(), x[:32].cuda()
    calls = {
        "compiled": lambda: next(iter(gpu.run({"x": few}).values())),
        "torch": torch.inference_mode()(lambda: theirs(few)),
    }
    for name, call in calls.items():
        first = call().clone()
        called, (replay, scores) = microseconds(call), captured(call)
        replayed = microseconds(replay)
        difference = (scores.cpu() - expected[:, :32]).abs().max()
        print(f"on the GPU, {name}: the largest difference is below 1e-4:", bool(difference < 1e-4))
        print(f"  a graph gives the same: {bool((scores == first).all())}")
        print(f"  {called:.0f} us for 32 pictures, {replayed:.0f} us as a graph")

# %% [markdown]
# ## What to read next
#
# `08_bring_your_model.py` takes other models, of ONNX and Keras too; `tvm_rnn/surroundings/` says what becomes of
# convolutions and pooling, `tvm_rnn/bundle/program.c` how a bundle runs a model's steps.

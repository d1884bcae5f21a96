"""Models that others trained and saved, loaded cold: the same class for every digit as where they were trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip("torch")

TORCH = """
import sys
import numpy as np, torch
from sklearn.datasets import load_digits
digits = load_digits()
x, label = torch.tensor(digits.images / 16, dtype=torch.float32), torch.tensor(digits.target)

class Reader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.read = torch.nn.LSTM(8, 24, 2, batch_first=True, bidirectional=True), torch.nn.Linear(48, 10)

    def forward(self, x):
        return self.read(self.rows(x)[0][:, -1])

torch.manual_seed(0)
model = Reader()
optimiser = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(25):
    loss = torch.nn.functional.cross_entropy(model(x[:1200]), label[:1200])
    optimiser.zero_grad(), loss.backward(), optimiser.step()
from safetensors.torch import save_file
save_file(model.state_dict(), sys.argv[1])
np.save(sys.argv[2], model(x).detach().numpy())
"""
KERAS = """
import os, sys
os.environ.setdefault("KERAS_BACKEND", "torch")
import keras, numpy as np
from keras import layers
from sklearn.datasets import load_digits
digits = load_digits()
x = (digits.images / 16).astype("float32")
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((8, 8), name="image"), layers.GRU(24, return_sequences=True), layers.LSTM(24),
                          layers.Dense(10, activation="softmax", name="digit")])
model.compile("adam", "sparse_categorical_crossentropy")
model.fit(x[:1200], digits.target[:1200], epochs=3, verbose=0)
model.save(sys.argv[1])
np.save(sys.argv[2], model.predict(x, verbose=0))
"""
# In a process that has neither framework.
COLD = """
import json, sys
import numpy as np
sys.modules["keras"] = None
import tvm_rnn as rnn
from safetensors.numpy import load_file
from sklearn.datasets import load_digits
x, (kind, path, answers) = (load_digits().images / 16).astype("float32"), sys.argv[1:]
if kind == "keras":
    (found,) = rnn.compile(rnn.from_keras(path)).run({"image": x}).values()
else:
    y, _ = rnn.compile(rnn.from_torch(path, prefix="rows."))(np.ascontiguousarray(x.swapaxes(0, 1)))
    head = load_file(path)
    found = y[-1] @ head["read.weight"].T + head["read.bias"]
there = np.load(answers)
print(json.dumps([int((found.argmax(1) == there.argmax(1)).sum()), len(x), float(np.abs(found - there).max()),
                  float((found.argmax(1)[1200:] == load_digits().target[1200:]).mean())]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torch", "keras"])
def test_every_digit_is_read_the_same(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("keras" if kind == "keras" else "torch")
    path, answers = tmp_path / ("m.keras" if kind == "keras" else "m.safetensors"), tmp_path / "answers.npy"
    command = [sys.executable, "-c", KERAS if kind == "keras" else TORCH, str(path), str(answers)]
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run(
        [sys.executable, "-c", COLD, kind, str(path), str(answers)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    same, count, error, right = json.loads(done.stdout.splitlines()[-1])
    assert same == count and error < 1e-3 and right > 0.5

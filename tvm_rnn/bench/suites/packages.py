"""Models of packages, as their authors wrote them: what `rnn.accelerate` is measured on.

In: packages that are installed. Out: `MODELS`, each with the inputs of one call. A package's own weights where it
brings some, else those that torch draws: times do not depend on them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_rnn.errors import ConfigError, message

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class PackagedModel:
    """One model. package: as pip names it, of the version that was measured; make: the model, on the CPU; shape: of a
    call's input, rows and steps among it; steps: that its recurrent layers take."""

    name: str
    package: str
    make: Callable[[], torch.nn.Module]
    shape: tuple[int, ...]
    steps: int

    @property
    def is_installed(self) -> bool:
        """Whether a package of its name is there, of any version."""
        name = self.package.partition("=")[0]
        return any(name.lower() == str(own.metadata["Name"]).lower() for own in importlib.metadata.distributions())

    def model(self) -> torch.nn.Module:
        """In eval mode. Raises ConfigError where the package is not installed."""
        import torch

        torch.manual_seed(0)
        try:
            return self.make().eval()
        except ImportError as reason:
            do = f"pip install {self.package}"
            raise ConfigError(message(f"{self.name}: its package is not installed", got=str(reason), do=do)) from None


def _voice_encoder() -> torch.nn.Module:
    """Three LSTMs of 256 and a product: Resemblyzer's speaker encoder, with its weights."""
    model: torch.nn.Module = importlib.import_module("resemblyzer.voice_encoder").VoiceEncoder("cpu", verbose=False)
    return model


def _beats() -> torch.nn.Module:
    """A convolution and two LSTMs of 150, whose state goes from call to call: BeatNet's, with its weights."""
    import torch

    module = importlib.import_module("BeatNet.model")
    model: torch.nn.Module = module.BDA(272, 150, 2, "cpu")
    weights = Path(str(module.__file__)).parent / "models" / "model_1_weights.pt"
    model.load_state_dict(torch.load(weights, map_location="cpu"), strict=False)
    return model


def _sources() -> torch.nn.Module:
    """Three LSTMs of 256 in both directions among products of spectrograms: Open-Unmix."""
    kind = importlib.import_module("openunmix.model").OpenUnmix
    model: torch.nn.Module = kind(nb_bins=2049, nb_channels=2, max_bin=1487)
    return model


def _codec() -> torch.nn.Module:
    """Convolutions of audio, and behind them two LSTMs of 512: EnCodec's encoder at 24 kHz."""
    model: torch.nn.Module = importlib.import_module("encodec.modules.seanet").SEANetEncoder(causal=True)
    return model


def _reader() -> torch.nn.Module:
    """Convolutions and pooling of a picture, two LSTMs of 48 in both directions over its columns, and a product, as in
    tutorial 20."""
    from torch import nn

    def part(channels: int, more: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, more, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]

    def forward(self: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.lstm(self.features(x).permute(3, 0, 1, 2).flatten(2))
        scores: torch.Tensor = self.head(y).log_softmax(-1)
        return scores

    made: torch.nn.Module = type("Reader", (nn.Module,), {"forward": forward})()
    made.features = nn.Sequential(*part(1, 16), *part(16, 32))
    made.lstm, made.head = nn.LSTM(128, 48, num_layers=2, bidirectional=True), nn.Linear(96, 11)
    return made


# Of torch alone, for GPUs.
READERS = tuple(PackagedModel(f"reader of {rows}", "torch", _reader, (rows, 1, 16, 64), 16) for rows in (1, 32))
MODELS = {
    model.name: model
    for model in (
        PackagedModel("voice-encoder", "resemblyzer==0.1.4", _voice_encoder, (10, 160, 40), 160),
        PackagedModel("beats", "BeatNet==1.1.3", _beats, (1, 500, 272), 500),
        PackagedModel("sources", "openunmix==1.3.0", _sources, (1, 2, 2049, 255), 255),
        PackagedModel("codec", "encodec==0.1.1", _codec, (1, 1, 48000), 150),
    )
}

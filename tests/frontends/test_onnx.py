"""from_onnx: whole models as users have them, against ONNX Runtime; and files that are damaged or hostile."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_scans
import pytest
from damaged_files import changed_bytes, cut, examples, survives
from hypothesis import given
from hypothesis import strategies as st
from onnx_models import model_of, node, onnx_runtime, random_case, weights

import tvm_rnn as rnn
from tvm_rnn.bench.suites.onnx_files import found_in
from tvm_rnn.errors import ConfigError
from tvm_rnn.oracle.tolerance import assert_close

RNG = np.random.default_rng(0)
LSTM = weights("LSTM", 2, 6, 4, RNG)
GRU = weights("GRU", 1, 8, 5, RNG)
EMBEDDING, HEAD = RNG.normal(size=(20, 6)).astype("f4"), RNG.normal(size=(5, 3)).astype("f4")


def classifier(opset: int = 17) -> Any:
    """Words to a class: an embedding, both directions of an LSTM, a GRU, a softmax of the last state."""
    constants = {f"{n}{i}": own[n] for i, own in enumerate((LSTM, GRU)) for n in "WRB"}
    constants |= {"E": EMBEDDING, "F": HEAD, "G": HEAD[0], "shape": np.array([0, 0, -1]), "zero": np.array([0])}
    squeeze = node("Squeeze", ["last", "zero"], ["v"]) if opset >= 13 else node("Squeeze", ["last"], ["v"], axes=[0])
    nodes = [
        node("Gather", ["E", "words"], ["e"]),
        node("LSTM", ["e", "W0", "R0", "B0", "n"], ["y"], direction="bidirectional", hidden_size=4),
        node("Transpose", ["y"], ["t"], perm=[0, 2, 1, 3]),
        node("Reshape", ["t", "shape"], ["z"]),
        node("GRU", ["z", "W1", "R1", "B1", "n"], ["", "last"], hidden_size=5),
        squeeze,
        node("Gemm", ["v", "F", "G"], ["logits"]),
        node("Softmax", ["logits"], ["p"]),
    ]
    return model_of(
        nodes, {"words": ("i8", ["T", "B"]), "n": ("i4", ["B"])}, {"p": "f4", "last": "f4"}, constants, opset
    )


def words(steps: int = 7, batch: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(steps)
    return {"words": rng.integers(0, 20, (steps, batch)), "n": rng.integers(1, steps + 1, batch).astype("i4")}


@pytest.mark.parametrize("opset", [7, 11, 13, 17, 22])
def test_a_classifier_of_any_version(opset: int) -> None:
    made = classifier(opset)
    assert_close(rnn.reference(rnn.from_onnx(made)).run(words()), onnx_runtime(made, words()), "float32", 7)


@pytest.mark.broad
def test_a_classifier_in_one_file(tmp_path: Path) -> None:
    onnx.save(classifier(), tmp_path / "m.onnx")
    model = rnn.from_onnx(tmp_path / "m.onnx")
    assert [net.cell.name for net in model.networks] == ["lstm", "gru_reset_before"]
    rnn.compile(model).export(tmp_path / "m.so")
    module = rnn.load(tmp_path / "m.so")
    for steps, batch in ((7, 3), (1, 1), (40, 5)):
        given_words = words(steps, batch)
        assert_close(module.run(given_words), onnx_runtime(classifier(), given_words), "float32", steps)
    origin = module.manifest.origin
    assert origin.framework == "onnx" and origin.layer == "LSTM 'y'; GRU 'last'"
    assert origin.file == str(tmp_path / "m.onnx") and len(origin.sha256) == 64


def test_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    options = {"save_as_external_data": True, "size_threshold": 0, "location": "weights.bin"}
    onnx.save(classifier(), tmp_path / "m.onnx", **options)
    found = rnn.reference(rnn.from_onnx(tmp_path / "m.onnx")).run(words())
    assert_close(found, rnn.reference(rnn.from_onnx(classifier())).run(words()), "float64", 7)
    (tmp_path / "weights.bin").write_bytes((tmp_path / "weights.bin").read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"'weights\.bin'"):
        rnn.from_onnx(tmp_path / "m.onnx")


def test_old_models_list_their_weights_among_the_inputs() -> None:
    made = classifier(7)
    for tensor in made.graph.initializer:
        made.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    assert {d.name for d in rnn.from_onnx(made).program.inputs} == {"words", "n"}


def test_weights_come_back_bit_for_bit(tmp_path: Path) -> None:
    """Through our order of gates and sums of biases."""
    for seed in range(20):
        case = random_case(seed)
        case.model.graph.node[0].ClearField("output")
        case.model.graph.node[0].output.append("Y")
        case.model.graph.output[0].name = "Y"
        del case.model.graph.output[1:]
        net = rnn.from_onnx(case.model)
        stored = {t.name: onnx.numpy_helper.to_array(t) for t in case.model.graph.initializer}
        rnn.to_onnx(net, tmp_path / "m.onnx")
        again = onnx.load(tmp_path / "m.onnx")
        found = {t.name: onnx.numpy_helper.to_array(t) for t in again.graph.initializer}
        for name in stored:
            np.testing.assert_array_equal(found[f"{name}_l0"], stored[name], err_msg=f"{seed} {name}", strict=True)


# --- what torch exports ----------------------------------------------------------------------------------------------


@pytest.mark.broad
@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "dynamo"),
    [
        ("LSTM", False),
        ("GRU", False),
        ("RNN", False),
        pytest.param("LSTM", True, marks=pytest.mark.slow),
        pytest.param("GRU", True, marks=pytest.mark.slow),
    ],
)
def test_what_torch_exports(kind: str, dynamo: bool, tmp_path: Path) -> None:
    """Batch first, two layers, both directions, a linear layer: one network, and torch's results."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript" if dynamo else "onnx")
    torch.manual_seed(0)

    class Tagger(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = getattr(torch.nn, kind)(6, 4, 2, bidirectional=True, batch_first=True)
            self.head = torch.nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            return self.head(self.rnn(x)[0]).log_softmax(-1)

    tagger, x = Tagger().eval(), torch.randn(3, 5, 6)
    axes: dict[str, Any] = {"dynamic_axes": {"x": {0: "B", 1: "T"}}}
    if dynamo:
        axes = {"dynamic_shapes": ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},), "verbose": False}
    path = str(tmp_path / "m.onnx")
    torch.onnx.export(tagger, (x,), path, input_names=["x"], output_names=["p"], dynamo=dynamo, **axes)
    net = rnn.from_onnx(path)
    assert isinstance(net, rnn.RNN) and net.num_layers == 2 and net.bidirectional
    expected = tagger(x).detach().numpy()
    assert_close(rnn.reference(net).run({"x": x.numpy()})["p"], expected, "float32", 5)


# --- models that are not supported, damaged or hostile ---------------------------------------------------------------


def refused(made: Any) -> str:
    with pytest.raises(ConfigError) as error:
        rnn.from_onnx(made)
    return str(error.value)


def test_everything_that_is_not_supported_is_named_at_once() -> None:
    made = classifier()
    made.graph.node.insert(1, node("Det", ["e"], ["conv"], "c1"))
    made.graph.node[2].input[0] = "conv"
    made.graph.node[2].attribute.extend([onnx.helper.make_attribute("clip", -1.0)])
    made.graph.node.append(node("StringSplit", ["p"], ["zz"], "nz"))
    made.graph.output.append(onnx.helper.make_tensor_value_info("zz", 7, None))
    said = refused(made)
    for text in ("Det 'c1': operator Det is not supported", "StringSplit 'nz': operator StringSplit"):
        assert text in said
    made.graph.node[1].CopyFrom(node("Relu", ["e"], ["conv"]))
    assert "LSTM 'y': clip -1" in refused(made) and "StringSplit" in refused(made)


def test_what_no_output_needs_is_left_alone() -> None:
    made = classifier()
    made.graph.node.append(node("NonZero", ["p"], ["zz"]))
    assert len(rnn.from_onnx(made).networks) == 2


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda g: g.node[1].input.__setitem__(0, "p"), "read before it is made: the graph has a cycle"),
        (lambda g: g.node[0].input.__setitem__(1, "nothing"), "value 'nothing' is missing"),
        (lambda g: g.node[2].output.__setitem__(0, "y"), "value 'y' is made twice"),
        (lambda g: g.node[2].output.__setitem__(0, "E"), "value 'E' is made twice"),
        (lambda g: g.initializer.append(g.initializer[0]), "is there twice"),
        (lambda g: g.input.append(g.input[0]), "value 'words' is there twice"),
        (lambda g: g.output.add(name="none").type.tensor_type.__setattr__("elem_type", 1), "output 'none' is missing"),
        (lambda g: g.initializer[0].__setattr__("raw_data", b"12"), "2 bytes for shape"),
        (lambda g: g.initializer[0].dims.__setitem__(0, 2**60), "has shape"),
        (lambda g: g.sparse_initializer.add(), "sparse initializers"),
        (lambda g: g.input[0].type.tensor_type.__setattr__("elem_type", 8), "element type 8"),
        (lambda g: g.node.__delitem__(slice(0, 8)), "is missing"),
    ],
)
def test_broken_graphs(change: Any, text: str) -> None:
    made = classifier()
    change(made.graph)
    assert text in refused(made)


def test_models_without_a_recurrent_node_or_of_another_version() -> None:
    plain = model_of([], {"x": ("i4", [1])}, {"x": "i4"})
    assert "nothing to compile" in refused(plain) and "no node" in refused(plain)
    for opset in (6, 9999, 0):
        made = classifier()
        made.opset_import[0].version = opset
        assert f"operator set {opset}" in refused(made)
    made = classifier()
    made.graph.node[1].domain = "com.microsoft"
    assert "com.microsoft.LSTM is not of the standard set" in refused(made)


def test_thousands_of_nodes_and_deep_chains_end(tmp_path: Path) -> None:
    """Without recursion: a chain of 5000 nodes in front of the network."""
    nodes = [node("Identity" if i % 2 else "Abs", [f"x{i}"], [f"x{i + 1}"]) for i in range(5000)]
    own = weights("RNN", 1, 3, 2, RNG)
    nodes.append(node("RNN", ["x5000", "W", "R"], ["Y"]))
    made = model_of(nodes, {"x0": ("f4", [None, None, 3])}, {"Y": "f4"}, {n: own[n] for n in "WR"})
    net = rnn.from_onnx(made)
    assert [step.op for step in net.program.steps].count("Abs") == 2500
    assert "Identity" not in {step.op for step in net.program.steps}


WHOLE = classifier().SerializeToString()


@pytest.mark.parametrize("end", cut(WHOLE))
def test_a_file_that_was_cut_short(end: int) -> None:
    survives(WHOLE[:end], lambda: words(3, 2))


@pytest.mark.broad
@given(changed_bytes(WHOLE))
@examples(150)
def test_changed_bytes(data: bytes) -> None:
    survives(data, lambda: words(3, 2))


NAMES = [
    "",
    "words",
    "n",
    "e",
    "y",
    "t",
    "z",
    "last",
    "v",
    "p",
    "E",
    "W0",
    "R0",
    "B0",
    "W1",
    "shape",
    "zero",
    "nothing",
]
OPS = [
    "Gather",
    "LSTM",
    "GRU",
    "RNN",
    "Transpose",
    "Reshape",
    "Expand",
    "Concat",
    "Gemm",
    "Softmax",
    "Split",
    "Loop",
    "",
]
NUMBERS = [-(2**62), -1, 0, 1, 2, 3, 4, 5, 2**31, 2**62]


@st.composite
def mutations(draw: Any) -> bytes:
    """The classifier with nodes, names, attributes, dims and opsets changed: a file that parses."""
    model = onnx.load_from_string(WHOLE)
    graph = model.graph
    for _ in range(draw(st.integers(1, 4))):
        chosen = draw(st.sampled_from(list(graph.node)))
        tensor = draw(st.sampled_from(list(graph.initializer)))
        kind = draw(st.integers(0, 8))
        if kind == 0 and chosen.input:
            chosen.input[draw(st.integers(0, len(chosen.input) - 1))] = draw(st.sampled_from(NAMES))
        elif kind == 1:
            chosen.output[0] = draw(st.sampled_from(NAMES))
        elif kind == 2:
            chosen.op_type = draw(st.sampled_from(OPS))
        elif kind == 3:
            chosen.attribute.append(draw(st.sampled_from(ATTRIBUTES)))
        elif kind == 4 and tensor.dims:
            tensor.dims[draw(st.integers(0, len(tensor.dims) - 1))] = draw(st.sampled_from(NUMBERS))
        elif kind == 5:
            tensor.data_type = draw(st.integers(0, 25))
        elif kind == 6:
            tensor.raw_data = draw(st.binary(max_size=16))
        elif kind == 7:
            del chosen.input[draw(st.integers(0, len(chosen.input))) :]
        else:
            model.opset_import[0].version = draw(st.sampled_from([1, 7, 10, 13, 18, 22]))
    return model.SerializeToString()


ATTRIBUTES = [
    onnx.helper.make_attribute("layout", 1),
    onnx.helper.make_attribute("hidden_size", 2**62),
    onnx.helper.make_attribute("direction", "reverse"),
    onnx.helper.make_attribute("activations", ["Affine"]),
    onnx.helper.make_attribute("perm", [0, 0]),
    onnx.helper.make_attribute("axis", -(2**62)),
    onnx.helper.make_attribute("axes", [2**62]),
    onnx.helper.make_attribute("clip", "text"),
    onnx.helper.make_attribute("value", onnx.TensorProto(dims=[2**62], data_type=1)),
]


@pytest.mark.broad
@given(mutations())
@examples(200)
def test_changed_models(data: bytes) -> None:
    survives(data, lambda: words(3, 2))


@pytest.mark.slow
@given(mutations())
@examples(5000)
def test_many_changed_models(data: bytes) -> None:
    survives(data, lambda: words(3, 2))


def test_one_file_of_external_data_is_counted_for_each_tensor(tmp_path: Path) -> None:
    made = onnx_scans.simple()
    (tmp_path / "w.bin").write_bytes(bytes(1 << 14))
    for i in range(200):
        tensor = made.graph.initializer.add(name=f"e{i}", data_type=1, dims=[1 << 12], data_location=1)
        tensor.external_data.add(key="location", value="w.bin")
        made.graph.output.append(onnx.helper.make_tensor_value_info(f"e{i}", 1, [1 << 12]))
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    assert isinstance(rnn.from_onnx(tmp_path / "m.onnx"), rnn.RNN)
    with rnn.Budget(bytes=-(1 << 21)), pytest.raises(ConfigError, match=r"tensor 'e\d+'.*\n.*budget|budget"):
        rnn.from_onnx(tmp_path / "m.onnx")


def test_messages_are_counted() -> None:
    with rnn.Budget(nodes=30), pytest.raises(ConfigError, match="nodes of at most 30"):
        rnn.from_onnx(onnx_scans.simple())
    with rnn.Budget(depth=3), pytest.raises(ConfigError, match="depth of at most 3"):
        rnn.from_onnx(onnx_scans.simple())


def test_a_tensor_that_is_an_output_and_cannot_be_read() -> None:
    made = onnx_scans.simple()
    made.graph.initializer.add(name="e", data_type=1, dims=[0, 1 << 62])
    made.graph.output.append(onnx.helper.make_tensor_value_info("e", 1, None))
    with pytest.raises(ConfigError, match="tensor 'e' has shape"):
        rnn.from_onnx(made)


def with_an_lstm() -> Any:
    """A model of an LSTM, whose weights its node reads: onnx's function finds them, and not those of bodies alone."""
    held = {name: np.zeros((1, 8, size), "f4") for name, size in (("W", 3), ("R", 2))}
    lstm = node("LSTM", ["xs", "W", "R"], ["ys"], hidden_size=2)
    return model_of([lstm], {"xs": ("f4", [None, None, None])}, {"ys": "f4"}, held)


def test_what_is_below_an_if_is_named_and_how_to_cut_the_rest_out() -> None:
    made = with_an_lstm()

    def branch(*ops: str) -> Any:
        nodes = [onnx.helper.make_node(op, ["xs"], [f"{op}.y"]) for op in ops]
        return onnx.helper.make_graph(nodes, "b", [], [onnx.helper.make_tensor_value_info(f"{ops[-1]}.y", 1, None)])

    inner = branch("Conv", "Det", "Tanh")
    inner.node.append(onnx.helper.make_node("If", ["c"], ["z"], then_branch=branch("Conv"), else_branch=branch("Tanh")))
    made.graph.input.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []))
    made.graph.node.append(onnx.helper.make_node("If", ["c"], ["w"], then_branch=inner, else_branch=branch("Tanh")))
    made.graph.output.append(onnx.helper.make_tensor_value_info("w", 1, None))
    with pytest.raises(ConfigError) as caught:
        rnn.from_onnx(made)
    said = "its condition is not known before the model runs: fix it by given={'c': ...}; both branches would run, "
    said += "if they made the same shapes, but they make 'w' as float32 [?, ?, ?] or float32 [?, ?, ?]; "
    said += "operator If is not supported; nor is, in its branches: Det (1), If (1)"
    assert said in str(caught.value)
    assert "onnx.utils.extract_model(path, 'part.onnx', ['xs'], ['ys'])" in str(caught.value)


def test_what_is_below_loops_is_named_at_once_and_the_command_that_is_shown_cuts_the_model(tmp_path: Path) -> None:
    """Of a Loop and a Scan, and of an If in either; the command is run as it is shown."""
    helper, made = onnx.helper, with_an_lstm()

    def floats(name: str) -> Any:
        return helper.make_tensor_value_info(name, 1, [3])

    def branch(op: str) -> Any:
        return helper.make_graph([node(op, ["s"], [op])], "branch", [], [floats(op)])

    def body(inputs: list[Any], outputs: list[Any], own: str) -> Any:
        either = node("If", ["k"], ["w"], then_branch=branch("Det"), else_branch=branch("Compress"))
        nodes = [node(own, ["s"], ["u"]), either, node("Sum", ["s", "u", "w"], ["s2"])]
        return helper.make_graph(nodes, "body", inputs, [*outputs, floats("s2")])

    count, go = helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("go", 9, [])
    loop = body([count, go, floats("s")], [go], "Unique")
    made.graph.node.append(node("Loop", ["M", "yes", "s0"], ["r"], body=loop))
    scan = body([floats("s"), floats("x")], [], "NonZero")
    made.graph.node.append(node("Scan", ["s0", "rows"], ["q"], body=scan, num_scan_inputs=1))
    made.graph.node.append(node("StringConcat", ["xs", "xs"], ["text"]))
    made.graph.input.append(helper.make_tensor_value_info("k", onnx.TensorProto.BOOL, []))
    made.graph.input.extend([floats("s0"), helper.make_tensor_value_info("rows", 1, [5, 3])])
    for name, value in (("M", np.int64(7)), ("yes", np.bool_(True))):
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    made.graph.output.extend(helper.make_tensor_value_info(name, 1, None) for name in ("r", "q", "text"))
    with pytest.raises(ConfigError) as caught:
        rnn.from_onnx(made)
    for missing in ("Unique", "NonZero", "Det (1)", "Compress (1)", "StringConcat"):
        assert missing in str(caught.value), missing
    onnx.save(made, tmp_path / "whole.onnx")
    shown = re.search(r"extract_model\(path, 'part.onnx', (\[.*?\]), (\[.*?\])\)", str(caught.value))
    assert shown
    part = tmp_path / "part.onnx"
    onnx.utils.extract_model(tmp_path / "whole.onnx", part, *map(ast.literal_eval, shown.groups()), check_model=False)
    assert isinstance(rnn.from_onnx(part), rnn.RNN)


def test_nothing_behind_what_is_refused_is_offered_to_be_cut_out() -> None:
    """Of x -> Tanh -> Det -> Relu -> Unique, the part that ends at Tanh."""
    kinds = (("Tanh", "a"), ("Det", "b"), ("Relu", "c"), ("Unique", "y"))
    helper = onnx.helper
    made = [helper.make_node(kind, [before], [name]) for (kind, name), before in zip(kinds, "xabc", strict=True)]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "xy")
    model = helper.make_model(helper.make_graph(made, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(ConfigError, match=r"extract_model\(path, 'part.onnx', \['x'\], \['a'\]\)") as caught:
        rnn.from_onnx(model)
    assert "Det" in str(caught.value) and "Unique" in str(caught.value)


def test_what_is_not_supported_below_an_if_in_a_loop_is_named() -> None:
    """Whether or not what the If depends on is supported."""
    make, empty, kind = onnx.helper.make_graph, onnx.helper.make_empty_tensor_value_info, onnx.TensorProto
    branches = [make([node(op, ["s"], [op])], op, [], [empty(op)]) for op in ("Unique", "Det")]
    for before in ("Less", "NonZero"):
        own = [
            node("Identity", ["go"], ["goes"]),
            node(before, ["s", "one"] if before == "Less" else ["s"], ["q"]),
            node("If", ["q"], ["b"], then_branch=branches[0], else_branch=branches[1]),
            node("Add", ["s", "b"], ["next"]),
        ]
        ends = [
            onnx.helper.make_tensor_value_info(n, kind.BOOL if n.startswith("go") else kind.FLOAT, [])
            for n in ("go", "s", "goes", "next")
        ]
        i = onnx.helper.make_tensor_value_info("i", kind.INT64, [])
        one = onnx.numpy_helper.from_array(np.float32(1), "one")
        body = make(own, "body", [i, *ends[:2]], ends[2:], [one])
        loop = [node("Loop", ["n", "", "x"], ["y"], body=body)]
        with pytest.raises(ConfigError, match=r"If is not supported; nor is, in its branches: Det \(1\), Unique \(1\)"):
            rnn.from_onnx(model_of(loop, {"x": ("f4", ["B", 3])}, {"y": "f4"}, {"n": np.array(3)}))


@pytest.mark.slow
def test_silero_hears_the_same_for_half_a_minute() -> None:
    """The probabilities of 937 frames of noise, then of tones that come and go; the state keeps 1e-5 of what it is."""
    paths = {own.name: path for own, path in found_in().items()}
    if "silero_vad 30 s" not in paths:
        pytest.skip("pip install --no-deps silero-vad")
    path, rng, steps = paths["silero_vad 30 s"], np.random.default_rng(0), 937
    module = rnn.compile(rnn.from_onnx(path), progress=False)
    t = np.arange(steps * 512 + 64) / 16000
    tones = sum(np.sin(2 * np.pi * f * t) / (1 + i) for i, f in enumerate((150, 450, 2300))) * 0.2
    tones = tones * (np.sin(5 * np.pi * t) > 0) + 0.005 * rng.standard_normal(len(t))
    frames = [tones[i * 512 : i * 512 + 576] for i in range(steps)]
    for x in (rng.standard_normal((steps, 576)) * 0.1, np.stack(frames)):
        feeds = {"input": x.astype("f4"), **{name: np.zeros((1, 1, 128), "f4") for name in "hc"}}
        found, expected = module.run(feeds), onnx_runtime(onnx.load(path), feeds)
        assert found["speech_probs"].shape == (steps,)
        np.testing.assert_allclose(found["speech_probs"], expected["speech_probs"], rtol=0, atol=1e-4)
        for name in ("hn", "cn"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5)

import tvm_rnn as rnn
from tvm_rnn.network.model import Model
from tvm_rnn.network.origin import Origin
from tvm_rnn.network.program import Program


def test_a_model_names_its_networks_weights() -> None:
    nets = [rnn.RNN(rnn.cells.elman, 3, 2).init(), rnn.RNN(rnn.cells.gru, 2, 2)]
    model = Model(nets, Program((), (), (), {}), Origin("onnx", "two nodes"))
    assert list(model.weights) == ["0.W_l0", "0.R_l0", "0.b_l0"]
    assert repr(model) == f"<Model of {nets[0]!r}, {nets[1]!r}>"

import tvm_rnn as rnn


def test_layers_of_equal_sizes_share_their_graph() -> None:
    layers = rnn.RNN(rnn.cells.lstm, 6, 6, 3).layers
    assert [layer.index for layer in layers] == [0, 1, 2]
    assert layers[1].graph is layers[2].graph and layers[0].width == 6


def test_regularisers_have_a_graph_of_training_of_their_own() -> None:
    plain, zoned = rnn.RNN(rnn.cells.lstm, 3, 5).layers[0], rnn.RNN(rnn.cells.lstm, 3, 5, zoneout=0.1).layers[0]
    assert plain.training is plain.graph and zoned.training is not zoned.graph

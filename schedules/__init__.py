"""Schedule templates and tuned records; installed as tvm_rnn.schedules, discovered by tvm_rnn.schedule."""

/* An LSTM as TensorFlow Lite's int8 and int16 models have it, on CMSIS-NN, which tflite-micro calls on Arm. In front of
   this: the weights, and the scales as multipliers. STEP: of s8 or s16; NUMBER, BIAS: the types of values and biases. */

/* i, f, g, o: multipliers and shifts of W x and R h, and what activates the sum. */
#define GATE(i, kind)                                                                                          \
  {                                                                                                            \
    .input_multiplier = SCALES[i][0], .input_shift = SCALES[i][1], .input_weights = W[i],                      \
    .input_effective_bias = (void *)b[i], .hidden_multiplier = SCALES[i][2], .hidden_shift = SCALES[i][3],     \
    .hidden_weights = R[i], .hidden_effective_bias = (void *)none, .activation_type = kind                     \
  }

void cmsis_nn_init(cmsis_nn *s) {
  memset(s, 0, sizeof *s);
}

void cmsis_nn_step(cmsis_nn *s, const NUMBER *x, NUMBER *y) {
  const cmsis_nn_lstm_params p = {
    .time_major = 1, .batch_size = 1, .time_steps = 1, .input_size = CMSIS_NN_X, .hidden_size = CMSIS_NN_Y,
    .forget_to_cell_multiplier = FORGET[0], .forget_to_cell_shift = FORGET[1],
    .input_to_cell_multiplier = INPUT[0], .input_to_cell_shift = INPUT[1],
    .cell_clip = 32767, .cell_scale_power = CELL_POWER,
    .output_multiplier = OUTPUT[0], .output_shift = OUTPUT[1],
    .input_gate = GATE(0, ARM_SIGMOID), .forget_gate = GATE(1, ARM_SIGMOID),
    .cell_gate = GATE(2, ARM_TANH), .output_gate = GATE(3, ARM_SIGMOID),
  };
  cmsis_nn_lstm_context buffers = {s->first, s->second, s->cell, s->hidden};
  STEP(x, y, &p, &buffers);
}

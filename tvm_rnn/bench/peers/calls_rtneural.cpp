/* One recurrent layer of RTNeural, of sizes known when it is compiled. In: LAYER (LSTMLayerT, GRULayerT), GATES, INPUTS,
   OUTPUTS, SAMPLES; weights as RTNeural has them: W [INPUTS][GATES * OUTPUTS], R [OUTPUTS][..], then one bias, or two. */
#include <RTNeural/RTNeural.h>

#include <vector>

using Layer = RTNeural::LAYER<float, INPUTS, OUTPUTS>;
static RTNeural::ModelT<float, INPUTS, OUTPUTS, Layer> model;

static std::vector<std::vector<float>> rows(const float *&from, int count) {
  std::vector<std::vector<float>> found;
  for (int i = 0; i < count; ++i, from += GATES * OUTPUTS) found.emplace_back(from, from + GATES * OUTPUTS);
  return found;
}

static void set_biases(RTNeural::LSTMLayerT<float, INPUTS, OUTPUTS> &layer, const float *&from) {
  layer.setBVals(rows(from, 1)[0]);
}

static void set_biases(RTNeural::GRULayerT<float, INPUTS, OUTPUTS> &layer, const float *&from) {
  layer.setBVals(rows(from, 2));
}

static void take(const float *weights, long) {
  auto &layer = model.get<0>();
  layer.setWVals(rows(weights, INPUTS));
  layer.setUVals(rows(weights, OUTPUTS));
  set_biases(layer, weights);
}

static void begin() { model.reset(); }

static inline const float *call(const float *x, float *y) {
  if (SAMPLES == 1) {
    model.forward(x);
    return model.getOutputs();
  }
  for (int i = 0; i < SAMPLES; ++i) {
    model.forward(x + i * INPUTS);
    const float *made = model.getOutputs();
    for (int k = 0; k < OUTPUTS; ++k) y[i * OUTPUTS + k] = made[k];
  }
  return y;
}

#include "calls.h"

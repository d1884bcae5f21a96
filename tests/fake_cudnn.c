// In place of cuDNN: its functions for recurrent layers, computed on the CPU from what they are documented to mean.
//
// float32 and bfloat16. Rows of the weights lie farther apart than they are long, and biases before matrices, so that a
// caller has to believe the descriptors. Of the algorithms PERSIST_STATIC does what STANDARD does, PERSIST_DYNAMIC wants
// its plan, PERSIST_STATIC_SMALL_H refuses; rows that are not packed need the flag for padding.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000, NO_SMALL_H = 3002 };
enum { RELU, TANH, LSTM, GRU };
enum { FLOAT = 0, BFLOAT16 = 9 };

typedef struct { int count, type, dims[8], strides[8]; } Tensor;
typedef struct { int type, layout, steps, rows, features; } Data;
typedef struct {
  int algorithm, cell, biases, directions, input, type, sums, math, wide, hidden, projected, layers, planned;
  unsigned flags;
} Layers;

static char events[1 << 16];
static const char* reason = "";
static int created, destroyed;

#define SAY(...) snprintf(events + strlen(events), sizeof events - strlen(events), __VA_ARGS__)

const char* fake_log(void) { return events; }
void fake_forget(void) { events[0] = 0; }
int fake_alive(void) { return created - destroyed; }

size_t cudnnGetVersion(void) { return 91901; }
const char* cudnnGetErrorString(int status) {
  return status == BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM" : status == NO_SMALL_H ? "CUDNN_STATUS_NOT_SUPPORTED_SHAPE" : "CUDNN_STATUS_NOT_SUPPORTED";
}
void cudnnGetLastErrorString(char* text, size_t size) { snprintf(text, size, "%s", reason); }

static int refuse(int status, const char* why) { reason = why; return status; }
static int make(void** place, size_t size) { *place = calloc(1, size); ++created; return OK; }
static int drop(void* place) { free(place); ++destroyed; return OK; }

int cudnnCreate(void** handle) { return *handle = calloc(1, 8), OK; }
int cudnnSetStream(void* handle, void* stream) { return handle ? (SAY("stream %p\n", stream), OK) : BAD_PARAM; }
int cudnnCreateTensorDescriptor(Tensor** t) { return make((void**)t, sizeof **t); }
int cudnnDestroyTensorDescriptor(Tensor* t) { return drop(t); }
int cudnnCreateRNNDescriptor(Layers** r) { return make((void**)r, sizeof **r); }
int cudnnDestroyRNNDescriptor(Layers* r) { return drop(r); }
int cudnnCreateRNNDataDescriptor(Data** d) { return make((void**)d, sizeof **d); }
int cudnnDestroyRNNDataDescriptor(Data* d) { return drop(d); }

int cudnnSetTensorNdDescriptor(Tensor* t, int type, int count, const int* dims, const int* strides) {
  t->type = type, t->count = count;
  memcpy(t->dims, dims, sizeof(int) * count), memcpy(t->strides, strides, sizeof(int) * count);
  return OK;
}

int cudnnGetTensorNdDescriptor(Tensor* t, int wanted, int* type, int* count, int* dims, int* strides) {
  *type = t->type, *count = t->count;
  memcpy(dims, t->dims, sizeof(int) * wanted), memcpy(strides, t->strides, sizeof(int) * wanted);
  return OK;
}

int cudnnSetRNNDescriptor_v8(Layers* r, int algorithm, int cell, int biases, int directions, int input, int type,
                             int sums, int math, int32_t wide, int32_t hidden, int32_t projected, int32_t layers,
                             void* dropout, uint32_t flags) {
  if (sums != FLOAT || dropout || biases != 2 || input != 0) return refuse(BAD_PARAM, "unexpected");
  if (projected != hidden && (cell != LSTM || algorithm)) return refuse(NOT_SUPPORTED, "a projection");
  *r = (Layers){algorithm, cell, biases, directions + 1, input, type, sums, math, wide, hidden, projected, layers, 0, flags};
  SAY("layers algorithm %d cell %d directions %d type %d math %d flags %u\n", algorithm, cell, directions, type, math, flags);
  return OK;
}

int cudnnBuildRNNDynamic(void* handle, Layers* r, int rows) { return r->planned = rows, handle ? OK : BAD_PARAM; }

int cudnnSetRNNDataDescriptor(Data* d, int type, int layout, int steps, int rows, int features, const int* lengths,
                              void* fill) {
  for (int b = 0; b < rows; ++b)
    if (lengths[b] != steps && (layout == 1 || !fill || *(double*)fill)) return refuse(BAD_PARAM, "a length");
  *d = (Data){type, layout, steps, rows, features};
  return OK;
}

static int bytes(int type) { return type == FLOAT ? 4 : 2; }
static int gates(const Layers* r) { return r->cell == LSTM ? 4 : r->cell == GRU ? 3 : 1; }
static int below(const Layers* r, int layer) { return layer < r->directions ? r->wide : r->directions * r->projected; }

// Where matrix `number` of a layer and direction is, in elements; its shape; its bias.
typedef struct { size_t matrix, bias; int rows, columns; } Place;

static Place find(const Layers* r, int layer, int number, size_t* whole) {
  const int products = 2 * gates(r) + (r->projected != r->hidden);
  size_t at = (size_t)r->layers * r->directions * products * r->hidden;
  Place found = {0};
  for (int l = 0; l < r->layers * r->directions; ++l)
    for (int n = 0; n < products; ++n) {
      const int last = n == 2 * gates(r);
      const int rows = last ? r->projected : r->hidden;
      const int columns = last ? r->hidden : n < gates(r) ? below(r, l) : r->projected;
      if (l == layer && n == number) found = (Place){at, (size_t)(l * products + n) * r->hidden, rows, columns};
      at += (size_t)rows * (columns + 3);
    }
  if (whole) *whole = at;
  return found;
}

int cudnnGetRNNWeightSpaceSize(void* handle, Layers* r, size_t* size) {
  find(r, 0, 0, size);
  *size *= bytes(r->type);
  return handle ? OK : BAD_PARAM;
}

int cudnnGetRNNWeightParams(void* handle, Layers* r, int32_t layer, size_t size, const void* space, int32_t number,
                            Tensor* matrix, void** matrix_at, Tensor* bias, void** bias_at) {
  size_t whole;
  const Place p = find(r, layer, number == 8 ? 2 * gates(r) : number, &whole);
  if (!handle || size != whole * bytes(r->type) || !p.rows) return refuse(BAD_PARAM, "no such product");
  *matrix = (Tensor){3, r->type, {1, p.rows, p.columns}, {p.rows * (p.columns + 3), p.columns + 3, 1}};
  *bias = (Tensor){3, r->type, {1, p.rows, 1}, {p.rows, 1, 1}};
  *matrix_at = (char*)space + p.matrix * bytes(r->type);
  *bias_at = number == 8 ? NULL : (char*)space + p.bias * bytes(r->type);
  return OK;
}

int cudnnGetRNNTempSpaceSizes(void* handle, Layers* r, int mode, Data* x, size_t* work, size_t* reserve) {
  if (r->algorithm == 3) return refuse(NO_SMALL_H, "too many units");
  *work = 64 * (size_t)x->rows, *reserve = 0;
  return handle && mode == 0 ? OK : BAD_PARAM;
}

// --- values ---------------------------------------------------------------------------------------------------------

static float get(const void* array, size_t at, int type) {
  if (type == FLOAT) return ((const float*)array)[at];
  const uint32_t bits = (uint32_t)((const uint16_t*)array)[at] << 16;
  float value;
  return memcpy(&value, &bits, 4), value;
}

static void put(void* array, size_t at, int type, float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if (type == FLOAT) ((float*)array)[at] = value;
  else ((uint16_t*)array)[at] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

// Row u of product `number` with a vector, and its bias.
static float product(const Layers* r, const void* space, int layer, int number, int u, const float* vector) {
  const Place p = find(r, layer, number, NULL);
  float sum = 0;
  for (int k = 0; k < p.columns; ++k) sum += get(space, p.matrix + (size_t)u * (p.columns + 3) + k, r->type) * vector[k];
  return sum + (number < 2 * gates(r) ? get(space, p.bias + u, r->type) : 0);
}

static void step(const Layers* r, const void* w, int layer, const float* x, float* h, float* c) {
  const int g = gates(r), units = r->hidden;
  float* fresh = calloc(units, sizeof(float));
  for (int u = 0; u < units; ++u) {
    float a[8];
    for (int n = 0; n < 2 * g; ++n) a[n] = product(r, w, layer, n, u, n < g ? x : h);
    if (r->cell == LSTM) {
      c[u] = sigmoid(a[1] + a[5]) * c[u] + sigmoid(a[0] + a[4]) * tanhf(a[2] + a[6]);
      fresh[u] = sigmoid(a[3] + a[7]) * tanhf(c[u]);
    } else if (r->cell == GRU) {
      const float z = sigmoid(a[1] + a[4]);
      fresh[u] = (1 - z) * tanhf(a[2] + sigmoid(a[0] + a[3]) * a[5]) + z * h[u];
    } else {
      fresh[u] = r->cell == TANH ? tanhf(a[0] + a[1]) : fmaxf(a[0] + a[1], 0);
    }
  }
  for (int u = 0; u < r->projected; ++u)
    h[u] = r->projected == units ? fresh[u] : product(r, w, layer, 2 * g, u, fresh);
  free(fresh);
}

int cudnnRNNForward(void* handle, Layers* r, int mode, const int32_t* lengths, Data* xd, const void* x, Data* yd,
                    void* y, Tensor* hd, const void* hx, void* hy, Tensor* cd, const void* cx, void* cy,
                    size_t weight_size, const void* w, size_t work_size, void* work, size_t reserve_size,
                    void* reserve) {
  const int D = r->directions, T = xd->steps, B = xd->rows, P = r->projected, H = r->hidden;
  if (r->algorithm == 2 && r->planned != B) return refuse(BAD_PARAM, "no plan");
  if (xd->layout != 1 && !(r->flags & 1)) return refuse(NOT_SUPPORTED, "padding");
  if (!handle || mode || hx || cx || reserve || reserve_size || work_size != 64 * (size_t)B) return refuse(BAD_PARAM, "arguments");
  if (yd->features != D * P || xd->features != r->wide || yd->layout != xd->layout) return refuse(BAD_PARAM, "shapes");
  if (hd->dims[0] != r->layers * D || hd->dims[1] != B || hd->dims[2] != P) return refuse(BAD_PARAM, "h");
  if (r->cell == LSTM && (cd->dims[2] != H || cd->strides[0] != B * H || !cy)) return refuse(BAD_PARAM, "c");
  memset(work, 0, work_size), (void)weight_size;
  float* in = calloc((size_t)T * B * (r->wide > D * P ? r->wide : D * P), sizeof(float));
  float* out = calloc((size_t)T * B * D * P, sizeof(float));
  for (size_t i = 0; i < (size_t)T * B * r->wide; ++i) in[i] = get(x, i, r->type);
  for (int layer = 0; layer < r->layers; ++layer) {
    const int width = layer ? D * P : r->wide;
    for (int d = 0; d < D; ++d)
      for (int b = 0; b < B; ++b) {
        float *h = calloc(P, sizeof(float)), *c = calloc(H, sizeof(float));
        const size_t row = (size_t)(layer * D + d) * B + b;
        if (lengths[b] != T && xd->layout == 1) return refuse(BAD_PARAM, "lengths");
        for (int s = 0; s < lengths[b]; ++s) {
          const int t = d ? lengths[b] - 1 - s : s;
          step(r, w, layer * D + d, in + ((size_t)t * B + b) * width, h, c);
          memcpy(out + ((size_t)t * B + b) * D * P + d * P, h, sizeof(float) * P);
        }
        for (int u = 0; u < P; ++u) put(hy, row * P + u, r->type, h[u]);
        for (int u = 0; cy && u < H; ++u) put(cy, row * H + u, r->type, c[u]);
        free(h), free(c);
      }
    memcpy(in, out, sizeof(float) * T * B * D * P);
  }
  for (size_t i = 0; i < (size_t)T * B * D * P; ++i) put(y, i, r->type, out[i]);
  free(in), free(out);
  return OK;
}

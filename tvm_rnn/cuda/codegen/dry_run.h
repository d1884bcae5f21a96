// What the statements of a host program call, with no GPU: who launches which kernel, and nothing else.
//
// launched_kernels.py puts this file in front of the statements. Addresses are made up, and aligned as a caller's are.
#include <algorithm>
#include <cstdint>
#include <cstdio>

#define RUN(statement) (void)(statement)

using std::max;
using std::min;

struct Kernel {
  const char* name;
  bool launched;
};

static int64_t room = 0;  // blocks of a kernel that wait for each other, on the GPU at once

template <typename... Given>
int call(Kernel& kernel, Given...) {
  kernel.launched = true;
  return 0;
}

static int fill(char*, int, int64_t) { return 0; }
static int copy(char*, const char*, int64_t) { return 0; }
static int fail(const char*) { return -1; }
static int64_t resident(const Kernel&) { return room; }
static int64_t reserve(int64_t& at, int64_t& most, int64_t count) {
  const int64_t place = at;
  at += (max<int64_t>(count, 0) + 255) / 256 * 256;
  most = max(most, at);
  return place;
}
static char* address(int64_t number) { return reinterpret_cast<char*>((number + 1) << 40); }

struct CallState {
  bool captured() const { return false; }
  int record(int64_t) { return 0; }
  int wait(int64_t) { return 0; }
  int fork(int64_t) { return 0; }
  int join(int64_t) { return 0; }
};

struct OnStream {
  OnStream(CallState&, int64_t) {}
  int status = 0;
};

// The machine of emulate.h and the products of emulate_matrices.h. Compiled once, linked to every emulated kernel.
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulate_matrices.h"

namespace emu {
constexpr size_t kStack = 256 << 10, kShared = 240 << 10, kPage = 4096;

// A block's shared memory: dynamic memory of `size` bytes from `begin` on, arrays of fixed size before `end`. Pages
// between the two refuse every access; dynamic memory ends where a page ends.
class Arena {
 public:
  explicit Arena(size_t size);
  Arena(const Arena&) = delete;
  ~Arena();
  bool has(const void* place) const { return place >= pages_ && place < pages_ + kWhole; }
  char *begin, *end;

 private:
  static constexpr size_t kEnd = 256 << 10, kFixed = 48 << 10, kWhole = kEnd + kPage;
  static size_t whole_pages(size_t size) { return (size + kPage - 1) / kPage * kPage; }
  size_t head_;
  char* pages_;
};
Arena::Arena(size_t size) : head_(whole_pages(size)) {
  pages_ = (char*)mmap(nullptr, kWhole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  begin = pages_ + head_ - (size + 15) / 16 * 16;
  end = begin + kEnd;
  // Of the 48 KB that arrays of fixed size may have at most, what leaves a page between.
  char* const fixed = std::max(pages_ + head_ + kPage, pages_ + whole_pages(end - pages_ - kFixed));
  mprotect(pages_, head_, PROT_READ | PROT_WRITE);
  mprotect(fixed, pages_ + kWhole - fixed, PROT_READ | PROT_WRITE);
  std::memset(begin, 0xFF, size);
  std::memset(fixed, 0xFF, end - fixed);
}
Arena::~Arena() { munmap(pages_, kWhole); }

struct Sent {
  std::vector<char> value;
  const void* from;  // instead of a value: read when it arrives
  char* to;
  size_t size;
  Barrier* barrier;
  size_t whole = 0;  // zeros behind the bytes up to there
  bool last = false;  // of a thread's copies, whose arrival is an arrival at the barrier
};

struct Copy { uint32_t to, size; const void* from; uint32_t whole; };
struct Product { std::vector<float*> d; int lane, deep; bool bf16, add; const char* memory; uint64_t a, b; std::vector<uint32_t> fragment; bool turned_a, turned_b; };
struct Team;
struct WholeBlock : Block {
  Arena arena;
  size_t fixed = 0, dynamic = 0;
  std::map<const void*, char*> places;
  std::map<uint32_t, Barrier> barriers;
  std::vector<Warp> every;
  Team* team = nullptr;
  explicit WholeBlock(size_t size) : arena(size), dynamic(size) { begin = arena.begin; }
};
struct Team : Cluster { std::vector<WholeBlock*> blocks; };
struct Thread : Fiber {
  ucontext_t first;  // where it begins
  jmp_buf here;      // where it goes on
  bool begun = false, done = false, opened = false;
  std::vector<Copy> copies;
  std::vector<Product> products;
  std::deque<std::vector<Copy>> copy_groups;
  std::deque<std::vector<Product>> product_groups;
};

Fiber* now = nullptr;
uint64_t progress = 0;
static jmp_buf scheduler;
static Thread& thread() { return *static_cast<Thread*>(now); }
static WholeBlock& block() { return *static_cast<WholeBlock*>(now->block); }
static class Random {  // xorshift: fibers draw a number at almost every turn
 public:
  void seed(uint64_t number) { state_ = number * 0x9E3779B97F4A7C15 + 1; }
  uint32_t operator()() {
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return uint32_t(state_ >> 32);
  }
  uint32_t below(size_t n) { return uint32_t(uint64_t((*this)()) * n >> 32); }

 private:
  uint64_t state_ = 1;
} random;
static std::string failure;
struct Read { const void* from; std::string value; int block, thread; };
struct Launch {
  int grid, threads;
  size_t shared;
  int cluster;
  bool together;
  void (*kernel)(void**);
  void** arguments;
  std::string failure = {};
  bool early = false, opened = false;                    // while it runs ahead; what `ahead` said
  std::vector<Read> reads = {};                          // early ones
  int first = 0;                                         // of the blocks that run
  std::vector<std::unique_ptr<WholeBlock>> blocks = {};
  std::vector<std::unique_ptr<Team>> teams = {};
  std::vector<std::unique_ptr<Thread>> fibers = {};
  std::vector<Thread*> alive = {};
  std::vector<std::vector<Sent>> under_way = {};  // to another block, or from global memory
  char* stacks = nullptr;
  size_t room = 0;
  void begin(int at, int count);
  void schedule();
  ~Launch() { munmap(stacks, room); }
};
static Launch* running;

// Not swapcontext, which asks the kernel for the mask of signals each time.
void yield() {
  if (!_setjmp(thread().here)) _longjmp(scheduler, 1);
}
static __attribute__((noinline)) void resume(Thread* fiber) {
  now = fiber;
  if (_setjmp(scheduler)) return;
  if (fiber->begun) _longjmp(fiber->here, 1);
  fiber->begun = true;
  setcontext(&fiber->first);
}
static std::string where(int block, int thread) {
  return " (block " + std::to_string(block) + ", thread " + std::to_string(thread) + ")";
}
[[noreturn]] void fail(const char* what) {
  failure = what + where(now->block->index.x, now->tid.x);
  for (;;) yield();
}
void seed(unsigned number) { random.seed(number); }
bool maybe(unsigned of) { return random.below(of) == 0; }
void pause() {
  if (maybe(4)) yield();
}

static void entry() {
  running->kernel(running->arguments);
  thread().done = true;
  ++progress;
  yield();
}

static void complete(Barrier& barrier) {
  ++progress;
  if (barrier.pending == 0 && barrier.bytes == 0) ++barrier.phase, barrier.pending = barrier.count;
}
static void took(Barrier& barrier) {
  if (--barrier.pending < 0) failure = "mbarrier: more arrivals than expected";
}
static void deliver() {
  auto& all = running->under_way;
  std::swap(all[random.below(all.size())], all.back());
  const std::vector<Sent> together = std::move(all.back());
  all.pop_back();
  for (const Sent& sent : together) {
    if (sent.size) std::memcpy(sent.to, sent.from ? sent.from : sent.value.data(), sent.size);
    if (sent.whole) std::memset(sent.to + sent.size, 0, sent.whole - sent.size);
    if (!sent.whole) sent.barrier->bytes -= long(sent.size);
    if (sent.last) took(*sent.barrier);
    if (sent.last || !sent.whole) complete(*sent.barrier);
  }
}

// Until all fibers have ended; early: until none gets any further.
void Launch::schedule() {
  uint64_t seen = progress;
  const Warp* slow = alive.empty() ? nullptr : &alive[random.below(alive.size())]->warp();
  bool others = false;  // whether the rest got anywhere without the slow warp, which waits until they do not
  for (int idle = 0; !alive.empty();) {
    for (size_t i = alive.size(); i > 1; --i) std::swap(alive[i - 1], alive[random.below(i)]);
    for (Thread* fiber : alive) {
      if (maybe(4) || (others && &fiber->warp() == slow)) continue;
      resume(fiber);
      if (!failure.empty()) return;
      if (!under_way.empty() && maybe(8)) deliver();
    }
    alive.erase(std::remove_if(alive.begin(), alive.end(), [](Thread* f) { return f->done; }), alive.end());
    if (progress == seen && !under_way.empty()) deliver();
    others = progress != seen;
    idle = others ? 0 : idle + 1;
    seen = progress;
    if (early && idle > 8) return;
    if (idle > 100) failure = "the kernel hangs";
    if (!failure.empty()) return;
  }
  if (!under_way.empty()) failure = "bytes are under way when the kernel ends";
}
void Launch::begin(int at, int count) {
  first = at, blocks.clear(), teams.clear(), fibers.clear(), alive.clear();
  if (room < kStack * count * threads) {
    munmap(stacks, room), room = kStack * count * threads;
    stacks = (char*)mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  for (int i = 0; i < count; ++i) {
    auto block = std::make_unique<WholeBlock>(shared);
    if (i % cluster == 0) teams.push_back(std::make_unique<Team>()), teams.back()->id = (first + i) / cluster;
    block->rank = i % cluster, block->threads = threads, block->index.x = first + i;
    block->every.resize((threads + 31) / 32), block->warps = block->every.data();
    block->cluster = block->team = teams.back().get();
    block->team->threads += threads;
    block->team->blocks.push_back(block.get());
    for (int t = 0; t < threads; ++t) {
      auto fiber = std::make_unique<Thread>();
      fiber->block = block.get(), fiber->tid.x = t;
      getcontext(&fiber->first);
      fiber->first.uc_stack.ss_sp = stacks + fibers.size() * kStack, fiber->first.uc_stack.ss_size = kStack;
      makecontext(&fiber->first, entry, 0);
      alive.push_back(fiber.get());
      fibers.push_back(std::move(fiber));
    }
    blocks.push_back(std::move(block));
  }
}
void let_next_begin() { thread().opened = true; }
void wait_for_launch_before() {
  if (running->early) wait([] { return !running->early; });
}

// While it lives, an access between the arrays of a block's shared memory ends the launch instead of the process.
class Guard {
 public:
  Guard() {
    struct sigaction own = {};
    own.sa_sigaction = caught, own.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &own, &before);
  }
  Guard(const Guard&) = delete;
  ~Guard() { sigaction(SIGSEGV, &before, nullptr); }

 private:
  static void caught(int, siginfo_t* what, void*) {
    if (now)
      for (const WholeBlock* block : block().team->blocks)
        if (block->arena.has(what->si_addr)) fail("shared memory: an access out of bounds");
    sigaction(SIGSEGV, &before, nullptr);
  }
  inline static struct sigaction before = {};
};

Launch* prepare(int grid, int threads, size_t shared, int cluster, bool together, void (*kernel)(void**), void** arguments) {
  auto* own = new Launch{grid, threads, shared, cluster, together, kernel, arguments};
  if (shared > kShared) own->failure = "too much shared memory";
  return own;
}
// Of blocks that need not run together, those of some clusters.
bool ahead(Launch& own) {
  if (own.early || !own.failure.empty()) return own.opened;
  const Guard guard;
  const int clusters = own.grid / own.cluster, count = own.together ? clusters : std::min(clusters, 8);
  running = &own, failure = "", own.early = true;
  own.begin(int(random.below(clusters - count + 1)) * own.cluster, count * own.cluster);
  own.schedule();
  own.failure = failure;
  return own.opened = std::all_of(own.fibers.begin(), own.fibers.end(), [](auto& f) { return f->opened || f->done; });
}
const char* finish(Launch* launch) {
  const std::unique_ptr<Launch> own(launch);
  const Guard guard;
  running = launch, failure = own->failure;
  for (const Read& read : own->reads)
    if (failure.empty() && std::memcmp(read.from, read.value.data(), read.value.size()))
      failure = "reads before griddepcontrol.wait what a launch before it writes" + where(read.block, read.thread);
  const int ran = own->first, next = ran + int(own->blocks.size());
  own->early = false;
  if (failure.empty()) own->schedule();
  for (int at = 0, count = own->together ? own->grid : own->cluster; at < own->grid && failure.empty(); at += count) {
    if (at >= ran && at < next) continue;
    own->begin(at, count);
    own->schedule();
  }
  return failure.empty() ? nullptr : failure.c_str();
}
const char* launch(int grid, int threads, size_t shared, int cluster, bool together, void (*kernel)(void**), void** arguments) {
  return finish(prepare(grid, threads, shared, cluster, together, kernel, arguments));
}

void* dynamic() { return now->block->begin; }
void* fixed(const void* key, size_t size) {
  WholeBlock& own = block();
  auto& place = own.places[key];
  if (!place) {
    own.fixed += (size + 127) / 128 * 128;
    if (own.dynamic + own.fixed > kShared) fail("too much shared memory");
    place = own.arena.end - own.fixed;
  }
  return place;
}
static WholeBlock* owner(uint32_t address) {
  const uint32_t rank = address >> 24;
  return rank ? block().team->blocks.at(rank - 1) : &block();
}
char* at(uint32_t address, size_t size) {
  const size_t offset = address & 0xFFFFFF;
  const WholeBlock* block = owner(address);
  const size_t end = block->arena.end - block->arena.begin;
  if (offset + size > block->dynamic && (offset < end - block->fixed || offset + size > end)) fail("shared memory: out of bounds");
  if (address % std::min<size_t>(size, 16)) fail("shared memory: misaligned");
  return block->arena.begin + offset;
}
const char* aligned(const void* place, size_t size) {
  if ((uintptr_t)place % size) fail("global memory: misaligned");
  return (const char*)place;
}
static void read_ahead(const void* place, size_t size) {
  if (running->early && size)
    running->reads.push_back({place, {(const char*)place, size}, now->block->index.x, now->tid.x});
}
const char* loaded(const void* place, size_t size) {
  read_ahead(aligned(place, size), size);
  return (const char*)place;
}

void meet(Named& barrier, int count, bool stay) {
  const uint64_t generation = barrier.generation;
  if (++barrier.arrived == count) barrier.arrived = 0, ++barrier.generation, ++progress;
  if (stay) wait([&] { return barrier.generation != generation; });
}
Barrier& barrier(uint32_t address) { return owner(address)->barriers[address & 0xFFFFFF]; }
void arrive(uint32_t address, long bytes) {
  Barrier& b = barrier(address);
  b.bytes += bytes, --b.pending;
  if (b.pending < 0) fail("mbarrier: more arrivals than expected");
  complete(b);
}
bool passed(uint32_t address, uint32_t parity) { return (barrier(address).phase & 1) != (parity & 1); }

struct Sync { int nothing; };
void warp_sync(unsigned mask) {
  Sync own{};
  together(own, __builtin_popcount(mask), [](Sync**) {});
}

// Until at most n groups are left, `act` on the oldest.
template <class Item, class Act> void finish(std::deque<std::vector<Item>>& groups, size_t n, Act act) {
  for (; groups.size() > n; groups.pop_front())
    for (const Item& item : groups.front()) act(item);
}

void send(uint32_t to, std::initializer_list<uint32_t> words, uint32_t at_barrier) {
  const size_t size = 4 * words.size();
  const char* value = (const char*)words.begin();
  running->under_way.push_back({{{value, value + size}, nullptr, at(to, size), size, &barrier(at_barrier)}});
}
void bulk(uint32_t to, const void* from, uint32_t size, uint32_t at_barrier) {
  if (size % 16) fail("bulk copy: not of 16 bytes");
  at(to + size - 16, 16);
  read_ahead(from, size);
  running->under_way.push_back({{{}, aligned(from, 16), at(to, 16), size, &barrier(at_barrier)}});
}
void bulk_multicast(uint32_t to, const void* from, uint32_t size, uint32_t at_barrier, unsigned blocks) {
  for (uint32_t rank = 0; blocks >> rank; ++rank)
    if (blocks >> rank & 1) bulk(to | (rank + 1) << 24, from, size, at_barrier | (rank + 1) << 24);
}
void wait_copies(size_t n) {
  finish(thread().copy_groups, n, [](const Copy& copy) {
    std::memset(at(copy.to, copy.whole), 0, copy.whole);
    std::memcpy(at(copy.to, copy.whole), copy.from, copy.size);
  });
}
void copy(uint32_t to, const void* from, uint32_t size, uint32_t whole) {
  at(to, whole);
  read_ahead(from, size);
  thread().copies.push_back({to, size, size ? aligned(from, whole) : from, whole});
}
void arrive_with_copies(uint32_t at_barrier) {
  commit_copies();
  std::vector<Sent> all;
  finish(thread().copy_groups, 0, [&](const Copy& copy) {
    all.push_back({{}, copy.from, at(copy.to, copy.whole), copy.size, &barrier(at_barrier), copy.whole});
  });
  if (all.empty()) return arrive(at_barrier, 0);
  all.back().last = true;
  running->under_way.push_back(std::move(all));
}
void commit_copies() {
  thread().copy_groups.push_back(std::move(thread().copies)), thread().copies.clear();
  if (maybe(4)) wait_copies(0);
}

template <class Real> float real(uint32_t word, int half) {
  if constexpr (sizeof(Real) == 4) {
    float value;
    word &= 0xFFFFE000u;  // tf32
    return std::memcpy(&value, &word, 4), value;
  } else {
    Real value;
    const uint16_t bits = uint16_t(word >> (16 * half));
    return std::memcpy(&value, &bits, 2), float(value);
  }
}
template <class Real> void mma(Mma& own) {
  together(own, 32, [](Mma** lanes) {
    constexpr int per = sizeof(Real) == 4 ? 1 : 2;  // values per word
    constexpr int depth = 8 * per;
    float a[16][depth], b[depth][8];
    for (int l = 0; l < 32; ++l)
      for (int z = 0; z < 4; ++z)
        for (int e = 0; e < per; ++e) {
          const int row = l / 4 + 8 * (z % 2), k = (l % 4) * per + e + (z / 2) * 4 * per;
          a[row][k] = real<Real>(lanes[l]->a[z], e);
          if (z < 2) b[(l % 4) * per + e + z * 4 * per][l / 4] = real<Real>(lanes[l]->b[z], e);
        }
    for (int l = 0; l < 32; ++l)
      for (int z = 0; z < 4; ++z) {
        const int row = l / 4 + 8 * (z / 2), column = (l % 4) * 2 + z % 2;
        float sum = lanes[l]->c[z];
        for (int k = 0; k < depth; ++k) sum += a[row][k] * b[k][column];
        *lanes[l]->d[z] = sum;
      }
  });
}
void ldmatrix(Matrices& own) {
  together(own, 32, [](Matrices** lanes) {
    for (int m = 0; m < lanes[0]->count; ++m)
      for (int l = 0; l < 32; ++l) std::memcpy(lanes[l]->r[m], at(lanes[8 * m + l / 4]->address, 16) + 4 * (l % 4), 4);
  });
}

void ldmatrix_trans(Matrices& own) {  // each lane: a column's two rows
  together(own, 32, [](Matrices** lanes) {
    for (int m = 0; m < lanes[0]->count; ++m)
      for (int l = 0; l < 32; ++l)
        for (int e = 0; e < 2; ++e)
          std::memcpy((char*)lanes[l]->r[m] + 2 * e, at(lanes[8 * m + 2 * (l % 4) + e]->address, 16) + 2 * (l / 4), 2);
  });
}

void movmatrix_trans(Matrices& own) {  // 8 x 8: a lane has two of a row before, two of a column behind
  together(own, 32, [](Matrices** lanes) {
    uint32_t before[32];
    for (int l = 0; l < 32; ++l) before[l] = lanes[l]->address;
    for (int l = 0; l < 32; ++l)
      for (int e = 0; e < 2; ++e) {
        const int row = 2 * (l % 4) + e, column = l / 4;
        std::memcpy((char*)lanes[l]->r[0] + 2 * e, (char*)&before[4 * row + column / 2] + 2 * (column % 2), 2);
      }
  });
}

void stmatrix_trans(Matrices& own) {  // each lane has a column's two rows
  together(own, 32, [](Matrices** lanes) {
    for (int m = 0; m < lanes[0]->count; ++m)
      for (int l = 0; l < 32; ++l)
        for (int e = 0; e < 2; ++e)
          std::memcpy(at(lanes[8 * m + 2 * (l % 4) + e]->address, 16) + 2 * (l / 4), (char*)lanes[l]->r[m] + 2 * e, 2);
  });
}

// --- wgmma: operands are read at any time before the wait for it ends ---------------------------------------------------
// One thread's part of D += A B: 2 rows and a quarter of the columns. Bits 4 to 6 of an address ^= bits 7 to 9 where rows
// have 128 bytes; bits 4 and 5 ^= bits 7 and 8 where they have 64. Turned operands lie along rows or columns of D: 64 of
// them in 128 bytes, then the next k; squares of 64 are `lead` apart, 8 k `stride` (PTX ISA, "strides", MN-major).
static void multiply(const Product& p) {
  const int size = p.deep == 8 ? 4 : 2, count = int(p.d.size());
  const auto number = [&](uint32_t word) {
    half narrow;
    std::memcpy(&narrow, &word, 2);
    if (size == 2 && !p.bf16) return float(narrow);
    float value;
    word = size == 4 ? word & 0xFFFFE000u : word << 16;
    return std::memcpy(&value, &word, 4), value;
  };
  const auto load = [&](uint64_t descriptor, int row, float* into, bool turned) {
    const int pitch = descriptor >> 62 == 1 ? 128 : 64;
    const uint32_t lead = 16 * (descriptor >> 16 & 0x3FFF), stride = 16 * (descriptor >> 32 & 0x3FFF);
    for (int k = 0; k < p.deep; ++k) {
      uint32_t from = uint32_t(descriptor & 0x3FFF) << 4, word = 0;
      from += turned ? row / 64 * lead + row % 64 * size + k / 8 * stride + k % 8 * pitch
                     : row / 8 * stride + row % 8 * pitch + k * size;
      std::memcpy(&word, p.memory + (from ^ (from >> 7 & (pitch == 128 ? 7 : 3)) << 4), size);
      into[k] = number(word);
    }
  };
  float a[2][16], b[16];
  const int row = p.lane / 32 * 16 + p.lane % 32 / 4, per = 4 / size;
  for (int high = 0; high < 2; ++high) {
    if (p.fragment.empty()) load(p.a, row + 8 * high, a[high], p.turned_a);
    else
      for (int k = 0; k < p.deep; ++k)
        a[high][k] = number(p.fragment[k % (4 * per) / per * 4 + k / (4 * per) * 2 + high] >> 16 * (k % per));
  }
  for (int i = 0; i < count; i += 4)
    for (int odd = 0; odd < 2; ++odd) {
      load(p.b, i * 2 + p.lane % 4 * 2 + odd, b, p.turned_b);
      for (int high = 0; high < 2; ++high) {
        float sum = p.add ? *p.d[i + 2 * high + odd] : 0;
        for (int k = 0; k < p.deep; ++k) sum += a[high][k] * b[k];
        *p.d[i + 2 * high + odd] = sum;
      }
    }
}
uint64_t descriptor(uint32_t address, uint64_t lead, uint64_t stride, int swizzle) {
  if (swizzle != 3 && swizzle != 2) fail("wgmma: only swizzles of 128 and 64 bytes are emulated");
  return (address & 0x3FFFF) >> 4 | lead << 16 | stride << 32 | (swizzle == 3 ? 1ull : 2ull) << 62;
}
static void multiply_later(std::initializer_list<float*> d, const char* kind, uint64_t a, uint64_t b, bool add, std::vector<uint32_t> fragment,
                           bool turned_a, bool turned_b) {
  if (a >> 62 == 0 || a >> 62 == 3 || b >> 62 == 0 || b >> 62 == 3) fail("wgmma: a descriptor of another swizzle");
  const bool wide = !std::strcmp(kind, "tf32");
  const char* memory = now->block->begin;
  thread().products.push_back(
      {d, now->tid.x % 128, wide ? 8 : 16, !std::strcmp(kind, "bf16"), add, memory, a, b, std::move(fragment), turned_a, turned_b});
}
void wgmma(std::initializer_list<float*> d, const char* kind, uint64_t a, uint64_t b, bool add, bool turned_a, bool turned_b) {
  multiply_later(d, kind, a, b, add, {}, turned_a, turned_b);
}
struct Fragment { const uint32_t* a; std::vector<uint32_t> all; };
void wgmma_registers(std::initializer_list<float*> d, const char* kind, std::initializer_list<uint32_t> a, uint64_t b, bool add) {
  Fragment own{a.begin(), std::vector<uint32_t>(16)};
  together(own, 32, [](Fragment** lanes) {
    for (int l = 0; l < 32; ++l)
      for (int z = 0; z < 16; ++z) lanes[l]->all[z] = lanes[l / 4 * 4 + z / 4]->a[z % 4];
  });
  multiply_later(d, kind, b, b, add, std::move(own.all), false, false);
}
void wait_products(size_t n) {
  finish(thread().product_groups, n, multiply);
  warp_sync();
}
void commit_products() {
  thread().product_groups.push_back(std::move(thread().products)), thread().products.clear();
  if (maybe(2)) finish(thread().product_groups, 0, multiply);
  warp_sync();
}
template void mma<float>(Mma&);
template void mma<half>(Mma&);
template void mma<nv_bfloat16>(Mma&);
}  // namespace emu

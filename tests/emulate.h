// A GPU on the CPU: threads, blocks, clusters, barriers, shared memory, asynchronous copies and products of matrices.
// `emulate_ptx.h` has what generated CUDA text calls, in terms of this; `emulator.py` prepares that text.
//
// Every CUDA thread is a fiber; a fiber runs until it has to wait for others (barriers, votes of a warp, mbarriers,
// polling) and the order of fibers is random. Blocks of a cluster, or of a whole grid that must be resident, run
// together; other blocks one after the other. Shared memory starts as NaN. What is asynchronous on a GPU happens at a
// random time between its start and the wait for it, so that a missing wait shows as a wrong result. When no fiber can
// go on, the kernel hangs: that is an error. One warp is slow: it goes on only when the others cannot. What this cannot
// show: races that need instructions of one fiber to be reordered, and speed.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <csignal>
#include <sys/mman.h>
#include <vector>

using half = _Float16;
struct nv_bfloat16 {
  uint16_t bits;
  nv_bfloat16() = default;
  explicit nv_bfloat16(float x) {
    uint32_t word;
    std::memcpy(&word, &x, 4);
    bits = x != x ? 0x7FFF : uint16_t((word + 0x7FFF + (word >> 16 & 1)) >> 16);
  }
  operator float() const {
    const uint32_t word = uint32_t(bits) << 16;
    float x;
    return std::memcpy(&x, &word, 4), x;
  }
};

namespace emu {
constexpr size_t kStack = 256 << 10, kShared = 240 << 10, kPage = 4096;

// A block's shared memory: dynamic memory of `size` bytes from `begin` on, arrays of fixed size before `end`. Pages
// between the two refuse every access; dynamic memory ends where a page ends.
class Arena {
 public:
  explicit Arena(size_t size) : head_(whole_pages(size)) {
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
  Arena(const Arena&) = delete;
  ~Arena() { munmap(pages_, kWhole); }
  bool has(const void* place) const { return place >= pages_ && place < pages_ + kWhole; }
  char *begin, *end;

 private:
  static constexpr size_t kEnd = 256 << 10, kFixed = 48 << 10, kWhole = kEnd + kPage;
  static size_t whole_pages(size_t size) { return (size + kPage - 1) / kPage * kPage; }
  size_t head_;
  char* pages_;
};

struct Index { int x = 0, y = 0, z = 0; };
struct Warp {
  int arrived = 0;
  const void* operation = nullptr;
  uint64_t generation = 0;
  void* slots[32];
};
struct Copy { uint32_t to, size; const void* from; uint32_t whole; };
struct Product { std::vector<float*> d; int lane, deep; bool bf16, add; const char* memory; uint64_t a, b; std::vector<uint32_t> fragment; bool turned_a, turned_b; };
struct Named { int arrived = 0; uint64_t generation = 0; };
struct Barrier { long pending = 0, count = 0, bytes = 0; uint64_t phase = 0; };
struct Block {
  int rank = 0, threads = 0;
  Index index;
  Arena arena;
  size_t fixed = 0, dynamic = 0;
  std::map<const void*, char*> places;
  Named named[16];
  std::map<uint32_t, Barrier> barriers;
  std::vector<Warp> warps;
  struct Cluster* cluster = nullptr;
  explicit Block(size_t size) : arena(size), dynamic(size) {}
};
struct Cluster {
  int id = 0;
  std::vector<Block*> blocks;
  Named meeting;
};
struct Fiber {
  ucontext_t context;
  char* stack = nullptr;
  Block* block = nullptr;
  Index tid;
  bool done = false;
  uint64_t meeting = 0;
  std::vector<Copy> copies;
  std::vector<Product> products;
  std::deque<std::vector<Copy>> copy_groups;
  std::deque<std::vector<Product>> product_groups;
  int lane() const { return tid.x % 32; }
  Warp& warp() const { return block->warps[tid.x / 32]; }
};

struct Sent {
  std::vector<char> value;
  const void* from;  // instead of a value: read when it arrives
  char* to;
  size_t size;
  Barrier* barrier;
};

inline Fiber* now = nullptr;
inline ucontext_t scheduler;
inline uint64_t progress = 0;
inline std::function<void()> body;
inline std::mt19937 random{1};
inline std::vector<Sent> under_way;  // to another block, or from global memory
inline std::string failure;

inline void yield() { swapcontext(&now->context, &scheduler); }
// Ends the launch: no fiber goes on.
[[noreturn]] inline void fail(const char* what) {
  failure = std::string(what) + " (block " + std::to_string(now->block->index.x) + ", thread " + std::to_string(now->tid.x) + ")";
  for (;;) yield();
}
inline bool maybe(unsigned of) { return random() % of == 0; }
// Between the instructions of a warp others may go on.
inline void pause() {
  if (maybe(4)) yield();
}
template <class Ready> void wait(Ready ready) {
  while (!ready()) yield();
  ++progress;
}
inline void entry() {
  body();
  now->done = true;
  ++progress;
  yield();
}

inline void complete(Barrier& barrier) {
  ++progress;
  if (barrier.pending == 0 && barrier.bytes == 0) ++barrier.phase, barrier.pending = barrier.count;
}
inline void deliver() {
  std::swap(under_way[random() % under_way.size()], under_way.back());
  const Sent sent = std::move(under_way.back());
  under_way.pop_back();
  std::memcpy(sent.to, sent.from ? sent.from : sent.value.data(), sent.size);
  sent.barrier->bytes -= long(sent.size);
  complete(*sent.barrier);
}

inline void schedule(std::vector<Fiber*> alive) {
  uint64_t seen = progress;
  const Warp* slow = &alive[random() % alive.size()]->warp();
  bool others = false;  // whether the rest got anywhere without the slow warp, which waits until they do not
  for (int idle = 0; !alive.empty();) {
    std::shuffle(alive.begin(), alive.end(), random);
    for (Fiber* fiber : alive) {
      if (maybe(4) || (others && &fiber->warp() == slow)) continue;
      now = fiber;
      swapcontext(&scheduler, &fiber->context);
      if (!failure.empty()) return;
      if (!under_way.empty() && maybe(8)) deliver();
    }
    alive.erase(std::remove_if(alive.begin(), alive.end(), [](Fiber* f) { return f->done; }), alive.end());
    if (progress == seen && !under_way.empty()) deliver();
    others = progress != seen;
    idle = others ? 0 : idle + 1;
    seen = progress;
    if (idle > 100) failure = "the kernel hangs";
    if (!failure.empty()) return;
  }
  if (!under_way.empty()) failure = "bytes are under way when the kernel ends";
}
inline void run(std::vector<Block*>& blocks) {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Fiber*> alive;
  for (Block* block : blocks)
    for (int t = 0; t < block->threads; ++t) {
      auto fiber = std::make_unique<Fiber>();
      fiber->block = block, fiber->tid.x = t;
      fiber->stack = (char*)mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      getcontext(&fiber->context);
      fiber->context.uc_stack.ss_sp = fiber->stack, fiber->context.uc_stack.ss_size = kStack;
      makecontext(&fiber->context, entry, 0);
      alive.push_back(fiber.get());
      fibers.push_back(std::move(fiber));
    }
  schedule(alive);
  for (auto& fiber : fibers) munmap(fiber->stack, kStack);
  under_way.clear();
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
      for (const Block* block : now->block->cluster->blocks)
        if (block->arena.has(what->si_addr)) fail("shared memory: an access out of bounds");
    sigaction(SIGSEGV, &before, nullptr);
  }
  inline static struct sigaction before = {};
};

// grid blocks of `threads`, in clusters; together: all at once. What went wrong, or null.
inline const char* launch(int grid, int threads, size_t shared, int cluster, bool together, std::function<void()> kernel) {
  const Guard guard;
  body = std::move(kernel);
  failure = shared > kShared ? "too much shared memory" : "";
  for (int first = 0; first < grid && failure.empty();) {
    const int count = together ? grid : cluster;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<std::unique_ptr<Cluster>> clusters;
    std::vector<Block*> all;
    for (int i = 0; i < count; ++i) {
      auto block = std::make_unique<Block>(shared);
      if (i % cluster == 0) clusters.push_back(std::make_unique<Cluster>()), clusters.back()->id = (first + i) / cluster;
      block->rank = i % cluster, block->threads = threads, block->index.x = first + i;
      block->warps.resize((threads + 31) / 32);
      block->cluster = clusters.back().get();
      clusters.back()->blocks.push_back(block.get());
      all.push_back(block.get());
      blocks.push_back(std::move(block));
    }
    run(all);
    first += count;
  }
  return failure.empty() ? nullptr : failure.c_str();
}

// --- shared memory: an address is the offset in a block's arena, with the block's rank + 1 above for another block's ----
inline void* dynamic() { return now->block->arena.begin; }
inline void* fixed(const void* key, size_t size) {
  Block* block = now->block;
  auto& place = block->places[key];
  if (!place) {
    block->fixed += (size + 127) / 128 * 128;
    if (block->dynamic + block->fixed > kShared) fail("too much shared memory");
    place = block->arena.end - block->fixed;
  }
  return place;
}
inline Block* owner(uint32_t address) {
  const uint32_t rank = address >> 24;
  return rank ? now->block->cluster->blocks.at(rank - 1) : now->block;
}
inline char* at(uint32_t address, size_t size) {
  const size_t offset = address & 0xFFFFFF;
  const Block* block = owner(address);
  const size_t end = block->arena.end - block->arena.begin;
  if (offset + size > block->dynamic && (offset < end - block->fixed || offset + size > end)) fail("shared memory: out of bounds");
  if (address % std::min<size_t>(size, 16)) fail("shared memory: misaligned");
  return block->arena.begin + offset;
}
inline const char* aligned(const void* place, size_t size) {
  if ((uintptr_t)place % size) fail("global memory: misaligned");
  return (const char*)place;
}
template <class T, class... Rest> void get(const char* from, T& first, Rest&... rest) {
  std::memcpy(&first, from, sizeof(T));
  if constexpr (sizeof...(rest) > 0) get(from + sizeof(T), rest...);
}
template <class T, class... Rest> void put(char* to, T first, Rest... rest) {
  std::memcpy(to, &first, sizeof(T));
  if constexpr (sizeof...(rest) > 0) put(to + sizeof(T), rest...);
}

// --- barriers ----------------------------------------------------------------------------------------------------------
inline void meet(Named& barrier, int count, bool stay) {
  const uint64_t generation = barrier.generation;
  if (++barrier.arrived == count) barrier.arrived = 0, ++barrier.generation, ++progress;
  if (stay) wait([&] { return barrier.generation != generation; });
}
inline Barrier& barrier(uint32_t address) { return owner(address)->barriers[address & 0xFFFFFF]; }
inline void arrive(uint32_t address, long bytes) {
  Barrier& b = barrier(address);
  b.bytes += bytes, --b.pending;
  if (b.pending < 0) fail("mbarrier: more arrivals than expected");
  complete(b);
}
inline bool passed(uint32_t address, uint32_t parity) { return (barrier(address).phase & 1) != (parity & 1); }

// --- a warp acts together ----------------------------------------------------------------------------------------------
template <class Args, class Act> void together(Args& own, int count, Act act) {
  static const char operation = 0;  // one address per kind of operation
  Warp& warp = now->warp();
  if (warp.arrived == 0) warp.operation = &operation;
  if (warp.operation != &operation) fail("the threads of a warp are at different operations");
  const uint64_t generation = warp.generation;
  warp.slots[now->lane()] = &own;
  if (++warp.arrived == count) {
    act(reinterpret_cast<Args**>(warp.slots));
    warp.arrived = 0, ++warp.generation, ++progress;
  } else {
    wait([&] { return warp.generation != generation; });
  }
}
template <class T> struct Shuffle { T value, result; int from; };
template <class T> T shuffle(unsigned mask, T value, int from) {
  Shuffle<T> own{value, value, from};
  together(own, __builtin_popcount(mask), [mask](Shuffle<T>** lanes) {
    for (int i = 0; i < 32; ++i)
      if (mask >> i & 1) lanes[i]->result = mask >> (lanes[i]->from & 31) & 1 ? lanes[lanes[i]->from & 31]->value : lanes[i]->value;
  });
  return own.result;
}
struct Sync { int nothing; };
inline void warp_sync(unsigned mask = 0xFFFFFFFF) {
  Sync own{};
  together(own, __builtin_popcount(mask), [](Sync**) {});
}

// --- asynchronous copies: bytes arrive at any time before the wait for them ends ----------------------------------------
inline void send(uint32_t to, std::initializer_list<uint32_t> words, uint32_t at_barrier) {
  const size_t size = 4 * words.size();
  const char* value = (const char*)words.begin();
  under_way.push_back({{value, value + size}, nullptr, at(to, size), size, &barrier(at_barrier)});
}
inline void bulk(uint32_t to, const void* from, uint32_t size, uint32_t at_barrier) {
  if (size % 16) fail("bulk copy: not of 16 bytes");
  at(to + size - 16, 16);
  under_way.push_back({{}, aligned(from, 16), at(to, 16), size, &barrier(at_barrier)});
}
inline void bulk_multicast(uint32_t to, const void* from, uint32_t size, uint32_t at_barrier, unsigned blocks) {
  for (uint32_t rank = 0; blocks >> rank; ++rank)
    if (blocks >> rank & 1) bulk(to | (rank + 1) << 24, from, size, at_barrier | (rank + 1) << 24);
}
// Until at most n groups are left, `act` on the oldest.
template <class Item, class Act> void finish(std::deque<std::vector<Item>>& groups, size_t n, Act act) {
  for (; groups.size() > n; groups.pop_front())
    for (const Item& item : groups.front()) act(item);
}
inline void wait_copies(size_t n) {
  finish(now->copy_groups, n, [](const Copy& copy) {
    std::memset(at(copy.to, copy.whole), 0, copy.whole);
    std::memcpy(at(copy.to, copy.whole), copy.from, copy.size);
  });
}
inline void copy(uint32_t to, const void* from, uint32_t size, uint32_t whole = 16) {
  at(to, whole);
  now->copies.push_back({to, size, size ? aligned(from, whole) : from, whole});
}
inline void commit_copies() {
  now->copy_groups.push_back(std::move(now->copies)), now->copies.clear();
  if (maybe(4)) wait_copies(0);
}
}  // namespace emu

// Products of matrices of a warp and of a warpgroup, and ldmatrix, for emulate_ptx.h.
#pragma once
#include "emulate.h"

namespace emu {
// --- mma.sync: a warp acts together -------------------------------------------------------------------------------------
struct Mma { float* d[4]; uint32_t a[4], b[2]; float c[4]; };
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
struct Matrices { uint32_t* r[4]; uint32_t address; int count; };
inline void ldmatrix(Matrices& own) {
  together(own, 32, [](Matrices** lanes) {
    for (int m = 0; m < lanes[0]->count; ++m)
      for (int l = 0; l < 32; ++l) std::memcpy(lanes[l]->r[m], at(lanes[8 * m + l / 4]->address, 16) + 4 * (l % 4), 4);
  });
}

inline void ldmatrix_trans(Matrices& own) {  // each lane: a column's two rows
  together(own, 32, [](Matrices** lanes) {
    for (int m = 0; m < lanes[0]->count; ++m)
      for (int l = 0; l < 32; ++l)
        for (int e = 0; e < 2; ++e)
          std::memcpy((char*)lanes[l]->r[m] + 2 * e, at(lanes[8 * m + 2 * (l % 4) + e]->address, 16) + 2 * (l / 4), 2);
  });
}

inline void movmatrix_trans(Matrices& own) {  // 8 x 8: a lane has two of a row before, two of a column behind
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

inline void stmatrix_trans(Matrices& own) {  // each lane has a column's two rows
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
__attribute__((optimize("O2"))) inline void multiply(const Product& p) {
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
inline uint64_t descriptor(uint32_t address, uint64_t lead, uint64_t stride, int swizzle) {
  if (swizzle != 3 && swizzle != 2) fail("wgmma: only swizzles of 128 and 64 bytes are emulated");
  return (address & 0x3FFFF) >> 4 | lead << 16 | stride << 32 | (swizzle == 3 ? 1ull : 2ull) << 62;
}
inline void wgmma(std::vector<float*> d, const char* kind, uint64_t a, uint64_t b, bool add, std::vector<uint32_t> fragment = {},
                  bool turned_a = false, bool turned_b = false) {
  if (a >> 62 == 0 || a >> 62 == 3 || b >> 62 == 0 || b >> 62 == 3) fail("wgmma: a descriptor of another swizzle");
  const bool wide = !std::strcmp(kind, "tf32");
  const char* memory = now->block->arena.begin;
  now->products.push_back(
      {std::move(d), now->tid.x % 128, wide ? 8 : 16, !std::strcmp(kind, "bf16"), add, memory, a, b, std::move(fragment), turned_a, turned_b});
}
// A from registers: a row's numbers are in four lanes.
struct Fragment { uint32_t a[4]; std::vector<uint32_t> all; };
inline void wgmma_registers(std::vector<float*> d, const char* kind, std::vector<uint32_t> a, uint64_t b, bool add) {
  Fragment own{{a[0], a[1], a[2], a[3]}, std::vector<uint32_t>(16)};
  together(own, 32, [](Fragment** lanes) {
    for (int l = 0; l < 32; ++l)
      for (int z = 0; z < 16; ++z) lanes[l]->all[z] = lanes[l / 4 * 4 + z / 4]->a[z % 4];
  });
  wgmma(std::move(d), kind, b, b, add, std::move(own.all));
}
inline void wait_products(size_t n) {
  finish(now->product_groups, n, multiply);
  warp_sync();
}
inline void commit_products() {
  now->product_groups.push_back(std::move(now->products)), now->products.clear();
  if (maybe(2)) finish(now->product_groups, 0, multiply);
  warp_sync();
}
}  // namespace emu

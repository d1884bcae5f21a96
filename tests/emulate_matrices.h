// Products of matrices of a warp and of a warpgroup, and ldmatrix, for emulate_ptx.h.
#pragma once
#include "emulate.h"

namespace emu {
// --- mma.sync: a warp acts together -------------------------------------------------------------------------------------
struct Mma { float* d[4]; uint32_t a[4], b[2]; float c[4]; };
template <class Real> void mma(Mma& own);
struct Matrices { uint32_t* r[4]; uint32_t address; int count; };
void ldmatrix(Matrices& own);
void ldmatrix_trans(Matrices& own);
void movmatrix_trans(Matrices& own);
void stmatrix_trans(Matrices& own);

// --- wgmma: operands are read at any time before the wait for it ends ---------------------------------------------------
uint64_t descriptor(uint32_t address, uint64_t lead, uint64_t stride, int swizzle);
void wgmma(std::initializer_list<float*> d, const char* kind, uint64_t a, uint64_t b, bool add,
           bool turned_a = false, bool turned_b = false);
// A from registers: a row's numbers are in four lanes.
void wgmma_registers(std::initializer_list<float*> d, const char* kind, std::initializer_list<uint32_t> a, uint64_t b, bool add);
void commit_products();
void wait_products(size_t n);  // until at most n groups are under way
}  // namespace emu

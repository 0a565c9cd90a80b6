// Kernels of registers, shared memory, shuffles and atomics, compiled to `../sm_90a_nvcc/`.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
constexpr unsigned kAll = 0xffffffffu;

KERNEL(128) saxpy(int n, float a, const float* x, float* y) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = a * x[i] + y[i];
}

KERNEL(256) block_sum(int n, const float* x, float* out) {
  extern __shared__ float s[];
  int t = threadIdx.x;
  float v = 0;
  for (int i = blockIdx.x * 256 + t; i < n; i += gridDim.x * 256) v += x[i];
  s[t] = v;
  __syncthreads();
  for (int k = 128; k >= 32; k >>= 1) {
    if (t < k) s[t] += s[t + k];
    __syncthreads();
  }
  if (t < 32) {
    v = s[t];
    for (int k = 16; k; k >>= 1) v += __shfl_down_sync(kAll, v, k);
    if (t == 0) atomicAdd(out, v);
  }
}

KERNEL(256) transpose(int m, int n, const float* a, float* b) {
  __shared__ float tile[32][33];
  int column = threadIdx.x % 32, row = threadIdx.x / 32;
  int x = blockIdx.x * 32 + column, y = blockIdx.y * 32 + row;
  for (int k = 0; k < 32; k += 8)
    if (x < n && y + k < m) tile[row + k][column] = a[(y + k) * n + x];
  __syncthreads();
  x = blockIdx.y * 32 + column, y = blockIdx.x * 32 + row;
  for (int k = 0; k < 32; k += 8)
    if (x < m && y + k < n) b[(y + k) * m + x] = tile[column][row + k];
}

// Loops whose length differs from thread to thread.
KERNEL(128) collatz(int n, const unsigned* x, int* steps, unsigned* peak) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  unsigned v = x[i], p = v;
  int s = 0;
  while (v != 1) {
    if (v & 1) v = 3 * v + 1; else v >>= 1;
    if (v > p) p = v;
    ++s;
    if (s > 500) break;
  }
  steps[i] = s;
  peak[i] = p;
}

// A jump table, and loops with continue and break under divergence.
KERNEL(128) switches(int n, const int* x, int* y) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  int v = x[i], r;
  switch (v & 7) {
    case 0: r = v + 1; break;
    case 1: r = v * v; break;
    case 2: r = v >> 3; break;
    case 3: r = -v; break;
    case 4: r = v ^ 0x55; break;
    case 5: r = v % 13; break;
    case 6: r = v / 7; break;
    default: r = ~v;
  }
  if (r > 0) {
    for (int k = 0; k < (v & 3); ++k) {
      if (r & 1) { r = r * 3 + k; continue; }
      if (r > 100000) break;
      r += k * 7;
    }
  } else {
    r = r * 2 - 1;
  }
  y[i] = r;
}

KERNEL(128) votes(const int* x, unsigned* out) {
  int t = threadIdx.x, v = x[t];
  unsigned positive = __ballot_sync(kAll, v > 0);
  out[t] = positive;
  out[128 + t] = __match_any_sync(kAll, v & 7);
  out[256 + t] = __any_sync(kAll, v == 99) * 2 + __all_sync(kAll, v < 100);
  out[384 + t] = __reduce_add_sync(kAll, v);
  out[512 + t] = __reduce_or_sync(kAll, (unsigned)v);
  int rank = __popc(positive & ((1u << (t & 31)) - 1));
  out[640 + t] = rank + 100 * __shfl_up_sync(kAll, v, 3) + __shfl_sync(kAll, v, v & 31, 8);
}

// Groups of eight lanes with member masks of their own.
KERNEL(256) groups(int n, const int* x, int* y) {
  int i = blockIdx.x * 256 + threadIdx.x, v = i < n ? x[i] : 0;
  unsigned mask = 0xffu << (threadIdx.x & 24);
  for (int k = 4; k; k /= 2) v += __shfl_xor_sync(mask, v, k, 8);
  int any = __any_sync(mask, v > 10);
  unsigned odd = __ballot_sync(mask, (threadIdx.x & 3) == 1) >> (threadIdx.x & 24);
  __syncwarp(mask);
  if (i < n) y[i] = v * 4 + any * 2 + ((odd & 0xff) == 0x22);
}

KERNEL(128) bits(const unsigned* x, const unsigned* y, unsigned long long* o) {
  int t = blockIdx.x * 128 + threadIdx.x;
  unsigned a = x[t], b = y[t];
  unsigned long long w = ((unsigned long long)a << 32) | b, h = 0;
  auto mix = [&](unsigned long long v) { h = h * 0x9E3779B97F4A7C15ull + v; };
  mix(__popc(a)); mix(__clz(a)); mix(__brev(a)); mix(__ffs(b));
  mix(__popcll(w)); mix(__clzll(w)); mix(__brevll(w)); mix(__ffsll(w));
  mix(__byte_perm(a, b, b)); mix(__funnelshift_l(a, b, a & 63));
  mix(__funnelshift_r(a, b, b & 63)); mix(__funnelshift_lc(a, b, a & 63));
  mix(__umulhi(a, b)); mix((unsigned)__mulhi((int)a, (int)b)); mix(__umul64hi(w, w * 3));
  mix(__usad(a, b, 5)); mix(__dp4a((int)a, (int)b, 7)); mix(__vaddus4(a, b));
  mix(a / (b | 1)); mix((int)a % (int)(b | 1)); mix(w / (b | 1));
  mix((long long)w % (long long)(a | 1)); mix(a > b ? a - b : b - a);
  mix((unsigned char)a + (signed char)b); mix((short)a * (unsigned short)b);
  mix(min((int)a, (int)b)); mix(max((long long)w, (long long)a));
  mix(a << (b & 31)); mix((int)a >> (b & 31)); mix(w >> (a & 63));
  mix(__rhadd((int)a, (int)b)); mix(__mul24((int)a, (int)b));
  o[t] = h;
}

KERNEL(128) maths(int n, const float* x, float* y, double* z) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  double d = v;
  y[i] = expf(v);
  y[n + i] = logf(fabsf(v) + 1e-3f);
  y[2 * n + i] = tanhf(v);
  y[3 * n + i] = v / (1 + v * v);
  y[4 * n + i] = rsqrtf(fabsf(v) + 1);
  y[5 * n + i] = cbrtf(v);
  y[6 * n + i] = fmodf(v, 0.7f);
  y[7 * n + i] = rintf(v * 10) + truncf(v * 3) + roundf(v * 5);
  y[8 * n + i] = __fdividef(v, 3.f) + __expf(v) + __saturatef(v);
  y[9 * n + i] = powf(fabsf(v), 1.5f);
  y[10 * n + i] = fmaf(v, v, -1.f) + copysignf(2.f, v) + fminf(v, 0.f) + hypotf(v, 1.f);
  y[11 * n + i] = __half2float(__hadd(__float2half(v), __float2half(0.5f))) +
                  __bfloat162float(__float2bfloat16(v)) + (float)(int)(v * 100);
  z[i] = exp(d) + sqrt(d * d + 1) / (d * d + 2);
  z[n + i] = floor(d * 7) + (double)(long long)(d * 1e6) + (double)(int)d;
}

// float32 arithmetic in every rounding mode.
KERNEL(128) rounding(int n, const float* x, const float* y, float* z) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  float a = x[i], b = y[i];
  z[i] = __fadd_rz(a, b); z[n + i] = __fadd_rd(a, b); z[2 * n + i] = __fadd_ru(a, b);
  z[3 * n + i] = __fmul_rz(a, b); z[4 * n + i] = __fmul_rd(a, b); z[5 * n + i] = __fmul_ru(a, b);
  z[6 * n + i] = __fdiv_rz(a, b); z[7 * n + i] = __fdiv_rd(a, b); z[8 * n + i] = __fdiv_ru(a, b);
  z[9 * n + i] = __fsqrt_rd(fabsf(a)); z[10 * n + i] = __fsqrt_ru(fabsf(a));
}

KERNEL(128) halves(int n, const __half2* x, const __half2* y, __half2* z, const __nv_bfloat162* b,
                   __nv_bfloat162* c) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  __half2 v = __hfma2(x[i], y[i], __float2half2_rn(0.25f));
  v = __hmax2(v, __hsub2(x[i], y[i]));
  z[i] = __hmul2(v, __hneg2(x[i]));
  __nv_bfloat162 w = __hfma2(b[i], b[i], b[i]);
  c[i] = __hmin2(w, __hadd2(b[i], w));
}

KERNEL(256) byte_histogram(int n, const unsigned char* x, int* bins) {
  __shared__ int s[256];
  s[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) atomicAdd(&s[x[i]], 1);
  __syncthreads();
  if (s[threadIdx.x]) atomicAdd(&bins[threadIdx.x], s[threadIdx.x]);
}

KERNEL(128) atomics(const int* x, int* o, unsigned long long* p, float* f) {
  int t = threadIdx.x, v = x[t];
  atomicMax(&o[0], v); atomicMin(&o[1], v); atomicXor(&o[2], v); atomicOr(&o[3], v);
  atomicAnd(&o[4], v); atomicInc((unsigned*)&o[5], 99); atomicDec((unsigned*)&o[6], 50);
  int old = *(volatile int*)&o[7], assumed;
  do {
    assumed = old;
    old = atomicCAS(&o[7], assumed, assumed + v);
  } while (old != assumed);
  atomicAdd(p, (unsigned long long)v * v);
  atomicExch(&f[1 + t], (float)v);
  atomicAdd(&f[0], (float)v);
}

// The last CTA to finish adds what the others have left.
KERNEL(128) ticket_sum(int n, const float* x, float* part, unsigned* ticket, float* out) {
  __shared__ float s[4];
  __shared__ bool last;
  int t = threadIdx.x;
  float v = 0;
  for (int i = blockIdx.x * 128 + t; i < n; i += gridDim.x * 128) v += x[i];
  for (int k = 16; k; k /= 2) v += __shfl_xor_sync(kAll, v, k);
  if ((t & 31) == 0) s[t / 32] = v;
  __syncthreads();
  if (t == 0) {
    part[blockIdx.x] = s[0] + s[1] + s[2] + s[3];
    __threadfence();
    last = atomicInc(ticket, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  v = 0;
  for (int i = t; i < gridDim.x; i += 128) v += ((volatile float*)part)[i];
  for (int k = 16; k; k /= 2) v += __shfl_xor_sync(kAll, v, k);
  if ((t & 31) == 0) s[t / 32] = v;
  __syncthreads();
  if (t == 0) *out = s[0] + s[1] + s[2] + s[3];
}

// An array that is indexed at run time lives in local memory.
KERNEL(128) local_array(int n, const int* x, int* y) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  int a[16];
  for (int k = 0; k < 16; ++k) a[k] = x[i] * k + k * k;
  int s = 0, j = x[i] & 15;
  for (int k = 0; k < 8; ++k) {
    s += a[j];
    a[j] ^= s;
    j = (j * 5 + 3) & 15;
  }
  y[i] = s + a[x[i] & 7];
}

__constant__ float kCoefficients[4] = {1.f, -0.5f, 0.25f, 2.f};
__device__ int counter = 3;

KERNEL(128) variables(const float* x, float* y) {
  int t = threadIdx.x;
  float v = x[t];
  y[t] = ((kCoefficients[3] * v + kCoefficients[2]) * v + kCoefficients[1]) * v +
         kCoefficients[t & 3];
  if (t == 0) y[128] = atomicAdd(&counter, 4);
  if (t == 0) y[129] = counter;
}

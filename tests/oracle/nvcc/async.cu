// Kernels of asynchronous copies and mbarriers, compiled to `../sm_90a_nvcc/`.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)

__device__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void copy_async(void* to, const void* from, bool keep) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(keep ? 16 : 0) : "memory");
}

__device__ void init(unsigned long long* bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count)
               : "memory");
}

__device__ void wait(unsigned long long* bar, int parity) {
  int done = 0;
  while (!done)
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.b32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(shared_address(bar)), "r"(parity)
                 : "memory");
}

__device__ void fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Three stages; the last copies of the ring are empty ones.
KERNEL(128) copy_ring(int n, const float4* x, float4* y) {
  __shared__ float4 s[3][128];
  int t = threadIdx.x;
  for (int k = 0; k < n + 2; ++k) {
    if (k < n) copy_async(&s[k % 3][t], &x[k * 128 + t], true);
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (k < 2) continue;
    asm volatile("cp.async.wait_group 2;" ::: "memory");
    __syncthreads();
    float4 v = s[(k - 2) % 3][127 - t];
    v.x += k - 2;
    y[(k - 2) * 128 + t] = v;
    __syncthreads();
  }
}

// Copies that an mbarrier tracks, every other one all zeros.
KERNEL(128) copy_arrive(int n, const float4* x, float4* y) {
  __shared__ float4 s[128];
  __shared__ unsigned long long bar;
  int t = threadIdx.x;
  if (t == 0) init(&bar, 128);
  __syncthreads();
  for (int k = 0; k < n; ++k) {
    copy_async(&s[t], &x[k * 128 + t], k % 2 == 0);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&bar))
                 : "memory");
    wait(&bar, k & 1);
    y[k * 128 + t] = s[t ^ 1];
    __syncthreads();
  }
}

// Bulk loads two ahead, a bulk store, and a bulk reduction.
KERNEL(128) bulk(int n, const float* x, float* y, float* sum) {
  __shared__ alignas(128) float s[2][256];
  __shared__ alignas(128) float o[256];
  __shared__ unsigned long long bar[2];
  int t = threadIdx.x;
  if (t == 0) {
    init(&bar[0], 1);
    init(&bar[1], 1);
    fence();
  }
  __syncthreads();
  auto load = [&](int k) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;\n"
                 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%1], [%2], "
                 "1024, [%0];" ::"r"(shared_address(&bar[k & 1])), "r"(shared_address(s[k & 1])),
                 "l"(x + k * 256) : "memory");
  };
  if (t == 0) load(0);
  for (int k = 0; k < n; ++k) {
    if (t == 0 && k + 1 < n) load(k + 1);
    wait(&bar[k & 1], (k >> 1) & 1);
    if (t == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    __syncthreads();
    for (int j = t; j < 256; j += 128) o[j] = s[k & 1][255 - j] + 1;
    fence();
    __syncthreads();
    if (t == 0)
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%2], 1024;\n"
                   "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%1], [%2], 1024;\n"
                   "cp.async.bulk.commit_group;" ::"l"(y + k * 256), "l"(sum),
                   "r"(shared_address(o)) : "memory");
  }
  if (t == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Two CTAs of a cluster push halves to each other and read each other's memory.
KERNEL(128) __cluster_dims__(2, 1, 1) exchange(const int* x, int* y) {
  __shared__ alignas(16) int mine[128], theirs[128];
  __shared__ unsigned long long bar;
  int t = threadIdx.x;
  unsigned rank, other, from, to;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  mine[t] = x[blockIdx.x * 128 + t];
  if (t == 0) {
    init(&bar, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;"
                 ::"r"(shared_address(&bar)) : "memory");
  }
  fence();
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(from)
      : "r"(shared_address(&mine[t])), "r"(rank ^ 1));
  int value;
  asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
  if (t == 0) {
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to)
        : "r"(shared_address(theirs)), "r"(rank ^ 1));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other)
        : "r"(shared_address(&bar)), "r"(rank ^ 1));
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], "
                 "[%1], 512, [%2];" ::"r"(to), "r"(shared_address(mine)), "r"(other) : "memory");
  }
  wait(&bar, 0);
  y[blockIdx.x * 128 + t] = theirs[127 - t] * 1000 + value;
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Generic addresses of the other CTA's shared memory: loads and atomics.
KERNEL(128) __cluster_dims__(2, 1, 1) neighbours(const int* x, int* y) {
  __shared__ int s[128];
  auto cluster = cooperative_groups::this_cluster();
  int t = threadIdx.x;
  s[t] = x[blockIdx.x * 128 + t];
  cluster.sync();
  int* other = cluster.map_shared_rank(s, cluster.block_rank() ^ 1);
  int value = other[t];
  cluster.sync();
  atomicAdd(&other[t], 1000);
  cluster.sync();
  y[blockIdx.x * 128 + t] = s[t] * 3 + value;
}

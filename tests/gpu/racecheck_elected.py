"""What racecheck of compute-sanitizer says of a right ring, by how its reader gives it back.

    compute-sanitizer --tool racecheck python tests/gpu/racecheck_elected.py 0  # one arrives
    compute-sanitizer --tool racecheck python tests/gpu/racecheck_elected.py 1  # all arrive

128 threads write a vector and arrive on `full`; 128 others wait, read it, and meet at a named
barrier, after which one of them arrives on `empty`. The barrier orders all reads before that
arrival, and the arrival orders them before the next writes. On an H200 (2026-11-30, CUDA 13.0)
racecheck reports races of the first form and none of the second: it does not follow what a named
barrier adds to a later arrival. Reports of reads that end so, in kernels whose roles hand vectors
on through rings, are this.
"""

import sys

import cupy
import numpy as np

STEPS = 9
SOURCE = r"""
__device__ void init(unsigned at, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at), "r"(count));
}
__device__ void arrive(unsigned at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory");
}
__device__ void wait(unsigned at, int phase) {
  asm volatile("{ .reg .pred done; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;"
               " @!done bra AGAIN; }" :: "r"(at), "r"(phase) : "memory");
}
extern "C" __global__ void ring(float* out, int steps) {
  __shared__ float vector[128];
  __shared__ unsigned long long barriers[2];
  unsigned full = __cvta_generic_to_shared(&barriers[0]);
  unsigned empty = __cvta_generic_to_shared(&barriers[1]);
  if (threadIdx.x == 0) { init(full, 128); init(empty, EACH ? 128 : 1); }
  __syncthreads();
  int t = threadIdx.x & 127;
  float sum = 0;
  for (int i = 0; i < steps; i++) {
    if (threadIdx.x < 128) {
      wait(empty, (i & 1) ^ 1); vector[t] = i + t; arrive(full);
    } else {
      wait(full, i & 1);
      sum += vector[(t + 37) & 127];
      if (EACH) arrive(empty);
      else { asm volatile("bar.sync 2, 128;" ::: "memory"); if (t == 0) arrive(empty); }
    }
  }
  if (threadIdx.x >= 128) out[blockIdx.x * 128 + t] = sum;
}
"""

kernel = cupy.RawKernel(SOURCE.replace("EACH", sys.argv[1]), "ring")
out = cupy.zeros((2, 128), cupy.float32)
kernel((2,), (256,), (out, np.int32(STEPS)))
exact = STEPS * ((np.arange(128) + 37) & 127) + STEPS * (STEPS - 1) // 2
print("right:", bool((out.get() == exact).all()))

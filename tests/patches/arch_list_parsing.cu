// The instruction that NVFP4 kernels are made of on SM12x, by CUTLASS's own wrapper.
#include <cute/arch/mma_sm120.hpp>

using BlockScaledMma = cute::SM120::BLOCKSCALED::SM120_16x8x64_TN_VS<cute::float_e2m1_t, cute::float_e2m1_t, float,
                                                                     cute::float_ue4m3_t, 16>;

__global__ void block_scaled_mma(uint32_t const* in, float* out) {
  float sums[4] = {};
  BlockScaledMma::fma(sums[0], sums[1], sums[2], sums[3], in[0], in[1], in[2], in[3], in[4], in[5], sums[0], sums[1],
                      sums[2], sums[3], in[6], in[7]);
  for (int i = 0; i < 4; ++i) out[i] = sums[i];
}

// The kernel that prepares the arguments of the SM120 grouped FP8 GEMM, to look for a dependency wait in.
#include <cuda_fp8.h>

#include "flashinfer/gemm/group_gemm_fp8_groupwise_sm120.cuh"

// As CutlassFP8GroupwiseScaledGroupGEMMSM120<1, 128, 128, false, …> instantiates it, but for the strides.
using Scales = cutlass::detail::Sm120BlockwiseScaleConfig<1, 128, 128, cute::UMMA::Major::MN, cute::UMMA::Major::MN>;
using Stride = cute::Stride<int64_t, cute::Int<1>, cute::Int<0>>;

void use() {
  (void)&flashinfer::group_gemm::compute_sm120_cutlass_group_gemm_args<
      Scales, cutlass::float_e4m3_t, float, cutlass::bfloat16_t, cute::Shape<int, int, int>, Stride, Stride, Stride,
      decltype(Scales::deduce_layoutSFA()), decltype(Scales::deduce_layoutSFB()), false>;
}

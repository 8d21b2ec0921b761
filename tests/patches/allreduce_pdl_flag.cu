// One of each kernel that the trtllm all-reduce wrappers launch, to look for dependency waits in.
#include "flashinfer/comm/trtllm_allreduce.cuh"
#include "flashinfer/comm/trtllm_allreduce_fusion.cuh"
#include "flashinfer/comm/trtllm_moe_allreduce_fusion.cuh"

namespace plain = flashinfer::trtllm_allreduce;
namespace plain_norm = flashinfer::trtllm_allreduce::reduce_fusion;
namespace fused = flashinfer::trtllm_allreduce_fusion;
namespace moe = flashinfer::trtllm_moe_allreduce_fusion;

// trtllm_custom_all_reduce
using Plain = plain::AllReduceParams<half>;
void use() {
  (void)&plain::oneShotAllReduceKernel<half, 2>;
  (void)&plain::twoShotAllReduceKernel<half, 2>;
}
template __global__ void plain_norm::rms_norm_kernel<half, false, true, true, false>(Plain);
template __global__ void plain_norm::rms_pre_post_norm_kernel<half, false, true, true>(Plain);
template __global__ void plain_norm::lamport_style_one_shot_all_reduce_norm_kernel<1, half, 2, false, true, true>(Plain);
template __global__ void plain_norm::one_shot_all_reduce_norm_kernel<half, 2, false, true, false>(Plain);
template __global__ void plain_norm::one_shot_prenorm_all_reduce_norm_kernel<half, 2, false, true>(Plain);

// trtllm_allreduce_fusion
using Fused = fused::AllReduceFusionParams<half>;
constexpr auto kPattern = fused::AllReduceFusionPattern::kARResidualRMSNorm;
template __global__ void fused::allreduce_fusion_kernel_oneshot_lamport<kPattern, half, 2, true, true>(Fused);
template __global__ void fused::allreduce_fusion_kernel_oneshot_lamport<kPattern, half, 2, true, false>(Fused);
template __global__ void fused::allreduce_fusion_kernel_twoshot_sync<kPattern, half, 2, true>(Fused,
                                                                                              std::array<int, 2>,
                                                                                              std::array<int, 2>);

// trtllm_moe_allreduce_fusion, trtllm_moe_finalize_allreduce_fusion
template __global__ void moe::moereduce_allreduce_fusion_kernel_oneshot_lamport<half, 2, false, true, true, false>(
    moe::MoeReductionAllReduceFusionParams<half>);
template __global__ void moe::moefinalize_allreduce_fusion_kernel_oneshot_lamport<half, 2, true, true, false>(
    moe::MoeFinalizeAllReduceFusionParams<half>);

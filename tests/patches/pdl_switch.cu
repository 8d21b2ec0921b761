// Runs FlashInfer's SM120 GEMM launchers that never ask whether PDL is wanted, on a runtime that records launches.
// Which launcher a line of output belongs to is said by the line before it.
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include "recording_cudart.h"

#include "flashinfer/gemm/cutlass_gemm_configs.h"
#include "flashinfer/gemm/fp4_gemm_template_sm120.h"
#include "flashinfer/gemm/group_gemm_fp8_groupwise_sm120.cuh"

// As fp4_gemm_cutlass_sm120.jinja does for its one tile.
namespace flashinfer {
namespace gemm {
INSTANTIATE_FP4_GEMM_KERNEL_LAUNCHER(__nv_bfloat16, 128, 128, 128, 1, 1, 1, _1SM)
}  // namespace gemm
}  // namespace flashinfer

namespace {

// The pointers are only passed on: nothing reads or writes through them but the allocators' own bookkeeping.
alignas(1024) char memory[1 << 20];
constexpr int kSize = 128;

void dense_fp4() {
  using cute::Int;
  std::puts("launcher fp4_gemm_template_sm120.h");
  flashinfer::gemm::genericFp4GemmKernelLauncher<__nv_bfloat16, Int<128>, Int<128>, Int<128>, Int<1>, Int<1>, Int<1>,
                                                 flashinfer::gemm::_1SM>(
      memory, memory, memory, memory, memory, reinterpret_cast<float*>(memory), kSize, kSize, kSize, 1, {}, memory,
      sizeof memory, nullptr, nullptr);
}

cudaError_t grouped_fp8() {
  using In = cutlass::float_e4m3_t;
  using Out = cutlass::bfloat16_t;
  std::puts("launcher group_gemm_fp8_groupwise_sm120.cuh");
  auto* in = reinterpret_cast<In*>(memory);
  auto* scale = reinterpret_cast<float*>(memory);
  return flashinfer::group_gemm::CutlassFP8GroupwiseScaledGroupGEMMSM120<1, 128, 128, false, In, Out>(
      memory, sizeof memory, memory, sizeof memory, in, in, scale, scale, reinterpret_cast<Out*>(memory),
      reinterpret_cast<int*>(memory), kSize, kSize, kSize, 1, nullptr);
}

}  // namespace

int main() {
  dense_fp4();
  return grouped_fp8() == cudaSuccess ? 0 : 1;
}

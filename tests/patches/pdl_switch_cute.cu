// Runs the launchers of FlashInfer's hand-written SM12x GEMMs on a runtime that records launches. Their launch_kernel is
// a template over the kernel, so an empty one does. Which launcher a line of output belongs to is said by the line
// before it.
#include "recording_cudart.h"

#ifndef __CUDA_ARCH__
extern "C" const char* cudaGetErrorName(cudaError_t) { return "recorded, not run"; }
#endif

#include <cuda_fp8.h>

// From FlashInfer 0.7 on there are two, in another folder.
#if __has_include("cute_sm12x_gemm/sm120_blockscaled/launch.cuh")
#include "cute_sm12x_gemm/sm120_blockscaled/launch.cuh"
#include "cute_sm12x_gemm/sm120_blockscaling/launch.cuh"
namespace launchers = flashinfer::gemm::cute_sm12x_gemm;
#define LAUNCH_ALL launch(sm120_blockscaled) launch(sm120_blockscaling)
#else
#include "cute_sm120_mxfp8_groupwise/sm120_blockscaled/builder.cuh"
#include "cute_sm120_mxfp8_groupwise/sm120_blockscaled/launch.cuh"
namespace launchers = flashinfer::gemm::mxfp8_cute_sm120;
#define LAUNCH_ALL launch(sm120_blockscaled)
#endif

struct Nothing {
  struct Params {};
  static constexpr int kSmemSize = 0;
  static constexpr int MaxThreadsPerBlock = 32;
  static constexpr int MinBlocksPerMultiprocessor = 1;
  static dim3 get_grid_shape(int) { return 1; }
  static dim3 get_block_shape() { return 32; }
  __device__ void operator()(Params const&, char*) {}
};

#define launch(name)            \
  std::puts("launcher " #name); \
  launchers::name::launch_kernel<Nothing>({}, 188, nullptr);

int main() { LAUNCH_ALL }

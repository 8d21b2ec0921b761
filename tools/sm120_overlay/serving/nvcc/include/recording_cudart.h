// A CUDA runtime that launches nothing and says what it was asked to launch. Include it once in a program that is
// linked with `-cudart none`: real host launchers then run to their end on a machine without a GPU or a driver.
//
// Every launch is one line on stdout: `launch pdl=<0|1> <mangled kernel name>`. A request for more dynamic shared
// memory than SM120's opt-in limit is refused as a driver refuses it, and is the line `refused <bytes> <name>`.
#pragma once
#ifndef __CUDA_ARCH__  // The device pass has some of these names as device functions.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <map>
#include <string>

namespace recording_cudart {

// cudaDevAttrMaxSharedMemoryPerBlockOptin and multiProcessorCount of an RTX PRO 6000 (CUDA programming guide,
// table of technical specifications, compute capability 12.0; NVIDIA's data sheet).
constexpr int kOptInSharedMemoryBytes = 101376;
constexpr int kMultiprocessors = 188;

inline std::map<void const*, std::string>& kernels() {
  static std::map<void const*, std::string> by_stub;
  return by_stub;
}

inline cudaError_t launched(void const* stub, bool pdl) {
  std::printf("launch pdl=%d %s\n", pdl ? 1 : 0, kernels()[stub].c_str());
  return cudaSuccess;
}

// What cuTensorMapEncodeTiled and its kind do here: nothing, successfully. The arguments stay unread.
inline CUresult accepted() { return CUDA_SUCCESS; }

}  // namespace recording_cudart

extern "C" {

// What the compiler's start-up code calls: kernels are registered under their host stub's address.
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  recording_cudart::kernels()[stub] = name;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}

// `kernel<<<...>>>` has no way to ask for PDL.
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return recording_cudart::launched(reinterpret_cast<void*>(kernel), false);
}
cudaError_t cudaLaunchKernel(const void* stub, dim3, dim3, void**, size_t, cudaStream_t) {
  return recording_cudart::launched(stub, false);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub, void**) {
  bool pdl = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      pdl = config->attrs[i].val.programmaticStreamSerializationAllowed != 0;
    }
  }
  return recording_cudart::launched(stub, pdl);
}

cudaError_t cudaFuncSetAttribute(const void* stub, cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value > recording_cudart::kOptInSharedMemoryBytes) {
    std::printf("refused %d %s\n", value, recording_cudart::kernels()[stub].c_str());
    return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? recording_cudart::kMultiprocessors : 0;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "recorded, not run"; }
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = reinterpret_cast<void*>(&recording_cudart::accepted);
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // extern "C"

#endif  // __CUDA_ARCH__

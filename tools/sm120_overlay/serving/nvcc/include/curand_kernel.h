// Stands in for cuRAND's device header, which nvcc's packages do not bring: CUTLASS's test utilities name these,
// and FlashInfer includes those utilities without instantiating them. Nothing is defined, so a use cannot link.
#pragma once
struct curandState_t {};
__device__ void curand_init(unsigned long long, unsigned long long, unsigned long long, curandState_t*);
__device__ float curand_normal(curandState_t*);
__device__ double curand_normal_double(curandState_t*);
__device__ float curand_uniform(curandState_t*);
__device__ double curand_uniform_double(curandState_t*);

// Functions, and loops in them, that nvcc compiles for the GPU as well.
#pragma once

#ifdef __CUDACC__
#define COMPTRAIN_HD __host__ __device__
#define COMPTRAIN_UNROLL _Pragma("unroll")
#else
#define COMPTRAIN_HD
#define COMPTRAIN_UNROLL
#endif

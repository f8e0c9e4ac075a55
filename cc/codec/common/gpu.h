// A stream of CUDA, without CUDA's headers.
#pragma once

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace comptrain::gpu {

// Where set, called before and after every launch of a kernel, whose purpose is
// `what`: benchmarks time kernels by it. Not to be set while others launch.
using LaunchObserver = void (*)(const char* what, bool launched,
                                CUstream_st* cuda_stream);
inline LaunchObserver launch_observer = nullptr;

}  // namespace comptrain::gpu

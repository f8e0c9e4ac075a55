// Functions, and loops in them, that nvcc compiles for the GPU as well.
#ifndef TF_COMPTRAIN_CC_CODEC_COMMON_HOST_DEVICE_H_
#define TF_COMPTRAIN_CC_CODEC_COMMON_HOST_DEVICE_H_

#ifdef __CUDACC__
#define COMPTRAIN_HD __host__ __device__
#define COMPTRAIN_UNROLL _Pragma("unroll")
#else
#define COMPTRAIN_HD
#define COMPTRAIN_UNROLL
#endif

#endif  // TF_COMPTRAIN_CC_CODEC_COMMON_HOST_DEVICE_H_

// Registers a kernel class for an op, on a device, for all three types. After
// the class: where inputs and outputs are in host memory, as
// .HostMemory("name").
#pragma once

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/register_types.h"

#define COMPTRAIN_REGISTER(OP, DEVICE, KERNEL, ...)                         \
  COMPTRAIN_REGISTER_TYPE(float, OP, DEVICE, KERNEL, __VA_ARGS__)           \
  COMPTRAIN_REGISTER_TYPE(Eigen::bfloat16, OP, DEVICE, KERNEL, __VA_ARGS__) \
  COMPTRAIN_REGISTER_TYPE(Eigen::half, OP, DEVICE, KERNEL, __VA_ARGS__)
#define COMPTRAIN_REGISTER_TYPE(T, OP, DEVICE, KERNEL, HOST)            \
  REGISTER_KERNEL_BUILDER(                                              \
      Name("Comptrain>" OP).Device(DEVICE) HOST.TypeConstraint<T>("T"), \
      KERNEL);

// The types of a tensor's elements.
#pragma once

#include <cstddef>
#include <cstdint>

namespace comptrain {

enum class DType : uint8_t { kF32 = 0, kBF16 = 1, kF16 = 2 };

inline size_t ItemBytes(DType t) { return t == DType::kF32 ? 4 : 2; }

}  // namespace comptrain

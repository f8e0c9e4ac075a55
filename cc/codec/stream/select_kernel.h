// From a type and a coding at run time to the kernel compiled for them.
//
// Everything is `static`: sources for wider instruction sets include this.
#pragma once

#include <type_traits>

#include "cc/codec/common/half.h"
#include "cc/codec/stream/stream.h"

namespace comptrain {

// f(coding), a std::integral_constant: what it returns for each of them.
template <class F>
static inline auto SelectCoding(Coding coding, const F& f) {
  switch (coding) {
    case Coding::kMidRise:
      return f(std::integral_constant<Coding, Coding::kMidRise>());
    case Coding::kDither:
      return f(std::integral_constant<Coding, Coding::kDither>());
    default:
      return f(std::integral_constant<Coding, Coding::kPlain>());
  }
}

// f(value, coding), value of the type that elements are stored as.
template <class F>
static inline auto SelectKernel(DType dtype, Coding coding, const F& f) {
  return SelectCoding(coding, [&](auto c) {
    switch (dtype) {
      case DType::kBF16:
        return f(BF16(), c);
      case DType::kF16:
        return f(F16(), c);
      default:
        return f(float(), c);
    }
  });
}

}  // namespace comptrain

// Division by a number that many items share: a product and a shift.
#pragma once

#include <cstdint>

#include "cc/codec/common/host_device.h"

namespace comptrain {

// Granlund and Montgomery, "Division by Invariant Integers using
// Multiplication", 1994: with s = ceil(log2(d)), ceil(2^(31 + s) / d) times a
// dividend below 2^31 has the quotient in its bits from 31 + s on.
class Divisor {
 public:
  Divisor() = default;
  // d: at least 1.
  explicit Divisor(int64_t d) : divisor_(d) {
    if (d >> 31 != 0) {
      factor_ = 0;
      return;
    }
    while (int64_t{1} << (shift_ - 31) < d) ++shift_;
    const auto by = static_cast<uint64_t>(d);
    factor_ = static_cast<uint32_t>(((uint64_t{1} << shift_) + by - 1) / by);
  }

  // n: at least 0. Below 2^31, for a divisor below 2^31, without a division.
  COMPTRAIN_HD int64_t Quotient(int64_t n) const {
    if (factor_ != 0 && n >> 31 == 0) return Small(static_cast<uint32_t>(n));
    return n / divisor_;
  }
  // *rest: n - Quotient(n) * divisor.
  COMPTRAIN_HD int64_t Split(int64_t n, int64_t* rest) const {
    const int64_t quotient = Quotient(n);
    *rest = n - quotient * divisor_;
    return quotient;
  }
  // As Quotient, for n and a divisor below 2^31.
  COMPTRAIN_HD uint32_t Small(uint32_t n) const {
    return static_cast<uint32_t>(uint64_t{n} * factor_ >> shift_);
  }

 private:
  int64_t divisor_ = 1;
  uint32_t factor_ = uint32_t{1} << 31;  // 0: of no small divisor
  int shift_ = 31;
};

}  // namespace comptrain

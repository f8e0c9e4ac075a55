// The arithmetic of plane and rans for a vector of values. Same results, to the
// bit, as quantize.h.
#pragma once

#include "cc/codec/common/vector.h"
#include "cc/codec/stream/quantize.h"

#define V COMPTRAIN_V

namespace comptrain {

// Of values number first, first + 1, ...: kDitherMix1 times the number.
static inline Ints Numbers(uint32_t first) {
  const Ints ahead = V(mullo_epi32)(Iota(), AllInts(kDitherMix1));
  return V(add_epi32)(AllInts(first * kDitherMix1), ahead);
}
static inline Ints NumbersAfter(Ints numbers, uint32_t values) {
  return V(add_epi32)(numbers, AllInts(values * kDitherMix1));
}

// 2^15 times DitherOf each: the upper half of a hash, as a signed number, and a
// half.
static inline Floats Dithers(Ints numbers) {
  const Ints h = V(mullo_epi32)(numbers ^ V(srli_epi32)(numbers, 15),
                                AllInts(kDitherMix2));
  return V(cvtepi32_ps)(WithLow16(h, 0x8000));
}
// Multiplying by it is exact: so is a multiplication inside of an addition.
static inline Floats DitherUnit() { return AllFloats(0x1p-32f); }

// The scales of the lanes of one row of values after the other.
class RowScales {
 public:
  explicit RowScales(const Quantizer& q) : RowScales(q, q.first_lane) {}
  RowScales(const Quantizer& q, int32_t first_lane)
      : of_(q.lanes), at_(first_lane) {}

  Floats Step(int lane) const { return Load(of_.step + at_ + lane); }
  Floats Inv(int lane) const { return Load(of_.inv + at_ + lane); }
  Floats Bound(int lane) const { return Load(of_.eb + at_ + lane); }
  Ints Centre(int lane) const { return LoadInts(of_.centre + at_ + lane); }
  void NextRow() {
    at_ += of_.advance;
    if (at_ >= of_.period) at_ -= of_.period;
  }

 private:
  const LaneScales of_;
  int32_t at_;
};

// INT32_MIN, or next to it, where there is no code; with dither next to
// INT32_MAX, too. numbers, centre: for dither.
template <Coding kCoding>
static inline Ints QuantizeVector(Floats x, Floats inv, Ints centre,
                                  Ints numbers) {
  const Floats t = x * inv;
  if (kCoding == Coding::kPlain) return V(cvtps_epi32)(t);
  if (kCoding == Coding::kDither) {
    const Mask counts = IsNormal(x);
    const Ints level =
        Keep(V(sub_epi32)(
                 V(cvtps_epi32)(V(fmadd_ps)(Dithers(numbers), DitherUnit(), t)),
                 centre),
             counts);
    return Increment(level, Greater(level, AllInts(~0u)) & counts);
  }
  const Ints q = Increment(V(cvttps_epi32)(t),
                           Compare<_CMP_GE_OQ>(x, AllFloats(0x1p-126f)));
  return Decrement(q, Compare<_CMP_LE_OQ>(x, AllFloats(-0x1p-126f)));
}

// With dither: of codes that are not 0.
template <bool kSigned = true>
static inline Ints LevelOf(Ints q) {
  return kSigned ? Decrement(q, Greater(q, Ints{}))
                 : V(sub_epi32)(q, AllInts(1));
}
static inline Floats Undithered(Floats level, Floats step, Ints numbers,
                                Mask nonzero) {
  return Keep(V(fnmadd_ps)(Dithers(numbers), DitherUnit(), level) * step,
              nonzero);
}

// q >= 0 where kSigned is false.
template <Coding kCoding, bool kSigned = true>
static inline Floats DequantizeVector(Ints q, Floats step, Ints centre,
                                      Ints numbers) {
  if (kCoding == Coding::kDither) {
    const Ints level = V(add_epi32)(LevelOf<kSigned>(q), centre);
    return Undithered(V(cvtepi32_ps)(level), step, numbers, NotZero(q));
  }
  Floats level = V(cvtepi32_ps)(q);
  if (kCoding == Coding::kMidRise && kSigned) {
    level = LessHalfSign(level, q);
  } else if (kCoding == Coding::kMidRise) {
    level = V(max_ps)(level - AllFloats(0.5f), Floats{});
  }
  return level * step;
}

// Where a code does not represent its value within the bound.
template <Coding kCoding>
static inline Mask OutsideBound(Floats x, Ints q, const Quantizer& quant,
                                const RowScales& scales, int lane,
                                Ints numbers) {
  const Floats x_hat = DequantizeVector<kCoding>(q, scales.Step(lane),
                                                 scales.Centre(lane), numbers);
  return Compare<_CMP_NLE_UQ>(Abs(x - x_hat), scales.Bound(lane)) |
         Compare<_CMP_NLT_UQ>(Abs(x_hat), AllFloats(quant.limit));
}

}  // namespace comptrain

#undef V

// From values to what rans codes, over vectors, for prepare_avx2.cc and
// prepare_avx512.cc.
#pragma once

#include "cc/codec/rans/row_vector.h"

#include "cc/codec/stream/quantize_vector.h"
#include "cc/codec/stream/select_kernel.h"

#define V COMPTRAIN_V

namespace comptrain::rans {
namespace {

struct Extent {
  Row smallest = {}, largest = {};
};

#if COMPTRAIN_IS_AVX512
// Values of lanes 16 i to 16 i + 15.
template <class T>
inline Floats LoadPart(const uint8_t* row, const Pitch& pitch, int i) {
  const auto* p = reinterpret_cast<const T*>(row + pitch.piece[2 * i]);
  const auto* r = reinterpret_cast<const T*>(row + pitch.piece[2 * i + 1]);
  return pitch.piece[1] == 8 * sizeof(T) ? Load(p) : LoadEights(p, r);
}
// Codes of two vectors in natural order; packs_epi32 works within 128 bits.
inline Ints PackCodes(Ints a, Ints b) {
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7),
                                  _mm512_packs_epi32(a, b));
}
// A bit a lane that is negative, or not zero.
inline uint32_t SignBits(const Row& r) { return _mm512_movepi16_mask(r.v[0]); }
inline uint32_t NonzeroBits(const Row& r) {
  return _mm512_test_epi16_mask(r.v[0], r.v[0]);
}
// A bit a lane with a > b, unsigned.
inline uint32_t GreaterBits(const Row& a, const Row& b) {
  return _mm512_cmpgt_epu16_mask(a.v[0], b.v[0]);
}
// z, or q itself where z is more than twice p in a lane that is not negative.
inline Ints ItselfBeyond(Ints z, Ints q, Ints p, const LaneSets& lanes, int) {
  return _mm512_mask_sub_epi16(
      z,
      _mm512_mask_cmpgt_epu16_mask(~lanes.negative, z, _mm512_slli_epi16(p, 1)),
      q, Bias());
}

struct Tokens {
  const Bytes128 table{kByteTables.token};
  const int shift;

  explicit Tokens(int s) : shift(s) {}

  // context << 4 | token of each code.
  Row IndexOf(const Row& context, const Row& u) const {
    const Ints v = _mm512_srli_epi16(u.v[0], shift);
    const Ints k = _mm512_mask_mov_epi16(
        table[_mm512_min_epu16(v, All16(127))],
        _mm512_cmpge_epu16_mask(v, All16(kEscapeFrom)), All16(kEscape));
    return {{_mm512_slli_epi16(context.v[0], 4) | k}};
  }
};
#else
template <class T>
inline Floats LoadPart(const uint8_t* row, const Pitch& pitch, int i) {
  return Load(reinterpret_cast<const T*>(row + pitch.piece[i]));
}
inline Ints PackCodes(Ints a, Ints b) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
}
inline uint32_t SignBits(const Row& r) {
  return static_cast<uint32_t>(_mm256_movemask_epi8(
      _mm256_permute4x64_epi64(_mm256_packs_epi16(r.v[0], r.v[1]), 0xd8)));
}
// In no order.
inline uint32_t NonzeroBits(const Row& r) {
  return ~static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_packs_epi16(
      _mm256_cmpeq_epi16(r.v[0], Ints{}), _mm256_cmpeq_epi16(r.v[1], Ints{}))));
}
inline uint32_t GreaterBits(const Row& a, const Row& b) {
  return SignBits({{Greater16(a.v[0], b.v[0]), Greater16(a.v[1], b.v[1])}});
}
inline Ints ItselfBeyond(Ints z, Ints q, Ints p, const LaneSets& lanes, int h) {
  const Ints itself =
      lanes.one_sided.v[h] & Greater16(z, _mm256_slli_epi16(p, 1));
  return _mm256_blendv_epi8(z, q ^ Bias(), itself);
}

struct Tokens {
  const int shift;

  explicit Tokens(int s) : shift(s) {}

  Row IndexOf(Ints context, const Row& u) const {
    const Row high = FromBytes(context, Ints{});
    const Row low = FromBytes(Of(u), Ints{});
    return {{_mm256_slli_epi16(high.v[0], 4) | low.v[0],
             _mm256_slli_epi16(high.v[1], 4) | low.v[1]}};
  }

 private:
  // Bytes.
  Ints Of(const Row& u) const {
    static constexpr int8_t kLongTokens[6] = {9, 11, 15, 23, 39, 103};
    static_assert(kTokenBase[9] == 9 && kTokenBase[14] == 103, "the same");
    Row v, escape;
    for (int h = 0; h < 2; ++h) {
      v.v[h] = _mm256_srli_epi16(u.v[h], shift);
      // Codes here are below 2^15.
      escape.v[h] = _mm256_cmpgt_epi16(v.v[h], All16(kEscapeFrom - 1));
      v.v[h] = _mm256_min_epu16(v.v[h], All16(127));
    }
    const Ints small = ToBytes(v);
    const Ints token = _mm256_add_epi8(_mm256_min_epu8(small, All8(8)),
                                       CountEdges(small, kLongTokens));
    return _mm256_blendv_epi8(token, All8(kEscape),
                              _mm256_packs_epi16(escape.v[0], escape.v[1]));
  }
};
#endif

// What is neither zero nor subnormal: a bit a lane.
inline uint32_t NormalBits(const Floats v[2 * kHalves]) {
  uint32_t bits = 0;
  for (int i = 0; i < 2 * kHalves; ++i) {
    bits |= BitsOf(IsNormal(v[i])) << kWidth * i;
  }
  return bits;
}

// Rows lie far apart: without this their lines come one by one.
constexpr int kRowsAhead = 32;
inline void PrefetchRow(const uint8_t* row, const Pitch& pitch) {
  for (int i = 0; i < kPieces; i += 2) {
    _mm_prefetch(reinterpret_cast<const char*>(row + pitch.piece[i]),
                 _MM_HINT_T0);
  }
}

template <class T, Coding kCoding>
inline void QuantizeRows(const Quantizer& quant, const ChunkValues& from,
                         ChunkWork* work, Extent* extent, int64_t* nonzero) {
  const Pitch pitch = from.pitch;
  RowScales scales(quant);
  Extent e;
  int64_t count = 0;
  for (int t = 0; t < from.rows; ++t, scales.NextRow()) {
    const uint8_t* const row = from.x + t * pitch.row;
    PrefetchRow(row + kRowsAhead * pitch.row, pitch);
    Floats v[2 * kHalves];
    Row q, biased;
    for (int h = 0; h < kHalves; ++h) {
      const int lane = 2 * kWidth * h;
      const uint32_t at =
          quant.counter + static_cast<uint32_t>(t * kLanes + lane);
      const Floats a = LoadPart<T>(row, pitch, 2 * h);
      const Floats b = LoadPart<T>(row, pitch, 2 * h + 1);
      v[2 * h] = a;
      v[2 * h + 1] = b;
      q.v[h] =
          PackCodes(QuantizeVector<kCoding>(a, scales.Inv(lane),
                                            scales.Centre(lane), Numbers(at)),
                    QuantizeVector<kCoding>(b, scales.Inv(lane + kWidth),
                                            scales.Centre(lane + kWidth),
                                            Numbers(at + kWidth)));
      biased.v[h] = q.v[h] ^ Bias();
      e.smallest.v[h] = V(min_epi16)(e.smallest.v[h], q.v[h]);
      e.largest.v[h] = V(max_epi16)(e.largest.v[h], q.v[h]);
    }
    StoreRow(biased, work->q + (t + kPadRows) * kLanes);
    count += __builtin_popcount(kCoding != Coding::kPlain ? NonzeroBits(q)
                                                          : NormalBits(v));
  }
  *nonzero = count;
  *extent = e;
}

template <class T, Coding kCoding>
bool WithinBound(const Quantizer& quant, const ChunkValues& from,
                 const ChunkWork& work) {
  const Pitch& pitch = from.pitch;
  Mask outside = {};
  RowScales scales(quant);
  for (int t = 0; t < from.rows; ++t, scales.NextRow()) {
    const uint8_t* const row = from.x + t * pitch.row;
    const Row biased = LoadRow(work.q + (t + kPadRows) * kLanes);
    for (int h = 0; h < kHalves; ++h) {
      const Ints q = biased.v[h] ^ Bias();
      const uint32_t at =
          quant.counter + static_cast<uint32_t>(t * kLanes + 2 * kWidth * h);
      const int lane = 2 * kWidth * h;
      outside |= OutsideBound<kCoding>(LoadPart<T>(row, pitch, 2 * h),
                                       V(cvtepi16_epi32)(Low(q)), quant, scales,
                                       lane, Numbers(at));
      outside |= OutsideBound<kCoding>(
          LoadPart<T>(row, pitch, 2 * h + 1), V(cvtepi16_epi32)(High(q)), quant,
          scales, lane + kWidth, Numbers(at + kWidth));
    }
  }
  return !Any(outside);
}

// What is coded for q, predicted as p, in half h of a row.
inline Ints Fold(Ints q, Ints p, const LaneSets& lanes, int h) {
  const Ints d = V(sub_epi16)(q, p);
  const Ints z = V(slli_epi16)(d, 1) ^ V(srai_epi16)(d, 15);
  return ItselfBeyond(z, q, p, lanes, h);
}

// Most chunks have lanes of one kind only: loops know then, and leave out what
// is for the other.
constexpr uint32_t kNone = 0, kAll = ~0u, kSome = 1;

template <uint32_t kNegative>
inline ChunkHead Known(const ChunkHead& head) {
  ChunkHead known = head;
  if (kNegative != kSome) known.negative = kNegative;
  return known;
}

// Fills the head's average and median.
template <uint32_t kNegative>
void ChoosePredictors(const Model& model, int rows, const uint16_t* q,
                      ChunkHead* head) {
  const int stride = model.stride, shift = model.shift;
  const LaneSets lanes(Known<kNegative>(*head));
  Row plain = {}, average = {}, median = {};
  for (int t = kFirstSampleRow; t < rows; t += kSampleRows) {
    const RowPlaces at = PlacesOf(t, stride);
    const Row here = LoadRow(q + at.here), left = LoadRow(q + at.left);
    const Row above = LoadRow(q + at.above);
    const Row above_left = LoadRow(q + at.above_left);
    for (int h = 0; h < kHalves; ++h) {
      const auto add = [&](Ints p, Row* sum) {
        sum->v[h] = V(add_epi16)(
            sum->v[h], Neighbour(Fold(here.v[h], p, lanes, h), shift));
      };
      add(Bias(), &plain);
      add(V(avg_epu16)(left.v[h], above.v[h]), &average);
      add(Median(left.v[h], above.v[h], above_left.v[h]), &median);
    }
  }
  Row best;
  for (int h = 0; h < kHalves; ++h) {
    best.v[h] = V(min_epu16)(average.v[h], median.v[h]);
  }
  const uint32_t predicted = GreaterBits(plain, best);
  const uint32_t median_better = GreaterBits(average, median);
  head->average = predicted & ~median_better;
  head->median = predicted & median_better;
}

// From q to u, c and index. False when a code is too large for the escape.
template <uint32_t kNegative>
bool Transform(const Model& model, const ChunkHead& head, int rows,
               ChunkWork* work) {
  const int stride = model.stride, shift = model.shift;
  const LaneSets lanes(Known<kNegative>(head));
  const Contexts contexts(shift);
  const Tokens tokens(shift);
  Row any = {}, left = LoadRow(work->q), left_c = {}, left2_c = {};
  for (int t = 0; t < rows; ++t) {
    const RowPlaces at = PlacesOf(t, stride);
    const Row here = LoadRow(work->q + at.here);
    const Row above = LoadRow(work->q + at.above);
    const Row above_left = LoadRow(work->q + at.above_left);
    Row u, c, median;
    for (int h = 0; h < kHalves; ++h) {
      median.v[h] = Median(left.v[h], above.v[h], above_left.v[h]);
      u.v[h] =
          Fold(here.v[h], Predict(lanes, h, left.v[h], above.v[h], median.v[h]),
               lanes, h);
      c.v[h] = Neighbour(u.v[h], shift);
      any.v[h] = any.v[h] | u.v[h];
    }
    const auto context =
        contexts.Of(lanes, left_c, LoadRow(work->c + at.above), left2_c,
                    LoadRow(work->c + at.above2), median);
    StoreRow(u, work->u + at.here);
    StoreRow(c, work->c + at.here);
    StoreRow(tokens.IndexOf(context, u), work->index + at.here);
    left = here;
    left2_c = left_c;
    left_c = c;
  }
  return SignBits(any) == 0;
}

template <uint32_t kNegative>
ChunkKind FromCodes(const Model& model, int rows, ChunkWork* work,
                    ChunkHead* head) {
  ChoosePredictors<kNegative>(model, rows, work->q, head);
  return Transform<kNegative>(model, *head, rows, work) ? ChunkKind::kCoded
                                                        : ChunkKind::kRaw;
}

template <class T, Coding kCoding>
ChunkKind Prepare(const Quantizer& quant, const Model& model,
                  const ChunkValues& from, ChunkWork* work, ChunkHead* head,
                  int64_t* nonzero) {
  ClearPadding(work);
  Extent e;
  QuantizeRows<T, kCoding>(quant, from, work, &e, nonzero);
  bool large = false;
  Row any;
  for (int h = 0; h < kHalves; ++h) {
    large |= AnyGreater16(e.largest.v[h], All16(kLargestSafe - quant.centre)) ||
             AnyGreater16(All16(SmallestSafe(kCoding) + quant.centre),
                          e.smallest.v[h]);
    any.v[h] = e.smallest.v[h] | e.largest.v[h];
  }
  if ((large || quant.verify_all) &&
      !WithinBound<T, kCoding>(quant, from, *work)) {
    return ChunkKind::kRaw;
  }
  if (NonzeroBits(any) == 0) return ChunkKind::kZero;
  head->negative = SignBits(e.smallest);
  return head->negative == kNone
             ? FromCodes<kNone>(model, from.rows, work, head)
         : head->negative == kAll
             ? FromCodes<kAll>(model, from.rows, work, head)
             : FromCodes<kSome>(model, from.rows, work, head);
}

}  // namespace

ChunkKernels COMPTRAIN_NAME(ChunkKernels)(DType dtype, Coding coding) {
  ChunkKernels k;
  k.prepare = SelectKernel(dtype, coding, [](auto v, auto c) -> PrepareFn {
    return Prepare<decltype(v), c()>;
  });
  k.encode = COMPTRAIN_NAME(EncodeChunks);
  k.decode = COMPTRAIN_NAME(DecodeChunks)(dtype, coding);
  k.mask = COMPTRAIN_NAME(MaskRows);
  k.needs_slots = !COMPTRAIN_IS_AVX512;
  k.at_once = COMPTRAIN_IS_AVX512 ? 2 : 1;
  return k;
}

}  // namespace comptrain::rans

#undef V

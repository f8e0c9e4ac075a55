// Codec B with AVX-512 (BW, VL, DQ, VBMI, VBMI2): from values to what is coded.
#include <cmath>

#include "cc/codec/rans_chunk.h"

#if defined(__AVX512VBMI2__) && defined(__AVX512VBMI__) && \
    defined(__AVX512BW__) && defined(__x86_64__)

#include "cc/codec/quantize_avx512.h"
#include "cc/codec/rans_avx512.h"

namespace comptrain {
namespace rans {
namespace {

struct Extent {
  __m512i smallest = _mm512_setzero_si512(), largest = smallest;
};

// packs_epi32 works within 128 bits.
inline __m512i PackCodes(__m512i a, __m512i b) {
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7),
                                  _mm512_packs_epi32(a, b));
}

// Rows [first, last), at most kSumRows.
template <class T, Coding kCoding>
inline void QuantizeBlock(const Quantizer& quant, const uint8_t* x,
                          int64_t row_bytes, int first, int last,
                          ChunkWork* work, Extent* extent, ChunkSums* total) {
  const __m512 inv = _mm512_set1_ps(quant.inv);
  const __m512i exponent = _mm512_set1_epi32(0x7f800000);
  const __m512i bias = _mm512_set1_epi16(static_cast<short>(kCodeBias));
  __m512 sum_a = _mm512_setzero_ps(), sum_b = sum_a, sq_a = sum_a, sq_b = sum_a;
  Extent e = *extent;
  int64_t nonzero = 0;
  for (int t = first; t < last; ++t) {
    const T* row = reinterpret_cast<const T*>(x + t * row_bytes);
    const __m512 a = Load16(row, kAll16), b = Load16(row + 16, kAll16);
    const uint32_t at = quant.counter + static_cast<uint32_t>(t * kLanes);
    const __m512i q = PackCodes(Quantize16<kCoding>(a, inv, at),
                                Quantize16<kCoding>(b, inv, at + 16));
    _mm512_store_si512(work->q + (t + kPadRows) * kLanes,
                       _mm512_xor_si512(q, bias));
    e.smallest = _mm512_min_epi16(e.smallest, q);
    e.largest = _mm512_max_epi16(e.largest, q);
    sum_a = _mm512_add_ps(sum_a, a);
    sum_b = _mm512_add_ps(sum_b, b);
    sq_a = _mm512_add_ps(sq_a, _mm512_mul_ps(a, a));
    sq_b = _mm512_add_ps(sq_b, _mm512_mul_ps(b, b));
    const __mmask32 set =
        kCoding != Coding::kPlain
            ? _mm512_test_epi16_mask(q, q)
            : _mm512_kunpackw(
                  _mm512_test_epi32_mask(_mm512_castps_si512(b), exponent),
                  _mm512_test_epi32_mask(_mm512_castps_si512(a), exponent));
    nonzero += __builtin_popcount(set);
  }
  *extent = e;
  ChunkSums block;
  block.nonzero = nonzero;
  block.sum = FoldLanes(sum_a, sum_b);
  block.sum_sq = FoldLanes(sq_a, sq_b);
  if (!std::isfinite(block.sum) || !std::isfinite(block.sum_sq)) {
    block = PlainSums(quant.dtype, x + first * row_bytes, row_bytes,
                      last - first);
  }
  total->nonzero += block.nonzero;
  total->sum += block.sum;
  total->sum_sq += block.sum_sq;
}

template <class T, Coding kCoding>
bool WithinBound(const Quantizer& quant, const uint8_t* x, int64_t row_bytes,
                 int rows, const ChunkWork& work) {
  const __m512i bias = _mm512_set1_epi16(static_cast<short>(kCodeBias));
  __mmask16 outside = 0;
  for (int t = 0; t < rows; ++t) {
    const T* row = reinterpret_cast<const T*>(x + t * row_bytes);
    const __m512i q = _mm512_xor_si512(
        LoadRow(work.q + (t + kPadRows) * kLanes), bias);
    const uint32_t at = quant.counter + static_cast<uint32_t>(t * kLanes);
    outside |= Outside16<kCoding>(
        Load16(row, kAll16),
        _mm512_cvtepi16_epi32(_mm512_castsi512_si256(q)), quant, at);
    outside |= Outside16<kCoding>(
        Load16(row + 16, kAll16),
        _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(q, 1)), quant,
        at + 16);
  }
  return outside == 0;
}

inline __m512i AddSize(__m512i sum, __m512i d, int shift) {
  return _mm512_adds_epu16(sum, _mm512_srli_epi16(_mm512_abs_epi16(d), shift));
}

Modes512 ChooseModes(const Model& model, int rows, __mmask32 negative,
                     const uint16_t* q, ChunkHead* head) {
  const __m512i bias = _mm512_set1_epi16(static_cast<short>(kCodeBias));
  __m512i plain = _mm512_setzero_si512(), average = plain, median = plain;
  for (int t = 3; t < rows; t += 4) {
    const RowPlaces at = PlacesOf(t, model.stride);
    const __m512i here = LoadRow(q + at.here), left = LoadRow(q + at.left);
    const __m512i above = LoadRow(q + at.above);
    const __m512i by_median =
        Median512(left, above, LoadRow(q + at.above_left));
    plain = AddSize(plain, _mm512_sub_epi16(here, bias), model.shift);
    average = AddSize(
        average, _mm512_sub_epi16(here, _mm512_avg_epu16(left, above)),
        model.shift);
    median = AddSize(median, _mm512_sub_epi16(here, by_median), model.shift);
  }
  // Zigzag doubles what is positive.
  const __m512i direct = _mm512_mask_mov_epi16(_mm512_srli_epi16(plain, 1),
                                               negative, plain);
  const __mmask32 predicted = _mm512_cmplt_epu16_mask(
      _mm512_min_epu16(average, median), direct);
  const __mmask32 median_better = _mm512_cmplt_epu16_mask(median, average);
  head->mode_high = predicted;
  head->mode_low = (predicted & median_better) | (~predicted & negative);
  return Modes512(*head);
}

// From q to u and c. False when a code is too large for the escape.
bool Transform(const Model& model, const Modes512& modes, int rows,
               ChunkWork* work) {
  const __m512i most = _mm512_set1_epi16(kMaxNeighbour);
  __m512i any = _mm512_setzero_si512();
  for (int t = 0; t < rows; ++t) {
    const RowPlaces at = PlacesOf(t, model.stride);
    const __m512i d = _mm512_sub_epi16(
        LoadRow(work->q + at.here),
        Predict512(modes, LoadRow(work->q + at.left),
                   LoadRow(work->q + at.above),
                   LoadRow(work->q + at.above_left)));
    const __m512i u = _mm512_mask_mov_epi16(
        d, modes.coded_signed,
        _mm512_xor_si512(_mm512_slli_epi16(d, 1), _mm512_srai_epi16(d, 15)));
    any = _mm512_or_si512(any, u);
    _mm512_store_si512(work->u + at.here, u);
    _mm512_store_si512(
        work->c + at.here,
        _mm512_min_epu16(_mm512_srli_epi16(u, model.shift), most));
  }
  return _mm512_movepi16_mask(any) == 0;
}

template <class T, Coding kCoding>
ChunkKind Prepare(const Quantizer& quant, const Model& model, const void* x,
                  int64_t row_bytes, int rows, ChunkWork* work,
                  ChunkHead* head, ChunkSums* sums) {
  const uint8_t* from = static_cast<const uint8_t*>(x);
  *sums = ChunkSums();
  ClearPadding512(work);
  Extent e;
  for (int t = 0; t < rows; t += kSumRows) {
    QuantizeBlock<T, kCoding>(quant, from, row_bytes, t,
                                    rows - t < kSumRows ? rows : t + kSumRows,
                                    work, &e, sums);
  }
  const bool large =
      (_mm512_cmpgt_epi16_mask(e.largest, _mm512_set1_epi16(kLargestSafe)) |
       _mm512_cmplt_epi16_mask(e.smallest,
                               _mm512_set1_epi16(SmallestSafe(kCoding)))) != 0;
  if ((large || quant.verify_all) &&
      !WithinBound<T, kCoding>(quant, from, row_bytes, rows, *work)) {
    return ChunkKind::kRaw;
  }
  const __m512i any = _mm512_or_si512(e.smallest, e.largest);
  if (_mm512_test_epi16_mask(any, any) == 0) return ChunkKind::kZero;
  const Modes512 modes =
      ChooseModes(model, rows, _mm512_movepi16_mask(e.smallest), work->q, head);
  return Transform(model, modes, rows, work) ? ChunkKind::kCoded
                                             : ChunkKind::kRaw;
}

template <class T>
PrepareFn Select(Coding coding) {
  switch (coding) {
    case Coding::kMidRise:
      return Prepare<T, Coding::kMidRise>;
    case Coding::kDither:
      return Prepare<T, Coding::kDither>;
    default:
      return Prepare<T, Coding::kPlain>;
  }
}

}  // namespace

PrepareFn Avx512Prepare(DType dtype, Coding coding) {
  switch (dtype) {
    case DType::kF32:
      return Select<float>(coding);
    case DType::kBF16:
      return Select<BF16>(coding);
    case DType::kF16:
      return Select<F16>(coding);
  }
  return nullptr;
}

}  // namespace rans
}  // namespace comptrain

#else

namespace comptrain {
namespace rans {
PrepareFn Avx512Prepare(DType, Coding) { return nullptr; }
}  // namespace rans
}  // namespace comptrain

#endif

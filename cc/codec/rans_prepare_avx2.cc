// Codec B with AVX2: from values to what is coded.
#include <cmath>

#include "cc/codec/rans_chunk.h"

#if defined(__AVX2__) && defined(__BMI2__) && defined(__F16C__) && \
    defined(__x86_64__)

#include "cc/codec/quantize_avx2.h"
#include "cc/codec/rans_avx2.h"

namespace comptrain {
namespace rans {
namespace {

struct Extent {
  Row256 smallest = {{_mm256_setzero_si256(), _mm256_setzero_si256()}};
  Row256 largest = smallest;
};

// The bit of each 16-bit lane's sign.
inline uint32_t SignBits(const Row256& r) {
  const __m256i bytes = _mm256_permute4x64_epi64(
      _mm256_packs_epi16(r.v[0], r.v[1]), 0xd8);
  return static_cast<uint32_t>(_mm256_movemask_epi8(bytes));
}

// Rows [first, last), at most kSumRows.
template <class T, Coding kCoding>
inline void QuantizeBlock(const Quantizer& quant, const uint8_t* x,
                          int64_t row_bytes, int first, int last,
                          ChunkWork* work, Extent* extent, ChunkSums* total) {
  const __m256 inv = _mm256_set1_ps(quant.inv);
  const __m256i exponent = _mm256_set1_epi32(0x7f800000);
  const __m256i zero = _mm256_setzero_si256();
  __m256 sum[4] = {}, sum_sq[4] = {};
  Extent e = *extent;
  int64_t zeros = 0;
  for (int t = first; t < last; ++t) {
    const T* row = reinterpret_cast<const T*>(x + t * row_bytes);
    Row256 q;
    for (int h = 0; h < 2; ++h) {
      const __m256 a = Load8(row + 16 * h), b = Load8(row + 16 * h + 8);
      const uint32_t at =
          quant.counter + static_cast<uint32_t>(t * kLanes + 16 * h);
      q.v[h] = _mm256_permute4x64_epi64(
          _mm256_packs_epi32(Quantize8<kCoding>(a, inv, at),
                             Quantize8<kCoding>(b, inv, at + 8)),
          0xd8);
      e.smallest.v[h] = _mm256_min_epi16(e.smallest.v[h], q.v[h]);
      e.largest.v[h] = _mm256_max_epi16(e.largest.v[h], q.v[h]);
      sum[2 * h] = _mm256_add_ps(sum[2 * h], a);
      sum[2 * h + 1] = _mm256_add_ps(sum[2 * h + 1], b);
      sum_sq[2 * h] = _mm256_add_ps(sum_sq[2 * h], _mm256_mul_ps(a, a));
      sum_sq[2 * h + 1] =
          _mm256_add_ps(sum_sq[2 * h + 1], _mm256_mul_ps(b, b));
      if (kCoding == Coding::kPlain) {
        for (const __m256 v : {a, b}) {
          const __m256i z = _mm256_cmpeq_epi32(
              _mm256_and_si256(_mm256_castps_si256(v), exponent), zero);
          zeros += __builtin_popcount(Mask8(z));
        }
      }
    }
    if (kCoding != Coding::kPlain) {
      const __m256i z =
          _mm256_packs_epi16(_mm256_cmpeq_epi16(q.v[0], zero),
                             _mm256_cmpeq_epi16(q.v[1], zero));
      zeros += __builtin_popcount(
          static_cast<unsigned>(_mm256_movemask_epi8(z)));
    }
    StoreRow({{_mm256_xor_si256(q.v[0], Bias256()),
               _mm256_xor_si256(q.v[1], Bias256())}},
             work->q + (t + kPadRows) * kLanes);
  }
  *extent = e;
  ChunkSums block;
  block.nonzero = static_cast<int64_t>(last - first) * kLanes - zeros;
  block.sum = FoldLanes(sum);
  block.sum_sq = FoldLanes(sum_sq);
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
  __m256 outside = _mm256_setzero_ps();
  for (int t = 0; t < rows; ++t) {
    const T* row = reinterpret_cast<const T*>(x + t * row_bytes);
    const Row256 biased = LoadRow(work.q + (t + kPadRows) * kLanes);
    for (int h = 0; h < 2; ++h) {
      const __m256i q = _mm256_xor_si256(biased.v[h], Bias256());
      const uint32_t at =
          quant.counter + static_cast<uint32_t>(t * kLanes + 16 * h);
      const __m256i low = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(q));
      const __m256i high =
          _mm256_cvtepi16_epi32(_mm256_extracti128_si256(q, 1));
      outside = _mm256_or_ps(
          outside,
          _mm256_or_ps(
              Outside8<kCoding>(Load8(row + 16 * h), low, quant, at),
              Outside8<kCoding>(Load8(row + 16 * h + 8), high, quant,
                                at + 8)));
    }
  }
  return _mm256_movemask_ps(outside) == 0;
}

inline __m256i AddSize(__m256i sum, __m256i d, int shift) {
  return _mm256_adds_epu16(sum, _mm256_srli_epi16(_mm256_abs_epi16(d), shift));
}

// a < b, unsigned.
inline __m256i Less(__m256i a, __m256i b) {
  return _mm256_cmpgt_epi16(_mm256_xor_si256(b, Bias256()),
                            _mm256_xor_si256(a, Bias256()));
}

void ChooseModes(const Model& model, int rows, const Row256& smallest,
                 const uint16_t* q, ChunkHead* head) {
  const __m256i zero = _mm256_setzero_si256();
  Row256 plain = {{zero, zero}}, average = plain, median = plain;
  for (int t = 3; t < rows; t += 4) {
    const RowPlaces at = PlacesOf(t, model.stride);
    const Row256 here = LoadRow(q + at.here), left = LoadRow(q + at.left);
    const Row256 above = LoadRow(q + at.above);
    const Row256 above_left = LoadRow(q + at.above_left);
    for (int h = 0; h < 2; ++h) {
      const __m256i by_median =
          Median256(left.v[h], above.v[h], above_left.v[h]);
      plain.v[h] = AddSize(
          plain.v[h], _mm256_sub_epi16(here.v[h], Bias256()), model.shift);
      average.v[h] =
          AddSize(average.v[h],
                  _mm256_sub_epi16(here.v[h],
                                   _mm256_avg_epu16(left.v[h], above.v[h])),
                  model.shift);
      median.v[h] = AddSize(
          median.v[h], _mm256_sub_epi16(here.v[h], by_median), model.shift);
    }
  }
  const uint32_t negative = SignBits(smallest);
  Row256 predicted, median_better;
  for (int h = 0; h < 2; ++h) {
    // Zigzag doubles what is positive.
    const __m256i direct = _mm256_blendv_epi8(
        _mm256_srli_epi16(plain.v[h], 1), plain.v[h],
        _mm256_srai_epi16(smallest.v[h], 15));
    predicted.v[h] =
        Less(_mm256_min_epu16(average.v[h], median.v[h]), direct);
    median_better.v[h] = Less(median.v[h], average.v[h]);
  }
  head->mode_high = SignBits(predicted);
  head->mode_low = (head->mode_high & SignBits(median_better)) |
                   (~head->mode_high & negative);
}

// From q to u and c. False when a code is too large for the escape.
bool Transform(const Model& model, const Modes256& modes, int rows,
               ChunkWork* work) {
  const __m256i most = _mm256_set1_epi16(kMaxNeighbour);
  __m256i any = _mm256_setzero_si256();
  for (int t = 0; t < rows; ++t) {
    const RowPlaces at = PlacesOf(t, model.stride);
    const Row256 here = LoadRow(work->q + at.here);
    const Row256 left = LoadRow(work->q + at.left);
    const Row256 above = LoadRow(work->q + at.above);
    const Row256 above_left = LoadRow(work->q + at.above_left);
    Row256 u, c;
    for (int h = 0; h < 2; ++h) {
      const __m256i d = _mm256_sub_epi16(
          here.v[h], modes.any_predicted
                         ? Predict256(modes, h, left.v[h], above.v[h],
                                      above_left.v[h])
                         : Bias256());
      u.v[h] = _mm256_blendv_epi8(
          d,
          _mm256_xor_si256(_mm256_slli_epi16(d, 1), _mm256_srai_epi16(d, 15)),
          modes.coded_signed.v[h]);
      c.v[h] = _mm256_min_epu16(_mm256_srli_epi16(u.v[h], model.shift), most);
      any = _mm256_or_si256(any, u.v[h]);
    }
    StoreRow(u, work->u + at.here);
    StoreRow(c, work->c + at.here);
  }
  const __m256i top = Bias256();
  return _mm256_testz_si256(any, top) != 0;
}

inline bool AnySet(__m256i v) { return !_mm256_testz_si256(v, v); }

template <class T, Coding kCoding>
ChunkKind Prepare(const Quantizer& quant, const Model& model, const void* x,
                  int64_t row_bytes, int rows, ChunkWork* work,
                  ChunkHead* head, ChunkSums* sums) {
  const uint8_t* from = static_cast<const uint8_t*>(x);
  *sums = ChunkSums();
  ClearPadding256(work);
  Extent e;
  for (int t = 0; t < rows; t += kSumRows) {
    QuantizeBlock<T, kCoding>(quant, from, row_bytes, t,
                                    rows - t < kSumRows ? rows : t + kSumRows,
                                    work, &e, sums);
  }
  const __m256i most = _mm256_max_epi16(e.largest.v[0], e.largest.v[1]);
  const __m256i least = _mm256_min_epi16(e.smallest.v[0], e.smallest.v[1]);
  const bool large = AnySet(
      _mm256_or_si256(
          _mm256_cmpgt_epi16(most, _mm256_set1_epi16(kLargestSafe)),
          _mm256_cmpgt_epi16(_mm256_set1_epi16(SmallestSafe(kCoding)),
                             least)));
  if ((large || quant.verify_all) &&
      !WithinBound<T, kCoding>(quant, from, row_bytes, rows, *work)) {
    return ChunkKind::kRaw;
  }
  if (!AnySet(_mm256_or_si256(most, least))) return ChunkKind::kZero;
  ChooseModes(model, rows, e.smallest, work->q, head);
  return Transform(model, Modes256(*head), rows, work) ? ChunkKind::kCoded
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

PrepareFn Avx2Prepare(DType dtype, Coding coding) {
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
PrepareFn Avx2Prepare(DType, Coding) { return nullptr; }
}  // namespace rans
}  // namespace comptrain

#endif

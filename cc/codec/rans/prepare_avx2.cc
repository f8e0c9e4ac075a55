// rans with AVX2: from values to what is coded.
#include "cc/codec/rans/chunk.h"

#if defined(__AVX2__) && defined(__BMI2__) && defined(__F16C__) && \
    defined(__x86_64__)

#include "cc/codec/stream/quantize_avx2.h"
#include "cc/codec/stream/select_kernel.h"
#include "cc/codec/rans/vector_avx2.h"

namespace comptrain {
namespace rans {
namespace {

struct Extent {
  Row256 smallest = {{_mm256_setzero_si256(), _mm256_setzero_si256()}};
  Row256 largest = smallest;
};

// Lanes 8 i to 8 i + 7 of a row of values.
template <class T>
inline __m256 LoadPiece(const uint8_t* row, const Pitch& pitch, int i) {
  return Load8(reinterpret_cast<const T*>(row + pitch.piece[i]));
}

// The bit of each 16-bit lane's sign.
inline uint32_t SignBits(const Row256& r) {
  const __m256i bytes = _mm256_permute4x64_epi64(
      _mm256_packs_epi16(r.v[0], r.v[1]), 0xd8);
  return static_cast<uint32_t>(_mm256_movemask_epi8(bytes));
}

// Rows [first, last), at most kSumRows.
template <class T, Coding kCoding>
inline void QuantizeBlock(const Quantizer& quant, const uint8_t* x,
                          const Pitch& pitch, int first, int last,
                          ChunkWork* work, Extent* extent, ChunkSums* total) {
  const __m256 inv = _mm256_set1_ps(quant.inv);
  const __m256i exponent = _mm256_set1_epi32(0x7f800000);
  const __m256i zero = _mm256_setzero_si256();
  __m256 sum[4] = {}, sum_sq[4] = {};
  Extent e = *extent;
  int64_t zeros = 0;
  for (int t = first; t < last; ++t) {
    const uint8_t* const row = x + t * pitch.row;
    Row256 q;
    for (int h = 0; h < 2; ++h) {
      const __m256 a = LoadPiece<T>(row, pitch, 2 * h);
      const __m256 b = LoadPiece<T>(row, pitch, 2 * h + 1);
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
  const ChunkSums block = {static_cast<int64_t>(last - first) * kLanes - zeros,
                           FoldLanes(sum), FoldLanes(sum_sq)};
  AddBlock(block, quant.dtype, x + first * pitch.row, pitch, last - first,
           total);
}

template <class T, Coding kCoding>
bool WithinBound(const Quantizer& quant, const uint8_t* x, const Pitch& pitch,
                 int rows, const ChunkWork& work) {
  __m256 outside = _mm256_setzero_ps();
  for (int t = 0; t < rows; ++t) {
    const uint8_t* const row = x + t * pitch.row;
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
              Outside8<kCoding>(LoadPiece<T>(row, pitch, 2 * h), low, quant,
                                at),
              Outside8<kCoding>(LoadPiece<T>(row, pitch, 2 * h + 1), high,
                                quant, at + 8)));
    }
  }
  return _mm256_movemask_ps(outside) == 0;
}

// Bytes.
inline __m256i TokensOf(const Row256& u, int shift) {
  static constexpr int8_t kLongTokens[6] = {9, 11, 15, 23, 39, 103};
  static_assert(kTokenBase[9] == 9 && kTokenBase[14] == 103, "the same");
  Row256 v, escape;
  for (int h = 0; h < 2; ++h) {
    v.v[h] = _mm256_srli_epi16(u.v[h], shift);
    // Codes here are below 2^15.
    escape.v[h] = _mm256_cmpgt_epi16(
        v.v[h], _mm256_set1_epi16(static_cast<short>(kEscapeFrom - 1)));
    v.v[h] = _mm256_min_epu16(v.v[h], _mm256_set1_epi16(127));
  }
  const __m256i small = ToBytes(v);
  const __m256i token =
      _mm256_add_epi8(_mm256_min_epu8(small, _mm256_set1_epi8(8)),
                      CountEdges(small, kLongTokens));
  return _mm256_blendv_epi8(token, _mm256_set1_epi8(kEscape),
                            _mm256_packs_epi16(escape.v[0], escape.v[1]));
}

// What is coded for q, predicted as p.
inline __m256i Fold(__m256i q, __m256i p, __m256i one_sided) {
  const __m256i d = _mm256_sub_epi16(q, p);
  const __m256i z =
      _mm256_xor_si256(_mm256_slli_epi16(d, 1), _mm256_srai_epi16(d, 15));
  const __m256i itself = _mm256_and_si256(
      one_sided, Greater(z, _mm256_slli_epi16(p, 1)));
  return _mm256_blendv_epi8(z, _mm256_xor_si256(q, Bias256()), itself);
}

// Fills the head's average and median.
void ChoosePredictors(const Model& model, int rows, const uint16_t* q,
                      ChunkHead* head) {
  const int stride = model.stride, shift = model.shift;
  const Row256 one_sided = LaneMask(~head->negative);
  const __m256i zero = _mm256_setzero_si256();
  Row256 plain = {{zero, zero}}, average = plain, median = plain;
  for (int t = kFirstSampleRow; t < rows; t += kSampleRows) {
    const RowPlaces at = PlacesOf(t, stride);
    const Row256 here = LoadRow(q + at.here), left = LoadRow(q + at.left);
    const Row256 above = LoadRow(q + at.above);
    const Row256 above_left = LoadRow(q + at.above_left);
    for (int h = 0; h < 2; ++h) {
      const auto add = [&](__m256i p, Row256* sum) {
        sum->v[h] = _mm256_add_epi16(
            sum->v[h],
            Neighbour256(Fold(here.v[h], p, one_sided.v[h]), shift));
      };
      add(Bias256(), &plain);
      add(_mm256_avg_epu16(left.v[h], above.v[h]), &average);
      add(Median256(left.v[h], above.v[h], above_left.v[h]), &median);
    }
  }
  Row256 predicted, median_better;
  for (int h = 0; h < 2; ++h) {
    predicted.v[h] =
        Greater(plain.v[h], _mm256_min_epu16(average.v[h], median.v[h]));
    median_better.v[h] = Greater(average.v[h], median.v[h]);
  }
  head->average = SignBits(predicted) & ~SignBits(median_better);
  head->median = SignBits(predicted) & SignBits(median_better);
}

// From q to u, c and index. False when a code is too large for the escape.
bool Transform(const Model& model, const ChunkHead& head, int rows,
               ChunkWork* work) {
  const int stride = model.stride, shift = model.shift;
  const Lanes256 lanes(head);
  const Contexts256 contexts(lanes, shift);
  const __m256i zero = _mm256_setzero_si256();
  __m256i any = zero;
  for (int t = 0; t < rows; ++t) {
    const RowPlaces at = PlacesOf(t, stride);
    const Row256 here = LoadRow(work->q + at.here);
    const Row256 left = LoadRow(work->q + at.left);
    const Row256 above = LoadRow(work->q + at.above);
    const Row256 above_left = LoadRow(work->q + at.above_left);
    Row256 u, c, median;
    for (int h = 0; h < 2; ++h) {
      median.v[h] = Median256(left.v[h], above.v[h], above_left.v[h]);
      u.v[h] = Fold(
          here.v[h],
          Predict256(lanes, h, left.v[h], above.v[h], median.v[h]),
          lanes.one_sided.v[h]);
      c.v[h] = Neighbour256(u.v[h], shift);
      any = _mm256_or_si256(any, u.v[h]);
    }
    const __m256i context = contexts.Of(
        LoadRow(work->c + at.left), LoadRow(work->c + at.above),
        LoadRow(work->c + at.left2), LoadRow(work->c + at.above2), median);
    StoreRow(u, work->u + at.here);
    StoreRow(c, work->c + at.here);
    const Row256 high = FromBytes(context, zero);
    const Row256 low = FromBytes(TokensOf(u, shift), zero);
    StoreRow({{_mm256_or_si256(_mm256_slli_epi16(high.v[0], 4), low.v[0]),
               _mm256_or_si256(_mm256_slli_epi16(high.v[1], 4), low.v[1])}},
             work->index + at.here);
  }
  return _mm256_testz_si256(any, Bias256()) != 0;
}

inline bool AnySet(__m256i v) { return !_mm256_testz_si256(v, v); }

template <class T, Coding kCoding>
ChunkKind Prepare(const Quantizer& quant, const Model& model, const void* x,
                  const Pitch& pitch, int rows, ChunkWork* work,
                  ChunkHead* head, ChunkSums* sums) {
  const uint8_t* from = static_cast<const uint8_t*>(x);
  *sums = ChunkSums();
  ClearPadding256(work);
  Extent e;
  for (int t = 0; t < rows; t += kSumRows) {
    QuantizeBlock<T, kCoding>(quant, from, pitch, t,
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
      !WithinBound<T, kCoding>(quant, from, pitch, rows, *work)) {
    return ChunkKind::kRaw;
  }
  if (!AnySet(_mm256_or_si256(most, least))) return ChunkKind::kZero;
  head->negative = SignBits(e.smallest);
  ChoosePredictors(model, rows, work->q, head);
  return Transform(model, *head, rows, work) ? ChunkKind::kCoded
                                             : ChunkKind::kRaw;
}

}  // namespace

PrepareFn Avx2Prepare(DType dtype, Coding coding) {
  return SelectKernel(dtype, coding, [](auto v, auto c) -> PrepareFn {
    return Prepare<decltype(v), c()>;
  });
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

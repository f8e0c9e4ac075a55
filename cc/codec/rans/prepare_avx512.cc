// rans with AVX-512 (BW, VL, DQ, VBMI, VBMI2): from values to what is coded.
#include "cc/codec/rans/chunk.h"

#if defined(__AVX512VBMI2__) && defined(__AVX512VBMI__) && \
    defined(__AVX512BW__) && defined(__x86_64__)

#include "cc/codec/stream/quantize_avx512.h"
#include "cc/codec/stream/select_kernel.h"
#include "cc/codec/rans/vector_avx512.h"

namespace comptrain {
namespace rans {
namespace {

// A row of values: lanes 0-15 and 16-31.
template <class T>
struct Row {
  const uint8_t* const x;
  const Pitch& pitch;

  Row(const uint8_t* row, const Pitch& p) : x(row), pitch(p) {}
  __m512 Low() const { return Sixteen(0); }
  __m512 High() const { return Sixteen(2); }

 private:
  const T* Piece(int i) const {
    return reinterpret_cast<const T*>(x + pitch.piece[i]);
  }
  __m512 Sixteen(int i) const {
    return pitch.piece[1] == 8 * sizeof(T) ? Load16(Piece(i), kAll16)
                                           : LoadEights(Piece(i), Piece(i + 1));
  }
};

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
                          const Pitch& pitch, int first, int last,
                          ChunkWork* work, Extent* extent, ChunkSums* total) {
  const __m512 inv = _mm512_set1_ps(quant.inv);
  const __m512i exponent = _mm512_set1_epi32(0x7f800000);
  __m512 sum_a = _mm512_setzero_ps(), sum_b = sum_a, sq_a = sum_a, sq_b = sum_a;
  Extent e = *extent;
  int64_t nonzero = 0;
  for (int t = first; t < last; ++t) {
    const Row<T> row(x + t * pitch.row, pitch);
    const __m512 a = row.Low(), b = row.High();
    const uint32_t at = quant.counter + static_cast<uint32_t>(t * kLanes);
    const __m512i q = PackCodes(Quantize16<kCoding>(a, inv, at),
                                Quantize16<kCoding>(b, inv, at + 16));
    _mm512_store_si512(work->q + (t + kPadRows) * kLanes,
                       _mm512_xor_si512(q, Bias512()));
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
  AddBlock({nonzero, FoldLanes(sum_a, sum_b), FoldLanes(sq_a, sq_b)},
           quant.dtype, x + first * pitch.row, pitch, last - first, total);
}

template <class T, Coding kCoding>
bool WithinBound(const Quantizer& quant, const uint8_t* x, const Pitch& pitch,
                 int rows, const ChunkWork& work) {
  __mmask16 outside = 0;
  for (int t = 0; t < rows; ++t) {
    const Row<T> row(x + t * pitch.row, pitch);
    const __m512i q = _mm512_xor_si512(
        LoadRow(work.q + (t + kPadRows) * kLanes), Bias512());
    const uint32_t at = quant.counter + static_cast<uint32_t>(t * kLanes);
    outside |= Outside16<kCoding>(
        row.Low(),
        _mm512_cvtepi16_epi32(_mm512_castsi512_si256(q)), quant, at);
    outside |= Outside16<kCoding>(
        row.High(),
        _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(q, 1)), quant,
        at + 16);
  }
  return outside == 0;
}

struct Tokens {
  const Bytes128 table{kByteTables.token};
  const int shift;

  explicit Tokens(int s) : shift(s) {}

  __m512i Of(__m512i u) const {
    const __m512i v = _mm512_srli_epi16(u, shift);
    const __m512i k = table[_mm512_min_epu16(v, _mm512_set1_epi16(127))];
    return _mm512_mask_mov_epi16(
        k, _mm512_cmpge_epu16_mask(v, _mm512_set1_epi16(kEscapeFrom)),
        _mm512_set1_epi16(kEscape));
  }
};

// What is coded for q, predicted as p.
inline __m512i Fold(__m512i q, __m512i p, __mmask32 negative) {
  const __m512i d = _mm512_sub_epi16(q, p);
  const __m512i z =
      _mm512_xor_si512(_mm512_slli_epi16(d, 1), _mm512_srai_epi16(d, 15));
  return _mm512_mask_sub_epi16(
      z,
      _mm512_mask_cmpgt_epu16_mask(~negative, z, _mm512_slli_epi16(p, 1)), q,
      Bias512());
}

// Most chunks have lanes of one kind only: loops know then, and leave out what
// is for the other.
constexpr uint32_t kNone = 0, kAll = ~0u, kSome = 1;

template <uint32_t kNegative>
inline __mmask32 NegativeLanes(const ChunkHead& head) {
  return kNegative == kSome ? head.negative : kNegative;
}

// Fills the head's average and median.
template <uint32_t kNegative>
void ChoosePredictors(const Model& model, int rows, const uint16_t* q,
                      ChunkHead* head) {
  const int stride = model.stride, shift = model.shift;
  const __mmask32 negative = NegativeLanes<kNegative>(*head);
  __m512i plain = _mm512_setzero_si512(), average = plain, median = plain;
  const auto add = [&](__m512i here, __m512i p, __m512i* sum) {
    *sum = _mm512_add_epi16(*sum, Neighbour512(Fold(here, p, negative), shift));
  };
  for (int t = kFirstSampleRow; t < rows; t += kSampleRows) {
    const RowPlaces at = PlacesOf(t, stride);
    const __m512i here = LoadRow(q + at.here), left = LoadRow(q + at.left);
    const __m512i above = LoadRow(q + at.above);
    add(here, Bias512(), &plain);
    add(here, _mm512_avg_epu16(left, above), &average);
    add(here, Median512(left, above, LoadRow(q + at.above_left)), &median);
  }
  const __mmask32 predicted =
      _mm512_cmplt_epu16_mask(_mm512_min_epu16(average, median), plain);
  const __mmask32 median_better = _mm512_cmplt_epu16_mask(median, average);
  head->average = predicted & ~median_better;
  head->median = predicted & median_better;
}

// From q to u, c and index. False when a code is too large for the escape.
template <uint32_t kNegative>
bool Transform(const Model& model, const ChunkHead& head, int rows,
               ChunkWork* work) {
  const int stride = model.stride, shift = model.shift;
  ChunkHead known = head;
  known.negative = NegativeLanes<kNegative>(head);
  const Lanes512 lanes(known);
  const Contexts512 contexts(shift);
  const Tokens tokens(shift);
  __m512i any = _mm512_setzero_si512();
  __m512i left = LoadRow(work->q), left_c = any, left2_c = any;
  for (int t = 0; t < rows; ++t) {
    const RowPlaces at = PlacesOf(t, stride);
    const __m512i here = LoadRow(work->q + at.here);
    const __m512i above = LoadRow(work->q + at.above);
    const __m512i median =
        Median512(left, above, LoadRow(work->q + at.above_left));
    const __m512i u =
        Fold(here, Predict512(lanes, left, above, median), lanes.negative);
    const __m512i context = contexts.Of(
        lanes, left_c, LoadRow(work->c + at.above),
        _mm512_add_epi16(left2_c, LoadRow(work->c + at.above2)), median);
    any = _mm512_or_si512(any, u);
    left = here;
    left2_c = left_c;
    left_c = Neighbour512(u, shift);
    _mm512_store_si512(work->u + at.here, u);
    _mm512_store_si512(work->c + at.here, left_c);
    _mm512_store_si512(
        work->index + at.here,
        _mm512_or_si512(_mm512_slli_epi16(context, 4), tokens.Of(u)));
  }
  return _mm512_movepi16_mask(any) == 0;
}

template <uint32_t kNegative>
ChunkKind FromCodes(const Model& model, int rows, ChunkWork* work,
                    ChunkHead* head) {
  ChoosePredictors<kNegative>(model, rows, work->q, head);
  return Transform<kNegative>(model, *head, rows, work) ? ChunkKind::kCoded
                                                        : ChunkKind::kRaw;
}

template <class T, Coding kCoding>
ChunkKind Prepare(const Quantizer& quant, const Model& model, const void* x,
                  const Pitch& pitch, int rows, ChunkWork* work,
                  ChunkHead* head, ChunkSums* sums) {
  const uint8_t* from = static_cast<const uint8_t*>(x);
  *sums = ChunkSums();
  ClearPadding512(work);
  Extent e;
  for (int t = 0; t < rows; t += kSumRows) {
    QuantizeBlock<T, kCoding>(quant, from, pitch, t,
                                    rows - t < kSumRows ? rows : t + kSumRows,
                                    work, &e, sums);
  }
  const bool large =
      (_mm512_cmpgt_epi16_mask(e.largest, _mm512_set1_epi16(kLargestSafe)) |
       _mm512_cmplt_epi16_mask(e.smallest,
                               _mm512_set1_epi16(SmallestSafe(kCoding)))) != 0;
  if ((large || quant.verify_all) &&
      !WithinBound<T, kCoding>(quant, from, pitch, rows, *work)) {
    return ChunkKind::kRaw;
  }
  const __m512i any = _mm512_or_si512(e.smallest, e.largest);
  if (_mm512_test_epi16_mask(any, any) == 0) return ChunkKind::kZero;
  head->negative = _mm512_movepi16_mask(e.smallest);
  return head->negative == kNone  ? FromCodes<kNone>(model, rows, work, head)
         : head->negative == kAll ? FromCodes<kAll>(model, rows, work, head)
                                  : FromCodes<kSome>(model, rows, work, head);
}

}  // namespace

PrepareFn Avx512Prepare(DType dtype, Coding coding) {
  return SelectKernel(dtype, coding, [](auto v, auto c) -> PrepareFn {
    return Prepare<decltype(v), c()>;
  });
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

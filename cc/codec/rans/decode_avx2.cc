// rans' decoder with AVX2.
#include "cc/codec/rans/chunk.h"

#if defined(__AVX2__) && defined(__BMI2__) && defined(__F16C__) && \
    defined(__x86_64__)

#include "cc/codec/stream/quantize_avx2.h"
#include "cc/codec/stream/select_kernel.h"
#include "cc/codec/rans/vector_avx2.h"

namespace comptrain {
namespace rans {
namespace {

// Takes words off the end, one for each state that fell below the range.
inline bool Refill(States256* s, const uint16_t* begin, const uint16_t** end) {
  const __m256i bottom = _mm256_set1_epi32(kStateLow);
  __m256i low[4];
  unsigned mask[4];
  int total = 0;
  for (int k = 0; k < 4; ++k) {
    low[k] = _mm256_cmpgt_epi32(bottom, s->v[k]);
    mask[k] = Mask8(low[k]);
    total += __builtin_popcount(mask[k]);
  }
  if (*end - begin < total) return false;
  const uint16_t* from = *end - total;
  *end = from;
  for (int k = 0; k < 4; ++k) {
    const __m256i words = _mm256_cvtepu16_epi32(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    const __m256i refilled =
        _mm256_or_si256(_mm256_slli_epi32(s->v[k], 16),
                        Move8(words, kMoveTables.scatter[mask[k]]));
    s->v[k] = _mm256_blendv_epi8(s->v[k], refilled, low[k]);
    from += __builtin_popcount(mask[k]);
  }
  return true;
}

// Tokens, as bytes; the states without them.
inline __m256i PopTokens(const Model& model, __m256i contexts, States256* s) {
  const States256 context =
      Unpack(FromBytes(contexts, _mm256_setzero_si256()));
  States256 token;
  for (int k = 0; k < 4; ++k) {
    const __m256i slot =
        _mm256_and_si256(s->v[k], _mm256_set1_epi32(kProbOne - 1));
    const __m256i found = _mm256_i32gather_epi32(
        reinterpret_cast<const int*>(model.slots.data()),
        _mm256_or_si256(_mm256_slli_epi32(context.v[k], kProbBits), slot), 4);
    token.v[k] = _mm256_and_si256(found, _mm256_set1_epi32(kTokens - 1));
    const __m256i rest = _mm256_and_si256(_mm256_srli_epi32(found, 4),
                                          _mm256_set1_epi32(kProbOne - 1));
    s->v[k] = _mm256_add_epi32(
        _mm256_mullo_epi32(_mm256_srli_epi32(s->v[k], kProbBits),
                           _mm256_srli_epi32(found, 16)),
        rest);
  }
  return ToBytes(Pack(token));
}

inline Row256 PopRaw(__m256i bits, States256* s) {
  const States256 by = Unpack(FromBytes(bits, _mm256_setzero_si256()));
  States256 raw;
  for (int k = 0; k < 4; ++k) {
    raw.v[k] = _mm256_andnot_si256(
        _mm256_sllv_epi32(_mm256_set1_epi32(-1), by.v[k]), s->v[k]);
    s->v[k] = _mm256_srlv_epi32(s->v[k], by.v[k]);
  }
  return Pack(raw);
}

template <class T, Coding kCoding>
inline void StoreValues(const Row256& biased, __m256 step, uint32_t first,
                        uint8_t* to, const Pitch& pitch) {
  for (int i = 0; i < kPieces; ++i) {
    const __m256i q = _mm256_xor_si256(biased.v[i / 2], Bias256());
    const __m128i eight = i % 2 != 0 ? _mm256_extracti128_si256(q, 1)
                                     : _mm256_castsi256_si128(q);
    Store8(Dequantize8<kCoding>(_mm256_cvtepi16_epi32(eight), step,
                                first + static_cast<uint32_t>(8 * i)),
           reinterpret_cast<T*>(to + pitch.piece[i]));
  }
}

template <class T, Coding kCoding>
bool DecodeChunk(const Quantizer& quant, const Model& model, int rows,
                 const DecodeJob& job) {
  const ChunkHead& head = *job.head;
  const uint16_t* const words = job.words;
  ChunkWork* const work = job.work;
  States256 s;
  const __m256i bottom = _mm256_set1_epi32(kStateLow);
  unsigned outside = 0;
  for (int k = 0; k < 4; ++k) {
    s.v[k] = _mm256_loadu_si256(
        reinterpret_cast<const __m256i*>(head.state) + k);
    // Negative where the top bit is set.
    outside |= Mask8(_mm256_cmpgt_epi32(bottom, s.v[k]));
  }
  if (outside != 0) return false;
  ClearPadding256(work);
  const Lanes256 lanes(head);
  const Contexts256 contexts(lanes, model.shift);
  const TokenTables tables(model.shift);
  const __m256i one = _mm256_set1_epi16(1), zero = _mm256_setzero_si256();
  const __m256 step = _mm256_set1_ps(quant.step);
  const uint16_t* end = words + job.n_words;
  uint8_t* to = static_cast<uint8_t*>(job.out);
  Row256 left = LoadRow(work->q), left_c = {{zero, zero}};
  for (int t = 0; t < rows; ++t) {
    const RowPlaces at = PlacesOf(t, model.stride);
    const Row256 above = LoadRow(work->q + at.above);
    const Row256 above_left = LoadRow(work->q + at.above_left);
    const Row256 median = {
        {Median256(left.v[0], above.v[0], above_left.v[0]),
         Median256(left.v[1], above.v[1], above_left.v[1])}};
    const __m256i context = contexts.Of(
        left_c, LoadRow(work->c + at.above), LoadRow(work->c + at.left2),
        LoadRow(work->c + at.above2), median);
    const __m256i tokens = PopTokens(model, context, &s);
    if (!Refill(&s, words, &end)) return false;
    Row256 u = tables.Bases(tokens);
    const __m256i bits = tables.Bits(tokens);
    if (!_mm256_testz_si256(bits, bits)) {
      const Row256 raw = PopRaw(bits, &s);
      for (int h = 0; h < 2; ++h) u.v[h] = _mm256_add_epi16(u.v[h], raw.v[h]);
      if (!Refill(&s, words, &end)) return false;
    }
    for (int h = 0; h < 2; ++h) {
      left_c.v[h] = Neighbour256(u.v[h], model.shift);
      const __m256i sign =
          _mm256_sub_epi16(zero, _mm256_and_si256(u.v[h], one));
      const __m256i predicted =
          Predict256(lanes, h, left.v[h], above.v[h], median.v[h]);
      const __m256i folded = _mm256_add_epi16(
          predicted, _mm256_xor_si256(_mm256_srli_epi16(u.v[h], 1), sign));
      // Beyond twice what is predicted: the code itself, biased.
      const __m256i itself = _mm256_and_si256(
          lanes.one_sided.v[h],
          Greater(u.v[h], _mm256_slli_epi16(predicted, 1)));
      left.v[h] = _mm256_blendv_epi8(
          folded, _mm256_xor_si256(u.v[h], Bias256()), itself);
    }
    StoreRow(left_c, work->c + at.here);
    StoreRow(left, work->q + at.here);
    if (to != nullptr) {
      StoreValues<T, kCoding>(
          left, step, job.counter + static_cast<uint32_t>(t * kLanes), to,
          job.pitch);
      to += job.pitch.row;
    }
  }
  bool even = end == words || (end == words + 1 && *words == 0);
  for (int k = 0; k < 4; ++k) {
    even &= Mask8(_mm256_cmpeq_epi32(s.v[k], bottom)) == 0xff;
  }
  return even;
}

template <class T, Coding kCoding>
void DecodeChunks(const Quantizer& quant, const Model& model, int rows,
                  DecodeJob* jobs, int n_jobs) {
  for (int i = 0; i < n_jobs; ++i) {
    jobs[i].ok = DecodeChunk<T, kCoding>(quant, model, rows, jobs[i]);
  }
}

}  // namespace

DecodeChunksFn Avx2DecodeChunks(DType dtype, Coding coding) {
  return SelectKernel(dtype, coding, [](auto v, auto c) -> DecodeChunksFn {
    return DecodeChunks<decltype(v), c()>;
  });
}

}  // namespace rans
}  // namespace comptrain

#else

namespace comptrain {
namespace rans {
DecodeChunksFn Avx2DecodeChunks(DType, Coding) { return nullptr; }
}  // namespace rans
}  // namespace comptrain

#endif

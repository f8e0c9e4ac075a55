// rans' coder with AVX2.
#include "cc/codec/rans/chunk.h"

#if defined(__AVX2__) && defined(__BMI2__) && defined(__F16C__) && \
    defined(__x86_64__)

#include "cc/codec/rans/vector_avx2.h"

namespace comptrain {
namespace rans {
namespace {

// Appends the low words of the states above `last`, and drops them.
inline void Emit(const States256& last, States256* s, uint16_t** out) {
  uint16_t* to = *out;
  for (int k = 0; k < 4; ++k) {
    const __m256i above = _mm256_cmpgt_epi32(s->v[k], last.v[k]);
    const unsigned chosen = Mask8(above);
    const __m256i words = _mm256_and_si256(
        Move8(s->v[k], kMoveTables.gather[chosen]), _mm256_set1_epi32(0xffff));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm_packus_epi32(_mm256_castsi256_si128(words),
                                      _mm256_extracti128_si256(words, 1)));
    to += __builtin_popcount(chosen);
    s->v[k] = _mm256_srlv_epi32(
        s->v[k], _mm256_and_si256(above, _mm256_set1_epi32(16)));
  }
  *out = to;
}

inline void PushRaw(const Row256& bits, const Row256& raw, States256* s,
                    uint16_t** out) {
  const States256 by = Unpack(bits), low = Unpack(raw);
  States256 last;
  for (int k = 0; k < 4; ++k) {
    last.v[k] = _mm256_sub_epi32(
        _mm256_srlv_epi32(_mm256_set1_epi32(INT32_MIN), by.v[k]),
        _mm256_set1_epi32(1));
  }
  Emit(last, s, out);
  for (int k = 0; k < 4; ++k) {
    s->v[k] = _mm256_or_si256(_mm256_sllv_epi32(s->v[k], by.v[k]), low.v[k]);
  }
}

// state / f << kProbBits + state % f + start, for state < f << 19. The float
// quotient is at most 1 too small, never too large.
inline __m256i Push(__m256i state, __m256i f, __m256i start) {
  const __m256 quotient = _mm256_mul_ps(
      _mm256_div_ps(_mm256_cvtepi32_ps(state), _mm256_cvtepi32_ps(f)),
      _mm256_set1_ps(1.0f - 0x1p-22f));
  const __m256i q = _mm256_cvttps_epi32(quotient);
  const __m256i rest = _mm256_sub_epi32(state, _mm256_mullo_epi32(q, f));
  const __m256i pushed = _mm256_add_epi32(
      _mm256_add_epi32(_mm256_slli_epi32(q, kProbBits), start), rest);
  const __m256i fits = _mm256_cmpgt_epi32(f, rest);
  return _mm256_add_epi32(
      pushed, _mm256_andnot_si256(
                  fits, _mm256_sub_epi32(_mm256_set1_epi32(kProbOne), f)));
}

inline void PushTokens(const Model& model, const Row256& index, States256* s,
                       uint16_t** out) {
  const States256 at = Unpack(index);
  States256 f, start, last;
  for (int k = 0; k < 4; ++k) {
    const __m256i packed = _mm256_i32gather_epi32(
        reinterpret_cast<const int*>(model.packed), at.v[k], 4);
    f.v[k] = _mm256_srli_epi32(packed, 16);
    start.v[k] = _mm256_and_si256(packed, _mm256_set1_epi32(0xffff));
    last.v[k] = _mm256_sub_epi32(_mm256_slli_epi32(f.v[k], 31 - kProbBits),
                                 _mm256_set1_epi32(1));
  }
  Emit(last, s, out);
  for (int k = 0; k < 4; ++k) {
    s->v[k] = Push(s->v[k], f.v[k], start.v[k]);
  }
}

void EncodeChunks(const Model& model, int rows, EncodeJob* job,
                  int /*n_jobs*/) {
  const ChunkWork* const work = job->work;
  const TokenTables tables(model.shift);
  const __m256i zero = _mm256_setzero_si256();
  const __m256i bottom = _mm256_set1_epi32(kStateLow);
  const __m256i token_bits = _mm256_set1_epi16(kTokens - 1);
  States256 s = {{bottom, bottom, bottom, bottom}};
  uint16_t* out = job->work->words;
  for (int t = rows - 1; t >= 0; --t) {
    const int at = (t + kPadRows) * kLanes;
    const Row256 index = LoadRow(work->index + at);
    const __m256i tokens =
        ToBytes({{_mm256_and_si256(index.v[0], token_bits),
                  _mm256_and_si256(index.v[1], token_bits)}});
    const __m256i bits = tables.Bits(tokens);
    if (!_mm256_testz_si256(bits, bits)) {
      const Row256 u = LoadRow(work->u + at), bases = tables.Bases(tokens);
      PushRaw(FromBytes(bits, zero),
              {{_mm256_sub_epi16(u.v[0], bases.v[0]),
                _mm256_sub_epi16(u.v[1], bases.v[1])}},
              &s, &out);
    }
    PushTokens(model, index, &s, &out);
  }
  for (int k = 0; k < 4; ++k) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(job->head->state) + k, s.v[k]);
  }
  job->n_words = static_cast<int>(out - work->words);
}

void MaskRows(const ChunkWork& work, int first, int last, uint32_t* mask) {
  for (int t = first; t < last; ++t) {
    const Row256 q = LoadRow(work.q + (t + kPadRows) * kLanes);
    const __m256i zero = _mm256_permute4x64_epi64(
        _mm256_packs_epi16(_mm256_cmpeq_epi16(q.v[0], Bias256()),
                           _mm256_cmpeq_epi16(q.v[1], Bias256())),
        0xd8);
    *mask++ = ~static_cast<uint32_t>(_mm256_movemask_epi8(zero));
  }
}

}  // namespace

ChunkKernels Avx2ChunkKernels(DType dtype, Coding coding) {
  return {Avx2Prepare(dtype, coding), EncodeChunks,
          Avx2DecodeChunks(dtype, coding), MaskRows, true, 1};
}

}  // namespace rans
}  // namespace comptrain

#else

namespace comptrain {
namespace rans {
ChunkKernels Avx2ChunkKernels(DType, Coding) { return {}; }
}  // namespace rans
}  // namespace comptrain

#endif

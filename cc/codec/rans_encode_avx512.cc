// Codec B's coder with AVX-512 (BW, VL, DQ, VBMI, VBMI2).
#include "cc/codec/rans_chunk.h"

#if defined(__AVX512VBMI2__) && defined(__AVX512VBMI__) && \
    defined(__AVX512BW__) && defined(__x86_64__)

#include "cc/codec/rans_avx512.h"

namespace comptrain {
namespace rans {
namespace {

struct States {
  __m512i a, b;
};

// Appends the low words of the states chosen, and drops them.
inline void Emit(__mmask16 a, __mmask16 b, States* s, uint16_t** out) {
  alignas(64) static constexpr uint16_t kEven[32] = {
      0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
      32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
  const __mmask32 chosen = _mm512_kunpackw(b, a);
  const __m512i words =
      _mm512_permutex2var_epi16(s->a, _mm512_load_si512(kEven), s->b);
  _mm512_storeu_si512(*out, _mm512_maskz_compress_epi16(chosen, words));
  *out += __builtin_popcount(chosen);
  s->a = _mm512_mask_srli_epi32(s->a, a, s->a, 16);
  s->b = _mm512_mask_srli_epi32(s->b, b, s->b, 16);
}

inline void PushRaw(__m512i bits, __m512i raw, States* s, uint16_t** out) {
  const __m512i top = _mm512_set1_epi32(INT32_MIN);
  const __m512i bits_a = Low16(bits), bits_b = High16(bits);
  Emit(_mm512_cmpge_epu32_mask(s->a, _mm512_srlv_epi32(top, bits_a)),
       _mm512_cmpge_epu32_mask(s->b, _mm512_srlv_epi32(top, bits_b)), s, out);
  s->a = _mm512_or_si512(_mm512_sllv_epi32(s->a, bits_a), Low16(raw));
  s->b = _mm512_or_si512(_mm512_sllv_epi32(s->b, bits_b), High16(raw));
}

// To 2^-22: an estimate and a step of Newton's.
inline __m512 Reciprocal(__m512 f) {
  const __m512 r = _mm512_rcp14_ps(f);
  return _mm512_mul_ps(r, _mm512_fnmadd_ps(f, r, _mm512_set1_ps(2.0f)));
}

// state / f << kProbBits + state % f + start, for state < f << 19. The float
// quotient is at most 1 too small, never too large.
inline __m512i Push(__m512i state, __m512i f, __m512i start) {
  const __m512 quotient = _mm512_mul_ps(
      _mm512_mul_ps(_mm512_cvtepi32_ps(state),
                    Reciprocal(_mm512_cvtepi32_ps(f))),
      _mm512_set1_ps(1.0f - 0x1p-21f));
  const __m512i q = _mm512_cvttps_epi32(quotient);
  const __m512i rest = _mm512_sub_epi32(state, _mm512_mullo_epi32(q, f));
  const __m512i pushed = _mm512_add_epi32(
      _mm512_add_epi32(_mm512_slli_epi32(q, kProbBits), start), rest);
  return _mm512_mask_add_epi32(
      pushed, _mm512_cmpge_epi32_mask(rest, f), pushed,
      _mm512_sub_epi32(_mm512_set1_epi32(kProbOne), f));
}

// start[token + kOffset] of each lane's context.
template <int kOffset>
inline __m512i StartOf(const Model& model, __m512i index, __mmask32 m2,
                       __mmask32 m4, __mmask32 m8) {
  const auto pair = [&](int k) {
    return _mm512_permutex2var_epi16(LoadRow(model.start[k + kOffset]), index,
                                     LoadRow(model.start[k + kOffset + 1]));
  };
  const auto four = [&](int k) {
    return _mm512_mask_mov_epi16(pair(k), m2, pair(k + 2));
  };
  return _mm512_mask_mov_epi16(
      _mm512_mask_mov_epi16(four(0), m4, four(4)), m8,
      _mm512_mask_mov_epi16(four(8), m4, four(12)));
}

inline void PushTokens(const Model& model, __m512i context, __m512i token,
                       States* s, uint16_t** out) {
  const __m512i index = _mm512_or_si512(
      context, _mm512_slli_epi16(
                   _mm512_and_si512(token, _mm512_set1_epi16(1)), 5));
  const __mmask32 m2 = _mm512_test_epi16_mask(token, _mm512_set1_epi16(2));
  const __mmask32 m4 = _mm512_test_epi16_mask(token, _mm512_set1_epi16(4));
  const __mmask32 m8 = _mm512_test_epi16_mask(token, _mm512_set1_epi16(8));
  const __m512i start = StartOf<0>(model, index, m2, m4, m8);
  const __m512i f =
      _mm512_sub_epi16(StartOf<1>(model, index, m2, m4, m8), start);
  const __m512i f_a = Low16(f), f_b = High16(f);
  constexpr int kRoom = 31 - kProbBits;
  Emit(_mm512_cmpge_epu32_mask(s->a, _mm512_slli_epi32(f_a, kRoom)),
       _mm512_cmpge_epu32_mask(s->b, _mm512_slli_epi32(f_b, kRoom)), s, out);
  s->a = Push(s->a, f_a, Low16(start));
  s->b = Push(s->b, f_b, High16(start));
}

int EncodeChunk(const Model& model, int rows, ChunkWork* work,
                ChunkHead* head) {
  const __m512i bases = TokenBases(model.shift);
  const __m512i raw_bits = TokenRawBits(model.shift);
  States s = {_mm512_set1_epi32(kStateLow), _mm512_set1_epi32(kStateLow)};
  uint16_t* out = work->words;
  for (int t = rows - 1; t >= 0; --t) {
    const int at = (t + kPadRows) * kLanes;
    const __m512i index = LoadRow(work->index + at);
    const __m512i context = _mm512_srli_epi16(index, 4);
    const __m512i token =
        _mm512_and_si512(index, _mm512_set1_epi16(kTokens - 1));
    const __m512i bits = _mm512_permutexvar_epi16(token, raw_bits);
    if (_mm512_test_epi16_mask(bits, bits) != 0) {
      PushRaw(bits,
              _mm512_sub_epi16(LoadRow(work->u + at),
                               _mm512_permutexvar_epi16(token, bases)),
              &s, &out);
    }
    // Looked up in registers: gathers would take longer.
    PushTokens(model, context, token, &s, &out);
  }
  _mm512_storeu_si512(head->state, s.a);
  _mm512_storeu_si512(head->state + 16, s.b);
  return static_cast<int>(out - work->words);
}

void MaskRows(const ChunkWork& work, int first, int last, uint32_t* mask) {
  for (int t = first; t < last; ++t) {
    *mask++ = _mm512_cmpneq_epu16_mask(
        LoadRow(work.q + (t + kPadRows) * kLanes), Bias512());
  }
}

}  // namespace

ChunkKernels Avx512ChunkKernels(DType dtype, Coding coding) {
  return {Avx512Prepare(dtype, coding), EncodeChunk,
          Avx512DecodeChunks(dtype, coding), MaskRows, false, 2};
}

}  // namespace rans
}  // namespace comptrain

#else

namespace comptrain {
namespace rans {
ChunkKernels Avx512ChunkKernels(DType, Coding) { return {}; }
}  // namespace rans
}  // namespace comptrain

#endif

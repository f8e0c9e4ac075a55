// rans' coder with AVX2.
#include "cc/codec/rans/row_vector.h"

namespace comptrain::rans {
namespace {

// Appends the low words of the states above `last`, and drops them.
inline void Emit(const States& last, States* s, uint16_t** out) {
  uint16_t* to = *out;
  for (int k = 0; k < 4; ++k) {
    const Ints above = _mm256_cmpgt_epi32(s->v[k], last.v[k]);
    const unsigned chosen = BitsOf(above);
    const Ints words = _mm256_and_si256(
        Move8(s->v[k], kMoveTables.gather[chosen]), AllInts(0xffff));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm_packus_epi32(Low(words), High(words)));
    to += __builtin_popcount(chosen);
    s->v[k] = _mm256_srlv_epi32(s->v[k], _mm256_and_si256(above, AllInts(16)));
  }
  *out = to;
}

inline void PushRaw(const Row& bits, const Row& raw, States* s,
                    uint16_t** out) {
  const States by = Unpack(bits), low = Unpack(raw);
  States last;
  for (int k = 0; k < 4; ++k) {
    last.v[k] = _mm256_sub_epi32(
        _mm256_srlv_epi32(AllInts(0x80000000u), by.v[k]), AllInts(1));
  }
  Emit(last, s, out);
  for (int k = 0; k < 4; ++k) {
    s->v[k] = _mm256_or_si256(_mm256_sllv_epi32(s->v[k], by.v[k]), low.v[k]);
  }
}

// state / f << kProbBits + state % f + start, for state < f << 19. The float
// quotient is at most 1 too small, never too large.
inline Ints Push(Ints state, Ints f, Ints start) {
  const Floats quotient = _mm256_mul_ps(
      _mm256_div_ps(_mm256_cvtepi32_ps(state), _mm256_cvtepi32_ps(f)),
      AllFloats(1.0f - 0x1p-22f));
  const Ints q = _mm256_cvttps_epi32(quotient);
  const Ints rest = _mm256_sub_epi32(state, _mm256_mullo_epi32(q, f));
  const Ints pushed = _mm256_add_epi32(
      _mm256_add_epi32(_mm256_slli_epi32(q, kProbBits), start), rest);
  const Ints fits = _mm256_cmpgt_epi32(f, rest);
  return _mm256_add_epi32(
      pushed,
      _mm256_andnot_si256(fits, _mm256_sub_epi32(AllInts(kProbOne), f)));
}

inline void PushTokens(const Model& model, const Row& index, States* s,
                       uint16_t** out) {
  const States at = Unpack(index);
  States f, start, last;
  for (int k = 0; k < 4; ++k) {
    const Ints packed = _mm256_i32gather_epi32(
        reinterpret_cast<const int*>(model.packed), at.v[k], 4);
    f.v[k] = _mm256_srli_epi32(packed, 16);
    start.v[k] = _mm256_and_si256(packed, AllInts(0xffff));
    last.v[k] =
        _mm256_sub_epi32(_mm256_slli_epi32(f.v[k], 31 - kProbBits), AllInts(1));
  }
  Emit(last, s, out);
  for (int k = 0; k < 4; ++k) {
    s->v[k] = Push(s->v[k], f.v[k], start.v[k]);
  }
}

}  // namespace

void COMPTRAIN_NAME(EncodeChunks)(const Model& model, int rows, EncodeJob* job,
                                  int /*n_jobs*/) {
  const ChunkWork* const work = job->work;
  const TokenTables tables(model.shift);
  const Ints zero = Ints{};
  const Ints bottom = AllInts(kStateLow);
  const Ints token_bits = All16(kTokens - 1);
  States s = {{bottom, bottom, bottom, bottom}};
  uint16_t* out = job->work->words;
  for (int t = rows - 1; t >= 0; --t) {
    const int at = (t + kPadRows) * kLanes;
    const Row index = LoadRow(work->index + at);
    const Ints tokens =
        ToBytes({{(index.v[0] & token_bits), (index.v[1] & token_bits)}});
    const Ints bits = tables.Bits(tokens);
    if (!_mm256_testz_si256(bits, bits)) {
      const Row u = LoadRow(work->u + at), bases = tables.Bases(tokens);
      PushRaw(FromBytes(bits, zero),
              {{_mm256_sub_epi16(u.v[0], bases.v[0]),
                _mm256_sub_epi16(u.v[1], bases.v[1])}},
              &s, &out);
    }
    PushTokens(model, index, &s, &out);
  }
  for (int k = 0; k < 4; ++k) {
    StoreInts(s.v[k], job->head->state + 8 * k);
  }
  job->n_words = static_cast<int>(out - work->words);
}

void COMPTRAIN_NAME(MaskRows)(const ChunkWork& work, int first, int last,
                              uint32_t* mask) {
  for (int t = first; t < last; ++t) {
    const Row q = LoadRow(work.q + (t + kPadRows) * kLanes);
    const Ints zero = _mm256_permute4x64_epi64(
        _mm256_packs_epi16(_mm256_cmpeq_epi16(q.v[0], Bias()),
                           _mm256_cmpeq_epi16(q.v[1], Bias())),
        0xd8);
    *mask++ = ~static_cast<uint32_t>(_mm256_movemask_epi8(zero));
  }
}

}  // namespace comptrain::rans

// rans' coder with AVX-512 (BW, VL, DQ, VBMI, VBMI2).
#include "cc/codec/rans/row_vector.h"

#include <algorithm>

namespace comptrain::rans {
namespace {

struct States {
  Ints a, b;
};

// Appends the low words of the states chosen, and drops them.
inline void Emit(__mmask16 a, __mmask16 b, States* s, uint16_t** out) {
  alignas(64) static constexpr uint16_t kEven[32] = {
      0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
      32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
  const __mmask32 chosen = _mm512_kunpackw(b, a);
  const Ints words =
      _mm512_permutex2var_epi16(s->a, _mm512_load_si512(kEven), s->b);
  _mm512_storeu_si512(*out, _mm512_maskz_compress_epi16(chosen, words));
  *out += __builtin_popcount(chosen);
  s->a = _mm512_mask_srli_epi32(s->a, a, s->a, 16);
  s->b = _mm512_mask_srli_epi32(s->b, b, s->b, 16);
}

// state / f << kProbBits + state % f + start, for state < f << 19. The float
// quotient is at most 1 too small, never too large: the reciprocal, an estimate
// to 2^-14 and a step of Newton's, is made 2^-21 too small on purpose.
inline Ints Push(Ints state, Ints f, Ints start) {
  const Floats divisor = _mm512_cvtepi32_ps(f);
  const Floats estimate = _mm512_rcp14_ps(divisor);
  const Floats reciprocal = _mm512_mul_ps(
      estimate,
      _mm512_fnmadd_ps(divisor, estimate, AllFloats(2.0f - 0x1p-21f)));
  const Ints q =
      _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(state), reciprocal));
  const Ints rest = _mm512_sub_epi32(state, _mm512_mullo_epi32(q, f));
  const Ints pushed = _mm512_add_epi32(
      _mm512_add_epi32(_mm512_slli_epi32(q, kProbBits), start), rest);
  return _mm512_mask_add_epi32(pushed, _mm512_cmpge_epi32_mask(rest, f), pushed,
                               _mm512_sub_epi32(AllInts(kProbOne), f));
}

// What a row of two chunks' codes is looked up in: kept in registers or close
// by, where gathers would take longer.
struct Tables {
  static constexpr int kSize = kContexts * kTokens;
  // By context * kTokens + token: the bytes of start | frequency << 12.
  alignas(64) uint8_t bytes[3][kSize];
  const Ints bases, raw_bits;

  explicit Tables(const Model& model)
      : bases(TokenBases(model.shift)), raw_bits(TokenRawBits(model.shift)) {
    for (int i = 0; i < kSize; ++i) {
      const uint32_t packed = model.packed[i];
      const uint32_t entry = (packed & 0xffff) | packed >> 16 << kProbBits;
      for (int k = 0; k < 3; ++k) {
        bytes[k][i] = static_cast<uint8_t>(entry >> 8 * k);
      }
    }
  }

  // Byte k of the entries at low + 128 m7 + 256 m8.
  Ints Bytes(int k, Ints low, __mmask64 m7, __mmask64 m8) const {
    const auto quarter = [&](int i) {
      const uint8_t* from = bytes[k] + 128 * i;
      return _mm512_permutex2var_epi8(_mm512_load_si512(from), low,
                                      _mm512_load_si512(from + 64));
    };
    return _mm512_mask_mov_epi8(
        _mm512_mask_mov_epi8(quarter(0), m7, quarter(1)), m8,
        _mm512_mask_mov_epi8(quarter(2), m7, quarter(3)));
  }
};

// A row of entries, u32 in the order of the states.
struct Entries {
  Ints a, b;
};

// Two rows' entries: looked up together, 64 bytes at a time.
inline void LookUp(const Tables& tables, Ints index, Ints index_before,
                   Entries* row, Entries* before) {
  const Ints byte = All16(0xff);
  const Ints low = _mm512_packus_epi16((index & byte), (index_before & byte));
  const Ints high = _mm512_packus_epi16(_mm512_srli_epi16(index, 8),
                                        _mm512_srli_epi16(index_before, 8));
  const __mmask64 m7 = _mm512_movepi8_mask(low);
  const __mmask64 m8 = _mm512_test_epi8_mask(high, high);
  const Ints first = tables.Bytes(0, low, m7, m8);
  const Ints second = tables.Bytes(1, low, m7, m8);
  const Ints third = tables.Bytes(2, low, m7, m8);
  const Ints zero = Ints{};
  const auto entries = [](Ints words, Ints top) -> Entries {
    return {_mm512_unpacklo_epi16(words, top),
            _mm512_unpackhi_epi16(words, top)};
  };
  *row = entries(_mm512_unpacklo_epi8(first, second),
                 _mm512_unpacklo_epi8(third, zero));
  *before = entries(_mm512_unpackhi_epi8(first, second),
                    _mm512_unpackhi_epi8(third, zero));
}

// A chunk on its way, from its last row to its first. The steps of two rows
// are to be called in their order.
struct Chunk {
  States s = {AllInts(kStateLow), AllInts(kStateLow)};
  Entries row, before;
  ChunkWork* const work;
  uint16_t* out;

  explicit Chunk(const EncodeJob& job) : work(job.work), out(work->words) {}

  Ints IndexOf(int t) const {
    return LoadInts(work->index + (t + kPadRows) * kLanes);
  }

  // Rows t and t - 1, if there is one.
  [[gnu::always_inline]] void LookUpTwo(const Tables& tables, int t) {
    LookUp(tables, IndexOf(t), IndexOf(std::max(t - 1, 0)), &row, &before);
  }

  [[gnu::always_inline]] void PushRaw(const Tables& tables, int t) {
    const Ints token = _mm512_and_si512(IndexOf(t), All16(kTokens - 1));
    const Ints bits = _mm512_permutexvar_epi16(token, tables.raw_bits);
    if (_mm512_test_epi16_mask(bits, bits) == 0) return;
    const Ints raw =
        _mm512_sub_epi16(LoadInts(work->u + (t + kPadRows) * kLanes),
                         _mm512_permutexvar_epi16(token, tables.bases));
    const Ints top = AllInts(0x80000000u);
    const Ints bits_a = Low16(bits), bits_b = High16(bits);
    Emit(_mm512_cmpge_epu32_mask(s.a, _mm512_srlv_epi32(top, bits_a)),
         _mm512_cmpge_epu32_mask(s.b, _mm512_srlv_epi32(top, bits_b)), &s,
         &out);
    s.a = _mm512_or_si512(_mm512_sllv_epi32(s.a, bits_a), Low16(raw));
    s.b = _mm512_or_si512(_mm512_sllv_epi32(s.b, bits_b), High16(raw));
  }

  [[gnu::always_inline]] void PushTokens(const Entries& e) {
    const Ints f_a = _mm512_srli_epi32(e.a, kProbBits);
    const Ints f_b = _mm512_srli_epi32(e.b, kProbBits);
    constexpr int kRoom = 31 - kProbBits;
    Emit(_mm512_cmpge_epu32_mask(s.a, _mm512_slli_epi32(f_a, kRoom)),
         _mm512_cmpge_epu32_mask(s.b, _mm512_slli_epi32(f_b, kRoom)), &s, &out);
    const Ints start = AllInts(kProbOne - 1);
    s.a = Push(s.a, f_a, (e.a & start));
    s.b = Push(s.b, f_b, (e.b & start));
  }

  void Finish(EncodeJob* job) const {
    StoreInts(s.a, job->head->state);
    StoreInts(s.b, job->head->state + 16);
    job->n_words = static_cast<int>(out - work->words);
  }
};

// A chunk's steps wait for each other: several chunks take turns.
template <class... Chunks>
inline void EncodeRows(const Tables& tables, int rows, Chunks&... c) {
  for (int t = rows - 1; t >= 0; t -= 2) {
    (c.LookUpTwo(tables, t), ...);
    (c.PushRaw(tables, t), ...);
    (c.PushTokens(c.row), ...);
    if (t == 0) break;
    (c.PushRaw(tables, t - 1), ...);
    (c.PushTokens(c.before), ...);
  }
}

}  // namespace

void COMPTRAIN_NAME(EncodeChunks)(const Model& model, int rows, EncodeJob* jobs,
                                  int n_jobs) {
  const Tables tables(model);
  Chunk a(jobs[0]);
  if (n_jobs == 1) {
    EncodeRows(tables, rows, a);
  } else {
    Chunk b(jobs[1]);
    EncodeRows(tables, rows, a, b);
    b.Finish(jobs + 1);
  }
  a.Finish(jobs);
}

void COMPTRAIN_NAME(MaskRows)(const ChunkWork& work, int first, int last,
                              uint32_t* mask) {
  for (int t = first; t < last; ++t) {
    *mask++ = _mm512_cmpneq_epu16_mask(
        LoadInts(work.q + (t + kPadRows) * kLanes), Bias());
  }
}

}  // namespace comptrain::rans

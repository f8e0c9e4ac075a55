// rans' decoder with AVX-512 (BW, VL, DQ, VBMI, VBMI2).
#include "cc/codec/rans/chunk.h"

#if defined(__AVX512VBMI2__) && defined(__AVX512VBMI__) && \
    defined(__AVX512BW__) && defined(__x86_64__)

#include "cc/codec/stream/quantize_avx512.h"
#include "cc/codec/stream/select_kernel.h"
#include "cc/codec/rans/vector_avx512.h"

namespace comptrain {
namespace rans {
namespace {

struct States {
  __m512i a, b;
};

// What was found for each lane's slot.
struct Found {
  __m512i token, start, end;
};

// A binary search over the starts of a lane's context: tables of 32 contexts
// are looked up in registers.
inline Found Search(const Model& model, __m512i context, __m512i slot) {
  const auto start = [&](int k) { return LoadRow(model.start[k]); };
  const __m512i bit = _mm512_set1_epi16(kContexts);
  Found f;
  f.start = _mm512_setzero_si512();
  f.end = _mm512_set1_epi16(kProbOne);
  // Tokens from 8 on?
  __m512i v = _mm512_permutexvar_epi16(context, start(8));
  const __mmask32 m8 = _mm512_cmpge_epu16_mask(slot, v);
  f.start = _mm512_mask_mov_epi16(f.start, m8, v);
  f.end = _mm512_mask_mov_epi16(v, m8, f.end);
  __m512i index = _mm512_mask_add_epi16(context, m8, context, bit);
  v = _mm512_permutex2var_epi16(start(4), index, start(12));
  const __mmask32 m4 = _mm512_cmpge_epu16_mask(slot, v);
  f.start = _mm512_mask_mov_epi16(f.start, m4, v);
  f.end = _mm512_mask_mov_epi16(v, m4, f.end);
  index = _mm512_mask_add_epi16(context, m4, context, bit);
  v = _mm512_mask_mov_epi16(
      _mm512_permutex2var_epi16(start(2), index, start(6)), m8,
      _mm512_permutex2var_epi16(start(10), index, start(14)));
  const __mmask32 m2 = _mm512_cmpge_epu16_mask(slot, v);
  f.start = _mm512_mask_mov_epi16(f.start, m2, v);
  f.end = _mm512_mask_mov_epi16(v, m2, f.end);
  index = _mm512_mask_add_epi16(context, m2, context, bit);
  v = _mm512_mask_mov_epi16(
      _mm512_mask_mov_epi16(
          _mm512_permutex2var_epi16(start(1), index, start(3)), m4,
          _mm512_permutex2var_epi16(start(5), index, start(7))),
      m8,
      _mm512_mask_mov_epi16(
          _mm512_permutex2var_epi16(start(9), index, start(11)), m4,
          _mm512_permutex2var_epi16(start(13), index, start(15))));
  const __mmask32 m1 = _mm512_cmpge_epu16_mask(slot, v);
  f.start = _mm512_mask_mov_epi16(f.start, m1, v);
  f.end = _mm512_mask_mov_epi16(v, m1, f.end);
  f.token = _mm512_maskz_set1_epi16(m8, 8);
  f.token = _mm512_mask_add_epi16(f.token, m4, f.token, _mm512_set1_epi16(4));
  f.token = _mm512_mask_add_epi16(f.token, m2, f.token, _mm512_set1_epi16(2));
  f.token = _mm512_mask_add_epi16(f.token, m1, f.token, _mm512_set1_epi16(1));
  return f;
}

// Takes words off the end, one for each state that fell below the range.
inline bool Refill(States* s, const uint16_t* begin, const uint16_t** end) {
  const __m512i bottom = _mm512_set1_epi32(kStateLow);
  const __mmask16 a = _mm512_cmplt_epu32_mask(s->a, bottom);
  const __mmask16 b = _mm512_cmplt_epu32_mask(s->b, bottom);
  const __mmask32 low = _mm512_kunpackw(b, a);
  const int n = __builtin_popcount(low);
  if (*end - begin < n) return false;
  *end -= n;
  const __m512i words =
      _mm512_maskz_expand_epi16(low, _mm512_loadu_si512(*end));
  s->a = _mm512_mask_or_epi32(
      s->a, a, _mm512_slli_epi32(s->a, 16),
      _mm512_cvtepu16_epi32(_mm512_castsi512_si256(words)));
  s->b = _mm512_mask_or_epi32(
      s->b, b, _mm512_slli_epi32(s->b, 16),
      _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(words, 1)));
  return true;
}

inline __m512i Pop(__m512i state, __m512i f, __m512i above_start) {
  return _mm512_add_epi32(
      _mm512_mullo_epi32(_mm512_srli_epi32(state, kProbBits), f), above_start);
}

inline __m512i PopRaw(__m512i bits, States* s) {
  const __m512i bits_a = Low16(bits), bits_b = High16(bits);
  const __m512i ones = _mm512_set1_epi32(-1);
  const __m512i raw = _mm512_packus_epi32(
      _mm512_andnot_si512(_mm512_sllv_epi32(ones, bits_a), s->a),
      _mm512_andnot_si512(_mm512_sllv_epi32(ones, bits_b), s->b));
  s->a = _mm512_srlv_epi32(s->a, bits_a);
  s->b = _mm512_srlv_epi32(s->b, bits_b);
  return raw;
}

// The code that is coded as u and predicted as p.
inline __m512i Unfold(__m512i u, __m512i p, __mmask32 negative) {
  const __m512i sign = _mm512_sub_epi16(
      _mm512_setzero_si512(), _mm512_and_si512(u, _mm512_set1_epi16(1)));
  const __m512i folded = _mm512_add_epi16(
      p, _mm512_xor_si512(_mm512_srli_epi16(u, 1), sign));
  return _mm512_mask_add_epi16(
      folded,
      _mm512_mask_cmpgt_epu16_mask(~negative, u, _mm512_slli_epi16(p, 1)), u,
      Bias512());
}

template <class T, Coding kCoding>
inline void StoreRow(__m512i biased, __m512 step, uint32_t first, uint8_t* to,
                     const Pitch& pitch) {
  const __m512i q = _mm512_xor_si512(biased, Bias512());
  const __m512 a = Dequantize16<kCoding>(
      _mm512_cvtepi16_epi32(_mm512_castsi512_si256(q)), step, first);
  const __m512 b = Dequantize16<kCoding>(
      _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(q, 1)), step,
      first + 16);
  const auto piece = [&](int i) {
    return reinterpret_cast<T*>(to + pitch.piece[i]);
  };
  if (pitch.piece[1] == 8 * sizeof(T)) {
    Store16(a, piece(0), kAll16);
    Store16(b, piece(2), kAll16);
  } else {
    StoreEights(a, piece(0), piece(1));
    StoreEights(b, piece(2), piece(3));
  }
}

inline bool AllInRange(const States& s) {
  const __m512i last = _mm512_set1_epi32(INT32_MAX - kStateLow);
  const __m512i bottom = _mm512_set1_epi32(kStateLow);
  return (_mm512_cmpgt_epu32_mask(_mm512_sub_epi32(s.a, bottom), last) |
          _mm512_cmpgt_epu32_mask(_mm512_sub_epi32(s.b, bottom), last)) == 0;
}

// What is the same for all rows and chunks.
struct Constants {
  const Quantizer& quant;
  const Model& model;
  const __m512i bases = TokenBases(model.shift);
  const __m512i raw_bits = TokenRawBits(model.shift);
  const __m512 step = _mm512_set1_ps(quant.step);
  const Contexts512 contexts{model.shift};
};

// A chunk, and what is known of its next row. The steps of a row are to be
// called in their order; a chunk that is out of words goes on with others, and
// is not ok.
struct Chunk {
  States s;
  __m512i left, left_c, median, token, bits;
  const Lanes512 lanes;
  const uint16_t* const words;
  const uint16_t* end;
  ChunkWork* const work;
  uint8_t* to;
  const Pitch pitch;
  const uint32_t counter;
  bool ok;

  explicit Chunk(const DecodeJob& job)
      : s{_mm512_loadu_si512(job.head->state),
          _mm512_loadu_si512(job.head->state + 16)},
        lanes(*job.head),
        words(job.words),
        end(words + job.n_words),
        work(job.work),
        to(static_cast<uint8_t*>(job.out)),
        pitch(job.pitch),
        counter(job.counter),
        ok(AllInRange(s)) {
    ClearPadding512(work);
    left = LoadRow(work->q);
    left_c = median = token = bits = _mm512_setzero_si512();
  }

  // Tokens, and states without them.
  [[gnu::always_inline]] void PopTokens(const Constants& k, const RowPlaces& at) {
    median = Median512(left, LoadRow(work->q + at.above),
                       LoadRow(work->q + at.above_left));
    const __m512i context =
        k.contexts.Of(lanes, left_c, LoadRow(work->c + at.above),
                      _mm512_add_epi16(LoadRow(work->c + at.left2),
                                       LoadRow(work->c + at.above2)),
                      median);
    const __m512i slots = _mm512_set1_epi32(kProbOne - 1);
    const __m512i slot = _mm512_packus_epi32(_mm512_and_si512(s.a, slots),
                                             _mm512_and_si512(s.b, slots));
    const Found found = Search(k.model, context, slot);
    const __m512i f = _mm512_sub_epi16(found.end, found.start);
    const __m512i rest = _mm512_sub_epi16(slot, found.start);
    token = found.token;
    bits = _mm512_permutexvar_epi16(token, k.raw_bits);
    s.a = Pop(s.a, Low16(f), Low16(rest));
    s.b = Pop(s.b, High16(f), High16(rest));
  }

  [[gnu::always_inline]] void TakeWords() { ok &= Refill(&s, words, &end); }

  // u, but for its raw bits.
  [[gnu::always_inline]] __m512i First(const Constants& k) const {
    return _mm512_permutexvar_epi16(token, k.bases);
  }

  template <class T, Coding kCoding>
  [[gnu::always_inline]] void Finish(const Constants& k, const RowPlaces& at, __m512i u,
              uint32_t first) {
    left_c = Neighbour512(u, k.model.shift);
    _mm512_store_si512(work->c + at.here, left_c);
    left = lanes.plain
               ? _mm512_xor_si512(u, Bias512())
               : Unfold(u,
                        Predict512(lanes, left, LoadRow(work->q + at.above),
                                   median),
                        lanes.negative);
    _mm512_store_si512(work->q + at.here, left);
    if (to == nullptr) return;
    StoreRow<T, kCoding>(left, k.step, counter + first, to, pitch);
    to += pitch.row;
  }

  bool CameOutEven() const {
    const __m512i bottom = _mm512_set1_epi32(kStateLow);
    return ok && (end == words || (end == words + 1 && *words == 0)) &&
           (_mm512_cmpneq_epu32_mask(s.a, bottom) |
            _mm512_cmpneq_epu32_mask(s.b, bottom)) == 0;
  }
};

// A chunk's steps wait for each other: two chunks take turns.
template <class T, Coding kCoding>
void DecodeTwo(const Quantizer& quant, const Model& model, int rows,
               DecodeJob* jobs) {
  const Constants k{quant, model};
  Chunk a(jobs[0]), b(jobs[1]);
  for (int t = 0; t < rows && (a.ok || b.ok); ++t) {
    const RowPlaces at = PlacesOf(t, model.stride);
    a.PopTokens(k, at);
    b.PopTokens(k, at);
    a.TakeWords();
    b.TakeWords();
    __m512i u_a = a.First(k), u_b = b.First(k);
    const __m512i any = _mm512_or_si512(a.bits, b.bits);
    if (_mm512_test_epi16_mask(any, any) != 0) {
      u_a = _mm512_add_epi16(u_a, PopRaw(a.bits, &a.s));
      u_b = _mm512_add_epi16(u_b, PopRaw(b.bits, &b.s));
      a.TakeWords();
      b.TakeWords();
    }
    const uint32_t first = static_cast<uint32_t>(t * kLanes);
    a.Finish<T, kCoding>(k, at, u_a, first);
    b.Finish<T, kCoding>(k, at, u_b, first);
  }
  jobs[0].ok = a.CameOutEven();
  jobs[1].ok = b.CameOutEven();
}

template <class T, Coding kCoding>
void DecodeChunks(const Quantizer& quant, const Model& model, int rows,
                  DecodeJob* jobs, int n_jobs) {
  if (n_jobs == 2) {
    DecodeTwo<T, kCoding>(quant, model, rows, jobs);
    return;
  }
  const Constants k{quant, model};
  Chunk a(jobs[0]);
  for (int t = 0; t < rows && a.ok; ++t) {
    const RowPlaces at = PlacesOf(t, model.stride);
    a.PopTokens(k, at);
    a.TakeWords();
    __m512i u = a.First(k);
    if (_mm512_test_epi16_mask(a.bits, a.bits) != 0) {
      u = _mm512_add_epi16(u, PopRaw(a.bits, &a.s));
      a.TakeWords();
    }
    a.Finish<T, kCoding>(k, at, u, static_cast<uint32_t>(t * kLanes));
  }
  jobs[0].ok = a.CameOutEven();
}

}  // namespace

DecodeChunksFn Avx512DecodeChunks(DType dtype, Coding coding) {
  return SelectKernel(dtype, coding, [](auto v, auto c) -> DecodeChunksFn {
    return DecodeChunks<decltype(v), c()>;
  });
}

}  // namespace rans
}  // namespace comptrain

#else

namespace comptrain {
namespace rans {
DecodeChunksFn Avx512DecodeChunks(DType, Coding) { return nullptr; }
}  // namespace rans
}  // namespace comptrain

#endif

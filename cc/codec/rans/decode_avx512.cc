// rans' decoder with AVX-512 (BW, VL, DQ, VBMI, VBMI2).
#include "cc/codec/rans/row_vector.h"

#include "cc/codec/stream/quantize_vector.h"
#include "cc/codec/stream/select_kernel.h"

namespace comptrain::rans {
namespace {

struct States {
  Ints a, b;
};

// What was found for each lane's slot.
struct Found {
  Ints token, start, end;
};

// A binary search over the starts of a lane's context: tables of 32 contexts
// are looked up in registers.
inline Found Search(const Model& model, Ints context, Ints slot) {
  const auto start = [&](int k) { return LoadInts(model.start[k]); };
  const Ints bit = All16(kContexts);
  Found f;
  f.start = Ints{};
  f.end = All16(kProbOne);
  // Tokens from 8 on?
  Ints v = _mm512_permutexvar_epi16(context, start(8));
  const __mmask32 m8 = _mm512_cmpge_epu16_mask(slot, v);
  f.start = _mm512_mask_mov_epi16(f.start, m8, v);
  f.end = _mm512_mask_mov_epi16(v, m8, f.end);
  Ints index = _mm512_mask_add_epi16(context, m8, context, bit);
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
  f.token = _mm512_mask_add_epi16(f.token, m4, f.token, All16(4));
  f.token = _mm512_mask_add_epi16(f.token, m2, f.token, All16(2));
  f.token = _mm512_mask_add_epi16(f.token, m1, f.token, All16(1));
  return f;
}

// Takes words off the end, one for each state that fell below the range.
inline bool Refill(States* s, const uint16_t* begin, const uint16_t** end) {
  const Ints bottom = AllInts(kStateLow);
  const __mmask16 a = _mm512_cmplt_epu32_mask(s->a, bottom);
  const __mmask16 b = _mm512_cmplt_epu32_mask(s->b, bottom);
  const __mmask32 low = _mm512_kunpackw(b, a);
  const int n = __builtin_popcount(low);
  if (*end - begin < n) return false;
  *end -= n;
  const Ints words = _mm512_maskz_expand_epi16(low, LoadInts(*end));
  s->a = _mm512_mask_or_epi32(s->a, a, _mm512_slli_epi32(s->a, 16),
                              _mm512_cvtepu16_epi32(Low(words)));
  s->b = _mm512_mask_or_epi32(s->b, b, _mm512_slli_epi32(s->b, 16),
                              _mm512_cvtepu16_epi32(High(words)));
  return true;
}

inline Ints Pop(Ints state, Ints f, Ints above_start) {
  return _mm512_add_epi32(
      _mm512_mullo_epi32(_mm512_srli_epi32(state, kProbBits), f), above_start);
}

inline Ints PopRaw(Ints bits, States* s) {
  const Ints bits_a = Low16(bits), bits_b = High16(bits);
  const Ints ones = AllInts(~0u);
  const Ints raw = _mm512_packus_epi32(
      _mm512_andnot_si512(_mm512_sllv_epi32(ones, bits_a), s->a),
      _mm512_andnot_si512(_mm512_sllv_epi32(ones, bits_b), s->b));
  s->a = _mm512_srlv_epi32(s->a, bits_a);
  s->b = _mm512_srlv_epi32(s->b, bits_b);
  return raw;
}

// The code that is coded as u and predicted as p.
inline Ints Unfold(Ints u, Ints p, __mmask32 negative) {
  const Ints sign = _mm512_sub_epi16(Ints{}, _mm512_and_si512(u, All16(1)));
  const Ints folded =
      _mm512_add_epi16(p, _mm512_xor_si512(_mm512_srli_epi16(u, 1), sign));
  return _mm512_mask_add_epi16(
      folded,
      _mm512_mask_cmpgt_epu16_mask(~negative, u, _mm512_slli_epi16(p, 1)), u,
      Bias());
}

template <class T, Coding kCoding>
inline void StoreValues(Ints biased, const RowScales& scales, uint32_t first,
                        uint8_t* to, const Pitch& pitch) {
  const Ints q = biased ^ Bias();
  const Floats a =
      DequantizeVector<kCoding>(_mm512_cvtepi16_epi32(Low(q)), scales.Step(0),
                                scales.Centre(0), Numbers(first));
  const Floats b =
      DequantizeVector<kCoding>(_mm512_cvtepi16_epi32(High(q)), scales.Step(16),
                                scales.Centre(16), Numbers(first + 16));
  const auto piece = [&](int i) {
    return reinterpret_cast<T*>(to + pitch.piece[i]);
  };
  if (pitch.piece[1] == 8 * sizeof(T)) {
    Store(a, piece(0));
    Store(b, piece(2));
  } else {
    StoreEights(a, piece(0), piece(1));
    StoreEights(b, piece(2), piece(3));
  }
}

inline bool AllInRange(const States& s) {
  const Ints last = AllInts(INT32_MAX - kStateLow);
  const Ints bottom = AllInts(kStateLow);
  return (_mm512_cmpgt_epu32_mask(_mm512_sub_epi32(s.a, bottom), last) |
          _mm512_cmpgt_epu32_mask(_mm512_sub_epi32(s.b, bottom), last)) == 0;
}

// What is the same for all rows and chunks.
struct Constants {
  const Model& model;
  const Ints bases = TokenBases(model.shift);
  const Ints raw_bits = TokenRawBits(model.shift);
  const Contexts contexts{model.shift};
};

// A chunk, and what is known of its next row. The steps of a row are to be
// called in their order; a chunk that is out of words goes on with others, and
// is not ok.
struct Chunk {
  States s;
  Ints left, left_c, median, token, bits;
  const LaneSets lanes;
  const uint16_t* const words;
  const uint16_t* end;
  ChunkWork* const work;
  uint8_t* to;
  const Pitch pitch;
  const uint32_t counter;
  RowScales scales;
  bool ok;

  Chunk(const DecodeJob& job, const Quantizer& quant)
      : s{LoadInts(job.head->state), LoadInts(job.head->state + 16)},
        lanes(*job.head),
        words(job.words),
        end(words + job.n_words),
        work(job.work),
        to(static_cast<uint8_t*>(job.out)),
        pitch(job.pitch),
        counter(job.counter),
        scales(quant, job.first_lane),
        ok(AllInRange(s)) {
    ClearPadding(work);
    left = LoadInts(work->q);
    left_c = median = token = bits = Ints{};
  }

  // Tokens, and states without them.
  [[gnu::always_inline]] void PopTokens(const Constants& k,
                                        const RowPlaces& at) {
    median = Median(left, LoadInts(work->q + at.above),
                    LoadInts(work->q + at.above_left));
    const Ints context = k.contexts
                             .Of(lanes, {{left_c}}, LoadRow(work->c + at.above),
                                 LoadRow(work->c + at.left2),
                                 LoadRow(work->c + at.above2), {{median}})
                             .v[0];
    const Ints slots = AllInts(kProbOne - 1);
    const Ints slot = _mm512_packus_epi32((s.a & slots), (s.b & slots));
    const Found found = Search(k.model, context, slot);
    const Ints f = _mm512_sub_epi16(found.end, found.start);
    const Ints rest = _mm512_sub_epi16(slot, found.start);
    token = found.token;
    bits = _mm512_permutexvar_epi16(token, k.raw_bits);
    s.a = Pop(s.a, Low16(f), Low16(rest));
    s.b = Pop(s.b, High16(f), High16(rest));
  }

  [[gnu::always_inline]] void TakeWords() { ok &= Refill(&s, words, &end); }

  // u, but for its raw bits.
  [[gnu::always_inline]] Ints First(const Constants& k) const {
    return _mm512_permutexvar_epi16(token, k.bases);
  }

  template <class T, Coding kCoding>
  [[gnu::always_inline]] void Finish(const Constants& k, const RowPlaces& at,
                                     Ints u, uint32_t first) {
    left_c = Neighbour(u, k.model.shift);
    StoreInts(left_c, work->c + at.here);
    left = lanes.plain ? u ^ Bias()
                       : Unfold(u,
                                Predict(lanes, 0, left,
                                        LoadInts(work->q + at.above), median),
                                lanes.negative);
    StoreInts(left, work->q + at.here);
    if (to == nullptr) return;
    StoreValues<T, kCoding>(left, scales, counter + first, to, pitch);
    to += pitch.row;
    scales.NextRow();
  }

  bool CameOutEven() const {
    const Ints bottom = AllInts(kStateLow);
    return ok && (end == words || (end == words + 1 && *words == 0)) &&
           (_mm512_cmpneq_epu32_mask(s.a, bottom) |
            _mm512_cmpneq_epu32_mask(s.b, bottom)) == 0;
  }
};

// A chunk's steps wait for each other: two chunks take turns.
template <class T, Coding kCoding>
void DecodeTwo(const Quantizer& quant, const Model& model, int rows,
               DecodeJob* jobs) {
  const Constants k{model};
  Chunk a(jobs[0], quant), b(jobs[1], quant);
  for (int t = 0; t < rows && (a.ok || b.ok); ++t) {
    const RowPlaces at = PlacesOf(t, model.stride);
    a.PopTokens(k, at);
    b.PopTokens(k, at);
    a.TakeWords();
    b.TakeWords();
    Ints u_a = a.First(k), u_b = b.First(k);
    const Ints any = _mm512_or_si512(a.bits, b.bits);
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
  const Constants k{model};
  Chunk a(jobs[0], quant);
  for (int t = 0; t < rows && a.ok; ++t) {
    const RowPlaces at = PlacesOf(t, model.stride);
    a.PopTokens(k, at);
    a.TakeWords();
    Ints u = a.First(k);
    if (_mm512_test_epi16_mask(a.bits, a.bits) != 0) {
      u = _mm512_add_epi16(u, PopRaw(a.bits, &a.s));
      a.TakeWords();
    }
    a.Finish<T, kCoding>(k, at, u, static_cast<uint32_t>(t * kLanes));
  }
  jobs[0].ok = a.CameOutEven();
}

}  // namespace

DecodeChunksFn COMPTRAIN_NAME(DecodeChunks)(DType dtype, Coding coding) {
  return SelectKernel(dtype, coding, [](auto v, auto c) -> DecodeChunksFn {
    return DecodeChunks<decltype(v), c()>;
  });
}

}  // namespace comptrain::rans

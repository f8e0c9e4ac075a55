// rans' decoder with AVX2.
#include "cc/codec/rans/row_vector.h"

#include "cc/codec/stream/quantize_vector.h"
#include "cc/codec/stream/select_kernel.h"

namespace comptrain::rans {
namespace {

// Takes words off the end, one for each state that fell below the range.
inline bool Refill(States* s, const uint16_t* begin, const uint16_t** end) {
  const Ints bottom = AllInts(kStateLow);
  Ints low[4];
  unsigned mask[4];
  int total = 0;
  for (int k = 0; k < 4; ++k) {
    low[k] = _mm256_cmpgt_epi32(bottom, s->v[k]);
    mask[k] = BitsOf(low[k]);
    total += __builtin_popcount(mask[k]);
  }
  if (*end - begin < total) return false;
  const uint16_t* from = *end - total;
  *end = from;
  for (int k = 0; k < 4; ++k) {
    const Ints words = _mm256_cvtepu16_epi32(LoadHalf(from));
    const Ints refilled =
        _mm256_or_si256(_mm256_slli_epi32(s->v[k], 16),
                        Move8(words, kMoveTables.scatter[mask[k]]));
    s->v[k] = _mm256_blendv_epi8(s->v[k], refilled, low[k]);
    from += __builtin_popcount(mask[k]);
  }
  return true;
}

// Tokens, as bytes; the states without them.
inline Ints PopTokens(const Model& model, Ints contexts, States* s) {
  const States context = Unpack(FromBytes(contexts, Ints{}));
  States token;
  for (int k = 0; k < 4; ++k) {
    const Ints slot = _mm256_and_si256(s->v[k], AllInts(kProbOne - 1));
    const Ints found = _mm256_i32gather_epi32(
        reinterpret_cast<const int*>(model.slots.data()),
        _mm256_or_si256(_mm256_slli_epi32(context.v[k], kProbBits), slot), 4);
    token.v[k] = _mm256_and_si256(found, AllInts(kTokens - 1));
    const Ints rest =
        _mm256_and_si256(_mm256_srli_epi32(found, 4), AllInts(kProbOne - 1));
    s->v[k] = _mm256_add_epi32(
        _mm256_mullo_epi32(_mm256_srli_epi32(s->v[k], kProbBits),
                           _mm256_srli_epi32(found, 16)),
        rest);
  }
  return ToBytes(Pack(token));
}

inline Row PopRaw(Ints bits, States* s) {
  const States by = Unpack(FromBytes(bits, Ints{}));
  States raw;
  for (int k = 0; k < 4; ++k) {
    raw.v[k] =
        _mm256_andnot_si256(_mm256_sllv_epi32(AllInts(~0u), by.v[k]), s->v[k]);
    s->v[k] = _mm256_srlv_epi32(s->v[k], by.v[k]);
  }
  return Pack(raw);
}

template <class T, Coding kCoding>
inline void StoreValues(const Row& biased, const RowScales& scales,
                        uint32_t first, uint8_t* to, const Pitch& pitch) {
  for (int i = 0; i < kPieces; ++i) {
    const Ints q = _mm256_xor_si256(biased.v[i / 2], Bias());
    const __m128i eight = i % 2 != 0 ? High(q) : Low(q);
    Store(DequantizeVector<kCoding>(
              _mm256_cvtepi16_epi32(eight), scales.Step(8 * i),
              scales.Centre(8 * i),
              Numbers(first + static_cast<uint32_t>(8 * i))),
          reinterpret_cast<T*>(to + pitch.piece[i]));
  }
}

template <class T, Coding kCoding>
bool DecodeChunk(const Quantizer& quant, const Model& model, int rows,
                 const DecodeJob& job) {
  const ChunkHead& head = *job.head;
  const uint16_t* const words = job.words;
  ChunkWork* const work = job.work;
  States s;
  const Ints bottom = AllInts(kStateLow);
  unsigned outside = 0;
  for (int k = 0; k < 4; ++k) {
    s.v[k] = LoadInts(head.state + 8 * k);
    // Negative where the top bit is set.
    outside |= BitsOf(_mm256_cmpgt_epi32(bottom, s.v[k]));
  }
  if (outside != 0) return false;
  ClearPadding(work);
  const LaneSets lanes(head);
  const Contexts contexts(model.shift);
  const TokenTables tables(model.shift);
  const Ints one = All16(1), zero = Ints{};
  RowScales scales(quant, job.first_lane);
  const uint16_t* end = words + job.n_words;
  uint8_t* to = static_cast<uint8_t*>(job.out);
  Row left = LoadRow(work->q), left_c = {{zero, zero}};
  for (int t = 0; t < rows; ++t) {
    const RowPlaces at = PlacesOf(t, model.stride);
    const Row above = LoadRow(work->q + at.above);
    const Row above_left = LoadRow(work->q + at.above_left);
    const Row median = {{Median(left.v[0], above.v[0], above_left.v[0]),
                         Median(left.v[1], above.v[1], above_left.v[1])}};
    const Ints context = contexts.Of(lanes, left_c, LoadRow(work->c + at.above),
                                     LoadRow(work->c + at.left2),
                                     LoadRow(work->c + at.above2), median);
    const Ints tokens = PopTokens(model, context, &s);
    if (!Refill(&s, words, &end)) return false;
    Row u = tables.Bases(tokens);
    const Ints bits = tables.Bits(tokens);
    if (!_mm256_testz_si256(bits, bits)) {
      const Row raw = PopRaw(bits, &s);
      for (int h = 0; h < 2; ++h) u.v[h] = _mm256_add_epi16(u.v[h], raw.v[h]);
      if (!Refill(&s, words, &end)) return false;
    }
    for (int h = 0; h < 2; ++h) {
      left_c.v[h] = Neighbour(u.v[h], model.shift);
      const Ints sign = _mm256_sub_epi16(zero, (u.v[h] & one));
      const Ints predicted =
          Predict(lanes, h, left.v[h], above.v[h], median.v[h]);
      const Ints folded = _mm256_add_epi16(
          predicted, _mm256_xor_si256(_mm256_srli_epi16(u.v[h], 1), sign));
      // Beyond twice what is predicted: the code itself, biased.
      const Ints itself =
          _mm256_and_si256(lanes.one_sided.v[h],
                           Greater16(u.v[h], _mm256_slli_epi16(predicted, 1)));
      left.v[h] =
          _mm256_blendv_epi8(folded, _mm256_xor_si256(u.v[h], Bias()), itself);
    }
    StoreRow(left_c, work->c + at.here);
    StoreRow(left, work->q + at.here);
    if (to != nullptr) {
      StoreValues<T, kCoding>(left, scales,
                              job.counter + static_cast<uint32_t>(t * kLanes),
                              to, job.pitch);
      to += job.pitch.row;
      scales.NextRow();
    }
  }
  bool even = end == words || (end == words + 1 && *words == 0);
  for (int k = 0; k < 4; ++k) {
    even &= BitsOf(_mm256_cmpeq_epi32(s.v[k], bottom)) == 0xff;
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

DecodeChunksFn COMPTRAIN_NAME(DecodeChunks)(DType dtype, Coding coding) {
  return SelectKernel(dtype, coding, [](auto v, auto c) -> DecodeChunksFn {
    return DecodeChunks<decltype(v), c()>;
  });
}

}  // namespace comptrain::rans

// Codec B's chunk kernels in plain C++: the definition of the format.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "cc/codec/half.h"
#include "cc/codec/quantize.h"
#include "cc/codec/rans_chunk.h"
#include "cc/codec/rans_rows.h"

namespace comptrain {
namespace rans {
namespace {

uint16_t Zigzag(uint16_t d) {
  return static_cast<uint16_t>(d << 1 ^ -(d >> 15));
}

uint16_t Unzigzag(uint16_t u) {
  return static_cast<uint16_t>(u >> 1 ^ -(u & 1));
}

// All on biased codes, modulo 2^16.
uint16_t Average(uint16_t a, uint16_t b) {
  return static_cast<uint16_t>((a + b + 1) >> 1);
}

// Of left, above and the plane through all three.
uint16_t Median(uint16_t left, uint16_t above, uint16_t above_left) {
  const uint16_t plane = static_cast<uint16_t>(left + above - above_left);
  return std::max(std::min(left, above),
                  std::min(std::max(left, above), plane));
}

uint16_t Predict(int mode, const uint16_t* q, const RowPlaces& at, int lane) {
  const uint16_t left = q[at.left + lane], above = q[at.above + lane];
  if (mode == kAverage) return Average(left, above);
  if (mode == kMedian) return Median(left, above, q[at.above_left + lane]);
  return kCodeBias;
}

int ModeOf(const ChunkHead& head, int lane) {
  return static_cast<int>((head.mode_low >> lane & 1) |
                          (head.mode_high >> lane & 1) << 1);
}

uint16_t Neighbour(uint16_t u, int shift) {
  return static_cast<uint16_t>(std::min(u >> shift, kMaxNeighbour));
}

int ContextOf(const uint16_t* c, const RowPlaces& at, int lane,
              bool is_signed) {
  const int m = 3 * (c[at.left + lane] + c[at.above + lane]) +
                c[at.left2 + lane] + c[at.context_above2 + lane];
  return kByteTables.context[std::min(m, 127)] +
         (is_signed ? kSignedContext : 0);
}

struct Token {
  int token;
  int bits;
  uint32_t raw;
};

Token TokenOf(uint16_t u, int shift) {
  const uint32_t v = static_cast<uint32_t>(u) >> shift;
  if (v >= kEscapeFrom) return {kEscape, kEscapeBits, u};
  const int k = kByteTables.token[std::min<uint32_t>(v, 127)];
  return {k, kTokenBits[k] + shift,
          u - (static_cast<uint32_t>(kTokenBase[k]) << shift)};
}

void AddSaturated(int d, int shift, uint16_t* sum) {
  const int magnitude = std::abs(static_cast<int16_t>(d)) >> shift;
  *sum = static_cast<uint16_t>(std::min(*sum + magnitude, 0xffff));
}

void ChooseModes(const Model& model, int rows, const bool negative[kLanes],
                 const uint16_t* q, ChunkHead* head) {
  uint16_t plain[kLanes] = {}, average[kLanes] = {}, median[kLanes] = {};
  for (int t = 0; t < rows; ++t) {
    if (!IsModeRow(t)) continue;
    const RowPlaces at = PlacesOf(t, model.stride);
    for (int l = 0; l < kLanes; ++l) {
      const uint16_t here = q[at.here + l];
      AddSaturated(here - kCodeBias, model.shift, &plain[l]);
      AddSaturated(here - Predict(kAverage, q, at, l), model.shift,
                   &average[l]);
      AddSaturated(here - Predict(kMedian, q, at, l), model.shift,
                   &median[l]);
    }
  }
  head->mode_low = head->mode_high = 0;
  for (int l = 0; l < kLanes; ++l) {
    // Zigzag doubles what is positive.
    const int direct = negative[l] ? plain[l] : plain[l] / 2;
    int mode = negative[l] ? kSigned : kUnsigned;
    if (std::min(average[l], median[l]) < direct) {
      mode = median[l] < average[l] ? kMedian : kAverage;
    }
    head->mode_low |= static_cast<uint32_t>(mode & 1) << l;
    head->mode_high |= static_cast<uint32_t>(mode >> 1) << l;
  }
}

void AddBlock(DType dtype, const uint8_t* x, int64_t row_bytes, int rows,
              ChunkSums* total) {
  float sum[kLanes] = {}, sum_sq[kLanes] = {};
  int64_t nonzero = 0;
  for (int t = 0; t < rows; ++t) {
    for (int l = 0; l < kLanes; ++l) {
      const float v = LoadFloat(x + t * row_bytes, dtype, l);
      nonzero += !CountsAsZero(v);
      sum[l] += v;
      sum_sq[l] += v * v;
    }
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) {
      sum[l] += sum[l + half];
      sum_sq[l] += sum_sq[l + half];
    }
  }
  ChunkSums block = {nonzero, sum[0], sum_sq[0]};
  if (!std::isfinite(sum[0]) || !std::isfinite(sum_sq[0])) {
    block = PlainSums(dtype, x, row_bytes, rows);
  }
  total->nonzero += block.nonzero;
  total->sum += block.sum;
  total->sum_sq += block.sum_sq;
}

void ClearPadding(ChunkWork* work) {
  for (int i = 0; i < kPadRows * kLanes; ++i) {
    work->q[i] = kCodeBias;
    work->u[i] = work->c[i] = 0;
  }
}

template <Coding kCoding>
ChunkKind Prepare(const Quantizer& quant, const Model& model, const void* x,
                  int64_t row_bytes, int rows, ChunkWork* work,
                  ChunkHead* head, ChunkSums* sums) {
  const uint8_t* from = static_cast<const uint8_t*>(x);
  *sums = ChunkSums();
  for (int t = 0; t < rows; t += kSumRows) {
    AddBlock(quant.dtype, from + t * row_bytes, row_bytes,
             std::min(kSumRows, rows - t), sums);
  }
  ClearPadding(work);
  bool negative[kLanes] = {}, any = false, check = quant.verify_all;
  bool within = true;
  for (int t = 0; t < rows; ++t) {
    for (int l = 0; l < kLanes; ++l) {
      const float v = LoadFloat(from + t * row_bytes, quant.dtype, l);
      const uint32_t i =
          quant.counter + static_cast<uint32_t>(t * kLanes + l);
      int code = 0;
      if (!QuantizeValue<kCoding>(quant, v, i, &code)) {
        return ChunkKind::kRaw;
      }
      check |= NeedsCheck<kCoding>(code);
      within &= CodeWithinBound<kCoding>(quant, v, code, i);
      negative[l] |= code < 0;
      any |= code != 0;
      work->q[(t + kPadRows) * kLanes + l] =
          static_cast<uint16_t>(code + kCodeBias);
    }
  }
  if (check && !within) return ChunkKind::kRaw;
  if (!any) return ChunkKind::kZero;
  ChooseModes(model, rows, negative, work->q, head);
  for (int t = 0; t < rows; ++t) {
    const RowPlaces at = PlacesOf(t, model.stride);
    for (int l = 0; l < kLanes; ++l) {
      const int mode = ModeOf(*head, l);
      const uint16_t d = static_cast<uint16_t>(
          work->q[at.here + l] - Predict(mode, work->q, at, l));
      const uint16_t u = mode == kUnsigned ? d : Zigzag(d);
      if (u >> kEscapeBits != 0) return ChunkKind::kRaw;
      work->u[at.here + l] = u;
      work->c[at.here + l] = Neighbour(u, model.shift);
    }
  }
  return ChunkKind::kCoded;
}

void Index(const Model& model, const ChunkHead& head, int rows,
           ChunkWork* work) {
  for (int t = 0; t < rows; ++t) {
    const RowPlaces at = PlacesOf(t, model.stride);
    for (int l = 0; l < kLanes; ++l) {
      const int context =
          ContextOf(work->c, at, l, ModeOf(head, l) != kUnsigned);
      const Token token = TokenOf(work->u[at.here + l], model.shift);
      work->q[at.here + l] =
          static_cast<uint16_t>(context * kTokens + token.token);
    }
  }
}

int EncodeChunk(const Model& model, int rows, ChunkWork* work,
                ChunkHead* head) {
  uint32_t* state = head->state;
  std::fill(state, state + kLanes, kStateLow);
  uint16_t* out = work->words;
  for (int t = rows - 1; t >= 0; --t) {
    const RowPlaces at = PlacesOf(t, model.stride);
    Token token[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      token[i] = TokenOf(work->u[at.here + LaneOfState(i)], model.shift);
      const int bits = token[i].bits;
      if (state[i] >= kStateLow << (16 - bits)) {
        *out++ = static_cast<uint16_t>(state[i]);
        state[i] >>= 16;
      }
      state[i] = state[i] << bits | token[i].raw;
    }
    for (int i = 0; i < kLanes; ++i) {
      const int lane = LaneOfState(i);
      const int context = ContextOf(work->c, at, lane,
                                    ModeOf(*head, lane) != kUnsigned);
      const uint32_t packed = model.packed[context * kTokens + token[i].token];
      const uint32_t f = packed >> 16, start = packed & 0xffff;
      if (state[i] >= f << (31 - kProbBits)) {
        *out++ = static_cast<uint16_t>(state[i]);
        state[i] >>= 16;
      }
      state[i] = (state[i] / f << kProbBits) + state[i] % f + start;
    }
  }
  return static_cast<int>(out - work->words);
}

// Takes words off the end, one for each state that fell below the range.
bool Refill(uint32_t* state, const uint16_t* begin, const uint16_t** end) {
  int low = 0;
  for (int i = 0; i < kLanes; ++i) low += state[i] < kStateLow;
  if (*end - begin < low) return false;
  *end -= low;
  const uint16_t* from = *end;
  for (int i = 0; i < kLanes; ++i) {
    if (state[i] < kStateLow) state[i] = state[i] << 16 | *from++;
  }
  return true;
}

// One row of codes to be undone, from the states. False: out of words.
bool DecodeRow(const Model& model, const ChunkHead& head, const RowPlaces& at,
               const uint16_t* words, const uint16_t** end, uint32_t* state,
               ChunkWork* work) {
  int token[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const int lane = LaneOfState(i);
    const int context =
        ContextOf(work->c, at, lane, ModeOf(head, lane) != kUnsigned);
    const uint32_t slot = state[i] & (kProbOne - 1);
    int k = kTokens - 1;
    while (model.start[k][context] > slot) --k;
    token[i] = k;
    const uint32_t start = model.start[k][context];
    const uint32_t f = model.start[k + 1][context] - start;
    state[i] = f * (state[i] >> kProbBits) + slot - start;
  }
  if (!Refill(state, words, end)) return false;
  for (int i = 0; i < kLanes; ++i) {
    const int k = token[i];
    const int bits =
        k == kEscape ? kEscapeBits : kTokenBits[k] + model.shift;
    const uint32_t raw = state[i] & ((1u << bits) - 1);
    state[i] >>= bits;
    const uint16_t u = static_cast<uint16_t>(
        (static_cast<uint32_t>(kTokenBase[k]) << model.shift) + raw);
    work->u[at.here + LaneOfState(i)] = u;
    work->c[at.here + LaneOfState(i)] = Neighbour(u, model.shift);
  }
  return Refill(state, words, end);
}

template <Coding kCoding>
bool DecodeChunk(const Quantizer& quant, const Model& model, int rows,
                 const DecodeJob& job) {
  const ChunkHead& head = *job.head;
  const uint16_t* const words = job.words;
  ChunkWork* const work = job.work;
  uint32_t state[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    state[i] = head.state[i];
    if (state[i] < kStateLow || state[i] >> 31 != 0) return false;
  }
  ClearPadding(work);
  const uint16_t* end = words + job.n_words;
  for (int t = 0; t < rows; ++t) {
    const RowPlaces at = PlacesOf(t, model.stride);
    if (!DecodeRow(model, head, at, words, &end, state, work)) return false;
    uint8_t* row = static_cast<uint8_t*>(job.out) + t * job.row_bytes;
    for (int l = 0; l < kLanes; ++l) {
      const int mode = ModeOf(head, l);
      const uint16_t u = work->u[at.here + l];
      const uint16_t d = mode == kUnsigned ? u : Unzigzag(u);
      const uint16_t q =
          static_cast<uint16_t>(d + Predict(mode, work->q, at, l));
      work->q[at.here + l] = q;
      if (job.out == nullptr) continue;
      const int code = static_cast<int>(q) - kCodeBias;
      const uint32_t i =
          job.counter + static_cast<uint32_t>(t * kLanes + l);
      StoreFloat(DequantizeValue<kCoding>(quant, code, i), quant.dtype, row,
                 l);
    }
  }
  bool even = end == words || (end == words + 1 && *words == 0);
  for (int i = 0; i < kLanes; ++i) even &= state[i] == kStateLow;
  return even;
}

template <Coding kCoding>
void DecodeChunks(const Quantizer& quant, const Model& model, int rows,
                  DecodeJob* jobs, int n_jobs) {
  for (int i = 0; i < n_jobs; ++i) {
    jobs[i].ok = DecodeChunk<kCoding>(quant, model, rows, jobs[i]);
  }
}

void MaskRows(const ChunkWork& work, int first, int last, uint32_t* mask) {
  for (int t = first; t < last; ++t) {
    const uint16_t* q = work.q + (t + kPadRows) * kLanes;
    uint32_t set = 0;
    for (int l = 0; l < kLanes; ++l) {
      set |= static_cast<uint32_t>(q[l] != kCodeBias) << l;
    }
    *mask++ = set;
  }
}

}  // namespace

ChunkSums PlainSums(DType dtype, const void* x, int64_t row_bytes, int rows) {
  ChunkSums sums;
  for (int t = 0; t < rows; ++t) {
    const uint8_t* row = static_cast<const uint8_t*>(x) + t * row_bytes;
    for (int l = 0; l < kLanes; ++l) {
      const float v = LoadFloat(row, dtype, l);
      if (!std::isfinite(v)) continue;
      sums.nonzero += !CountsAsZero(v);
      sums.sum += v;
      sums.sum_sq += static_cast<double>(v) * v;
    }
  }
  return sums;
}

ChunkKernels ScalarChunkKernels(DType /*dtype*/, Coding coding) {
  switch (coding) {
    case Coding::kMidRise:
      return {Prepare<Coding::kMidRise>, Index, EncodeChunk,
              DecodeChunks<Coding::kMidRise>, MaskRows, false, 1};
    case Coding::kDither:
      return {Prepare<Coding::kDither>, Index, EncodeChunk,
              DecodeChunks<Coding::kDither>, MaskRows, false, 1};
    default:
      return {Prepare<Coding::kPlain>, Index, EncodeChunk,
              DecodeChunks<Coding::kPlain>, MaskRows, false, 1};
  }
}

}  // namespace rans
}  // namespace comptrain

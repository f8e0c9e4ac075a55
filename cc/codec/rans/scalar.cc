// rans' chunk kernels in plain C++: the definition of the format.
#include <algorithm>
#include <cmath>

#include "cc/codec/common/half.h"
#include "cc/codec/stream/quantize.h"
#include "cc/codec/rans/chunk.h"
#include "cc/codec/rans/code.h"
#include "cc/codec/rans/rows.h"
#include "cc/codec/stream/select_kernel.h"

namespace comptrain::rans {
namespace {

uint16_t MedianOf(const uint16_t* q, const RowPlaces& at, int lane) {
  return Median(q[at.left + lane], q[at.above + lane], q[at.above_left + lane]);
}

uint16_t Predict(const Lane& how, const uint16_t* q, const RowPlaces& at,
                 int lane) {
  return how.Predict(q[at.left + lane], q[at.above + lane],
                     MedianOf(q, at, lane));
}

// median: MedianOf the lane.
int ContextOf(const uint16_t* c, const RowPlaces& at, int lane, bool negative,
              uint16_t median, int shift) {
  const int m = NeighbourSum(c[at.left + lane], c[at.left2 + lane],
                             c[at.above + lane], c[at.above2 + lane]);
  if (negative) return kByteTables.context[m];
  return kByteTables.size[m] + kByteTables.median[MedianLevel(median, shift)];
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

// Whatever makes the sizes of what is coded the smallest, in sum.
void ChoosePredictors(const Model& model, int rows, const uint16_t* q,
                      ChunkHead* head) {
  int plain[kLanes] = {}, average[kLanes] = {}, median[kLanes] = {};
  for (int t = kFirstSampleRow; t < rows; t += kSampleRows) {
    const RowPlaces at = PlacesOf(t, model.stride);
    for (int l = 0; l < kLanes; ++l) {
      const auto size = [&](uint16_t p) {
        return Neighbour(Fold(q[at.here + l], p, head->negative >> l & 1),
                         model.shift);
      };
      plain[l] += size(kCodeBias);
      average[l] += size(Average(q[at.left + l], q[at.above + l]));
      median[l] += size(MedianOf(q, at, l));
    }
  }
  head->average = head->median = 0;
  for (int l = 0; l < kLanes; ++l) {
    if (std::min(average[l], median[l]) >= plain[l]) continue;
    (median[l] < average[l] ? head->median : head->average) |= 1u << l;
  }
}

// Lane l of a row.
float LoadLane(const uint8_t* row, const Pitch& pitch, DType dtype, int l) {
  return LoadFloat(row + pitch.piece[l / 8], dtype, l % 8);
}

void ClearPadding(ChunkWork* work) {
  for (int i = 0; i < kPadRows * kLanes; ++i) {
    work->q[i] = kCodeBias;
    work->u[i] = work->c[i] = 0;
  }
}

// From q to u, c and index. False when a code is too large for the escape.
bool Transform(const Model& model, const ChunkHead& head, int rows,
               ChunkWork* work) {
  for (int t = 0; t < rows; ++t) {
    const RowPlaces at = PlacesOf(t, model.stride);
    for (int l = 0; l < kLanes; ++l) {
      const Lane how(head, l);
      const uint16_t u = Fold(work->q[at.here + l],
                              Predict(how, work->q, at, l), how.negative);
      if (u >> kEscapeBits != 0) return false;
      work->u[at.here + l] = u;
      work->c[at.here + l] = Neighbour(u, model.shift);
      const int context = ContextOf(work->c, at, l, how.negative,
                                    MedianOf(work->q, at, l), model.shift);
      work->index[at.here + l] = static_cast<uint16_t>(
          context * kTokens + TokenOf(u, model.shift).token);
    }
  }
  return true;
}

template <Coding kCoding>
ChunkKind Prepare(const Quantizer& quant, const Model& model,
                  const ChunkValues& from, ChunkWork* work, ChunkHead* head,
                  int64_t* nonzero) {
  const Pitch& pitch = from.pitch;
  *nonzero = 0;
  for (int t = 0; t < from.rows; ++t) {
    for (int l = 0; l < kLanes; ++l) {
      *nonzero += !CountsAsZero(
          LoadLane(from.x + t * pitch.row, pitch, quant.dtype, l));
    }
  }
  ClearPadding(work);
  head->negative = 0;
  bool any = false, check = quant.verify_all, within = true;
  for (int t = 0; t < from.rows; ++t) {
    for (int l = 0; l < kLanes; ++l) {
      const Quantizer lane = OfLane(quant, t, l);
      const float v = LoadLane(from.x + t * pitch.row, pitch, quant.dtype, l);
      const uint32_t i = quant.counter + static_cast<uint32_t>(t * kLanes + l);
      int code = 0;
      if (!QuantizeValue<kCoding>(lane, v, i, &code)) {
        return ChunkKind::kRaw;
      }
      check |= NeedsCheck<kCoding>(lane, code);
      within &= CodeWithinBound<kCoding>(lane, v, code, i);
      head->negative |= static_cast<uint32_t>(code < 0) << l;
      any |= code != 0;
      work->q[(t + kPadRows) * kLanes + l] =
          static_cast<uint16_t>(code + kCodeBias);
    }
  }
  if (check && !within) return ChunkKind::kRaw;
  if (!any) return ChunkKind::kZero;
  ChoosePredictors(model, from.rows, work->q, head);
  return Transform(model, *head, from.rows, work) ? ChunkKind::kCoded
                                                  : ChunkKind::kRaw;
}

void EncodeChunks(const Model& model, int rows, EncodeJob* job,
                  int /*n_jobs*/) {
  const ChunkWork* const work = job->work;
  uint32_t* state = job->head->state;
  std::fill(state, state + kLanes, kStateLow);
  uint16_t* out = job->work->words;
  for (int t = rows - 1; t >= 0; --t) {
    const uint16_t* u = work->u + (t + kPadRows) * kLanes;
    const uint16_t* index = work->index + (t + kPadRows) * kLanes;
    for (int i = 0; i < kLanes; ++i) {
      const Token token = TokenOf(u[LaneOfState(i)], model.shift);
      if (state[i] >= kStateLow << (16 - token.bits)) {
        *out++ = static_cast<uint16_t>(state[i]);
        state[i] >>= 16;
      }
      state[i] = state[i] << token.bits | token.raw;
    }
    for (int i = 0; i < kLanes; ++i) {
      const uint32_t packed = model.packed[index[LaneOfState(i)]];
      const uint32_t f = packed >> 16, start = packed & 0xffff;
      if (state[i] >= f << (31 - kProbBits)) {
        *out++ = static_cast<uint16_t>(state[i]);
        state[i] >>= 16;
      }
      state[i] = (state[i] / f << kProbBits) + state[i] % f + start;
    }
  }
  job->n_words = static_cast<int>(out - work->words);
}

// The states, and the words that are left to fill them up from: [words, end).
struct Reader {
  const uint16_t* words;
  const uint16_t* end;
  uint32_t state[kLanes];
};

// Takes words off the end, one for each state that fell below the range.
bool Refill(Reader* of) {
  uint32_t* const state = of->state;
  int low = 0;
  for (int i = 0; i < kLanes; ++i) low += state[i] < kStateLow;
  if (of->end - of->words < low) return false;
  of->end -= low;
  const uint16_t* from = of->end;
  for (int i = 0; i < kLanes; ++i) {
    if (state[i] < kStateLow) state[i] = state[i] << 16 | *from++;
  }
  return true;
}

// One row of codes to be undone, from the states. False: out of words.
bool DecodeRow(const Model& model, const ChunkHead& head, const RowPlaces& at,
               Reader* from, ChunkWork* work) {
  uint32_t* const state = from->state;
  int token[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const int lane = LaneOfState(i);
    const int context = ContextOf(work->c, at, lane, head.negative >> lane & 1,
                                  MedianOf(work->q, at, lane), model.shift);
    const uint32_t slot = state[i] & (kProbOne - 1);
    int k = kTokens - 1;
    while (model.start[k][context] > slot) --k;
    token[i] = k;
    const uint32_t start = model.start[k][context];
    const uint32_t f = model.start[k + 1][context] - start;
    state[i] = f * (state[i] >> kProbBits) + slot - start;
  }
  if (!Refill(from)) return false;
  for (int i = 0; i < kLanes; ++i) {
    const int k = token[i];
    const int bits = k == kEscape ? kEscapeBits : kTokenBits[k] + model.shift;
    const uint32_t raw = state[i] & ((1u << bits) - 1);
    state[i] >>= bits;
    const uint16_t u = static_cast<uint16_t>(
        (static_cast<uint32_t>(kTokenBase[k]) << model.shift) + raw);
    work->u[at.here + LaneOfState(i)] = u;
    work->c[at.here + LaneOfState(i)] = Neighbour(u, model.shift);
  }
  return Refill(from);
}

template <Coding kCoding>
bool DecodeChunk(const Quantizer& quant, const Model& model, int rows,
                 const DecodeJob& job) {
  const ChunkHead& head = *job.head;
  ChunkWork* const work = job.work;
  Quantizer lanes = quant;
  lanes.first_lane = job.first_lane;
  Reader from = {job.words, job.words + job.n_words, {}};
  for (int i = 0; i < kLanes; ++i) {
    from.state[i] = head.state[i];
    if (from.state[i] < kStateLow || from.state[i] >> 31 != 0) return false;
  }
  ClearPadding(work);
  for (int t = 0; t < rows; ++t) {
    const RowPlaces at = PlacesOf(t, model.stride);
    if (!DecodeRow(model, head, at, &from, work)) return false;
    uint8_t* row = static_cast<uint8_t*>(job.out) + t * job.pitch.row;
    for (int l = 0; l < kLanes; ++l) {
      const Lane how(head, l);
      const uint16_t q = Unfold(work->u[at.here + l],
                                Predict(how, work->q, at, l), how.negative);
      work->q[at.here + l] = q;
      if (job.out == nullptr) continue;
      const int code = static_cast<int>(q) - kCodeBias;
      const uint32_t i = job.counter + static_cast<uint32_t>(t * kLanes + l);
      StoreFloat(DequantizeValue<kCoding>(OfLane(lanes, t, l), code, i),
                 quant.dtype, row + job.pitch.piece[l / 8], l % 8);
    }
  }
  const auto left = from.end - from.words;
  bool even = left == 0 || (left == 1 && *from.words == 0);
  for (int i = 0; i < kLanes; ++i) even &= from.state[i] == kStateLow;
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

ChunkKernels ChunkKernelsScalar(DType /*dtype*/, Coding coding) {
  return SelectCoding(coding, [](auto c) -> ChunkKernels {
    return {Prepare<c()>, EncodeChunks, DecodeChunks<c()>, MaskRows, false, 1};
  });
}

}  // namespace comptrain::rans

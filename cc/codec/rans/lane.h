// rans on a GPU: a chunk is encoded by a block of threads and decoded by a
// warp. rans_scalar.cc is the plain definition of the same.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "cc/codec/common/bits.h"
#include "cc/codec/common/half.h"
#include "cc/codec/stream/quantize.h"
#include "cc/codec/rans/chunk.h"
#include "cc/codec/rans/layout.h"
#include "cc/codec/rans/rows.h"
#include "cc/codec/rans/tables.h"
#include "cc/codec/common/warp.h"

namespace comptrain::rans {

// --- Encoding ----------------------------------------------------------------

// Rows that are looked up while those before them are coded.
constexpr int kBatchRows = 8;

// What the threads of a team share besides the codes.
struct WriterMemory {
  uint32_t items[2][kBatchRows * kLanes];
  uint32_t sizes[3 * kLanes];  // of codes, by predictor
  uint32_t flags, negative, n_words;
};

// The scales of a chunk's values, of a tensor of so many channels.
struct ChunkScales {
  ChannelScales scales;
  int64_t channels;

  // Whether they vary from row to row of a lane.
  __device__ bool vary(const Geometry& geometry) const {
    return geometry.flat && (scales.exponents || scales.centres) &&
           FlatAdvance(channels) != 0;
  }
  // first: number of the lane's first value in the tensor.
  __device__ Quantizer At(const Quantizer& stream, const Geometry& geometry,
                          int64_t first, int row) const {
    if (!scales.exponents && !scales.centres) return stream;
    const int64_t c =
        (first + (geometry.flat ? int64_t{row} * kLanes : 0)) % channels;
    return OfChannel(stream, scales.exponents ? scales.exponents[c] : 0,
                     scales.centres ? scales.centres[c] : 0);
  }
};

// A block's work on one chunk after the other. One warp codes; the others look
// up a row each for a batch.
class ChunkWriter {
 public:
  static constexpr int kWarps = 1 + kBatchRows;

  // tables: shifted. q, c: (rows + kPadRows) * kLanes elements. All of it is
  // shared by the block.
  __device__ ChunkWriter(const LaneTables& tables, int stride, int shift,
                         WriterMemory* memory, uint16_t* q, uint8_t* c)
      : tables_(tables),
        stride_(stride),
        shift_(shift),
        memory_(memory),
        q_(q),
        c_(c),
        lane_(threadIdx.x % kLanes),
        warp_(threadIdx.x / kLanes) {}

  // f(t) for rows 0 .. n - 1, in any order; then all threads meet.
  template <class F>
  __device__ void Rows(int n, const F& f) const {
#pragma unroll 4
    for (int t = warp_; t < n; t += kWarps) f(t);
    __syncthreads();
  }

  // Reads the first `rows` rows of a chunk of the tensor x, counted by
  // quant.counter. nonzero: of what this thread read.
  template <class T>
  __device__ ChunkKind Prepare(const Quantizer& quant,
                               const ChunkScales& scales,
                               const Geometry& geometry,
                               const ChunkPlace& place, int rows, const T* x,
                               int* nonzero) {
    switch (quant.coding) {
      case Coding::kMidRise:
        return PrepareAs<Coding::kMidRise>(quant, scales, geometry, place, rows,
                                           x, nonzero);
      case Coding::kDither:
        return PrepareAs<Coding::kDither>(quant, scales, geometry, place, rows,
                                          x, nonzero);
      default:
        return PrepareAs<Coding::kPlain>(quant, scales, geometry, place, rows,
                                         x, nonzero);
    }
  }

  // Of a prepared chunk: the lanes with negative codes, this thread's share of
  // the sum of what is coded, and context * kTokens + token of its value in row
  // t.
  __device__ uint32_t negative() const { return memory_->negative; }
  __device__ uint32_t code_sum() const { return seen_.code_sum; }
  __device__ uint32_t IndexAt(int t) const { return Item(t) >> kIndexAt; }

  // Codes a prepared chunk: its words to out as far as there is room for them.
  // Returns how many they are, after the head is written.
  __device__ int Encode(const CodeEntry* entries, uint16_t* out, int room,
                        ChunkHead* head) {
    uint32_t state = kStateLow;  // of the first warp: thread i has state i
    int n_words = 0;
    const auto produce = [&](int batch, int row, int rows) {
      for (; row < BatchRows(batch); row += rows) {
        memory_->items[batch % 2][row * kLanes + lane_] =
            Item(rows_ - 1 - batch * kBatchRows - row);
      }
    };
    produce(0, warp_, kWarps);
    __syncthreads();
    for (int batch = 0; BatchRows(batch) > 0; ++batch) {
      if (warp_ == 0) {
        for (int i = 0; i < BatchRows(batch); ++i) {
          EncodeRow(memory_->items[batch % 2] + i * kLanes, entries, out, room,
                    &state, &n_words);
        }
      } else {
        produce(batch + 1, warp_ - 1, kWarps - 1);
      }
      __syncthreads();
    }
    if (warp_ == 0) {
      head->state[lane_] = state;
      const uint32_t average = __ballot_sync(kAllLanes, how_.average);
      const uint32_t median = __ballot_sync(kAllLanes, how_.median);
      if (lane_ == 0) {
        head->negative = memory_->negative;
        head->average = average;
        head->median = median;
        memory_->n_words = static_cast<uint32_t>(n_words);
      }
    }
    __syncthreads();
    return static_cast<int>(memory_->n_words);
  }

 private:
  // Flags of a chunk.
  static constexpr uint32_t kAny = 1, kUncodable = 2, kCheck = 4;
  // An item: raw bits | how many << 15 | context * kTokens + token << 19.
  static constexpr int kBitsAt = 15, kIndexAt = 19;
  // A byte of c_: the size as a neighbour, and the median's part of the
  // context, which is a multiple of 4 below 32.
  static constexpr int kMedianShift = 3;

  struct Seen {
    uint32_t flags = 0, negative = 0, code_sum = 0;
    uint32_t plain = 0, average = 0, median = 0;
  };

  __device__ int BatchRows(int batch) const {
    return Smaller(kBatchRows, rows_ - batch * kBatchRows);
  }

  template <Coding kCoding, class T>
  __device__ ChunkKind PrepareAs(const Quantizer& quant,
                                 const ChunkScales& scales,
                                 const Geometry& geometry,
                                 const ChunkPlace& place, int rows, const T* x,
                                 int* nonzero) {
    rows_ = rows;
    const Column column = geometry.ColumnOf(place, lane_);
    seen_ = Seen();
    *nonzero = 0;
    __syncthreads();  // with the chunk before
    Rows(3, [&](int t) {
      memory_->sizes[t * kLanes + lane_] = 0;
      if (t < kPadRows) {
        q_[t * kLanes + lane_] = kCodeBias;
        c_[t * kLanes + lane_] = 0;
      } else if (lane_ == 0) {
        memory_->flags = memory_->negative = 0;
      }
    });
    const auto load = [&](int t) {
      return t < column.rows ? ToFloat(x[column.first + t * geometry.row])
                             : 0.0f;
    };
    const auto number = [&](int t) {
      return quant.counter + static_cast<uint32_t>(t * kLanes + lane_);
    };
    const Quantizer lane = scales.At(quant, geometry, column.first, 0);
    const auto quantizer = [&](int t) {
      return scales.vary(geometry) ? scales.At(quant, geometry, column.first, t)
                                   : lane;
    };
    Rows(rows, [&](int t) {
      const float v = load(t);
      *nonzero += !CountsAsZero(v);
      int code = 0;
      const Quantizer q = quantizer(t);
      if (!QuantizeValue<kCoding>(q, v, number(t), &code)) {
        seen_.flags |= kUncodable;
      }
      if (q.verify_all || NeedsCheck<kCoding>(q, code)) seen_.flags |= kCheck;
      if (code != 0) seen_.flags |= kAny;
      if (code < 0) seen_.negative = 1;
      q_[(t + kPadRows) * kLanes + lane_] =
          static_cast<uint16_t>(code + kCodeBias);
    });
    Or(&memory_->negative, seen_.negative << lane_);
    ShareFlags();
    const uint32_t flags = memory_->flags;
    if (flags & kUncodable) return ChunkKind::kRaw;
    if (flags & kCheck) {
      Rows(rows, [&](int t) {
        const int code = q_[(t + kPadRows) * kLanes + lane_] - kCodeBias;
        if (!CodeWithinBound<kCoding>(quantizer(t), load(t), code, number(t))) {
          seen_.flags |= kUncodable;
        }
      });
      if (!Codable()) return ChunkKind::kRaw;
    }
    if (!(flags & kAny)) return ChunkKind::kZero;
    ChoosePredictors();
    Rows(rows, [&](int t) {
      const RowPlaces at = PlacesOf(t, stride_);
      uint16_t median;
      const uint16_t u = CodeAt(at, &median);
      if (u >> kEscapeBits != 0) seen_.flags |= kUncodable;
      seen_.code_sum += u;
      const int part = tables_.median[MedianLevel(median, shift_)];
      c_[at.here + lane_] =
          static_cast<uint8_t>(Neighbour(u, shift_) | part << kMedianShift);
    });
    return Codable() ? ChunkKind::kCoded : ChunkKind::kRaw;
  }

  // Sets bits of a word that all threads share. By whole warps.
  __device__ void Or(uint32_t* word, uint32_t bits) const {
    for (int d = kLanes / 2; d > 0; d /= 2) {
      bits |= __shfl_xor_sync(kAllLanes, bits, d);
    }
    if (lane_ == 0 && bits != 0) atomicOr(word, bits);
  }

  __device__ void ShareFlags() const {
    Or(&memory_->flags, seen_.flags);
    __syncthreads();
  }

  // Whether no thread saw a value that is not.
  __device__ bool Codable() const {
    ShareFlags();
    return !(memory_->flags & kUncodable);
  }

  // Whatever makes the sizes of what is coded the smallest, in sum.
  __device__ void ChoosePredictors() {
    const bool negative = memory_->negative >> lane_ & 1;
    Rows(rows_ / kSampleRows, [&](int i) {
      const RowPlaces at = PlacesOf(kFirstSampleRow + kSampleRows * i, stride_);
      const uint16_t left = q_[at.left + lane_], above = q_[at.above + lane_];
      const auto size = [&](uint16_t p) {
        return Neighbour(Fold(q_[at.here + lane_], p, negative), shift_);
      };
      seen_.plain += size(kCodeBias);
      seen_.average += size(Average(left, above));
      seen_.median += size(Median(left, above, q_[at.above_left + lane_]));
    });
    atomicAdd(memory_->sizes + lane_, seen_.plain);
    atomicAdd(memory_->sizes + kLanes + lane_, seen_.average);
    atomicAdd(memory_->sizes + 2 * kLanes + lane_, seen_.median);
    __syncthreads();
    const uint32_t plain = memory_->sizes[lane_];
    const uint32_t average = memory_->sizes[kLanes + lane_];
    const uint32_t median = memory_->sizes[2 * kLanes + lane_];
    const bool predicted = Smaller(average, median) < plain;
    how_.negative = negative;
    how_.median = predicted && median < average;
    how_.average = predicted && !(median < average);
  }

  // What is coded for a value, and the median of its neighbours.
  __device__ uint16_t CodeAt(const RowPlaces& at, uint16_t* median) const {
    const uint16_t left = q_[at.left + lane_], above = q_[at.above + lane_];
    *median = Median(left, above, q_[at.above_left + lane_]);
    return Fold(q_[at.here + lane_], how_.Predict(left, above, *median),
                how_.negative);
  }

  __device__ int NeighbourAt(int at) const {
    return c_[at] & ((1 << kBitsOfNeighbour) - 1);
  }

  // What coding this thread's value in row t takes.
  __device__ uint32_t Item(int t) const {
    const RowPlaces at = PlacesOf(t, stride_);
    uint16_t unused;
    const uint16_t u = CodeAt(at, &unused);
    const int sum = NeighbourSum(
        NeighbourAt(at.left + lane_), NeighbourAt(at.left2 + lane_),
        NeighbourAt(at.above + lane_), NeighbourAt(at.above2 + lane_));
    const int part = c_[at.here + lane_] >>
                     kBitsOfNeighbour << (kBitsOfNeighbour - kMedianShift);
    const uint32_t context = tables_.ContextOf(sum, how_.negative, part);
    const TokenEntry token =
        tables_.TokenOf(static_cast<uint32_t>(u) >> shift_);
    return (u - token.base()) | static_cast<uint32_t>(token.bits()) << kBitsAt |
           (context * kTokens + token.token()) << kIndexAt;
  }

  // By the first warp.
  __device__ void EncodeRow(const uint32_t* items, const CodeEntry* entries,
                            uint16_t* out, int room, uint32_t* state,
                            int* n_words) const {
    // Takes a word off the states that would become too large.
    const auto shrink = [&](uint32_t which) {
      if (!(which >> lane_ & 1)) return;
      const int at = *n_words + PopCount(which & BitsBelow(lane_));
      if (at < room) out[at] = static_cast<uint16_t>(*state);
      *state >>= 16;
    };
    const uint32_t item = items[LaneOfState(lane_)];
    const CodeEntry entry = entries[item >> kIndexAt];
    const int raw_bits = item >> kBitsAt & 15;
    const uint32_t raw_large =
        __ballot_sync(kAllLanes, *state >= kStateLow << (16 - raw_bits));
    shrink(raw_large);
    *n_words += PopCount(raw_large);
    *state = *state << raw_bits | (item & ((1u << kBitsAt) - 1));
    const uint32_t large = __ballot_sync(
        kAllLanes, *state >= entry.frequency() << (31 - kProbBits));
    shrink(large);
    *n_words += PopCount(large);
    *state = entry.Put(*state);
  }

  static constexpr int kBitsOfNeighbour = 5;
  static_assert(kMaxNeighbour < 1 << kBitsOfNeighbour, "a byte holds both");

  const LaneTables& tables_;
  const int stride_, shift_;
  WriterMemory* const memory_;
  uint16_t* const q_;
  uint8_t* const c_;
  const int lane_, warp_;
  int rows_ = 0;
  Seen seen_;  // of this thread
  Lane how_;
};

// --- Decoding ----------------------------------------------------------------

// The latest rows of a chunk, in rings: codes and sizes of neighbours.
struct History {
  uint16_t* q;
  uint8_t* c;
  int q_rows, c_rows;  // powers of two, at least stride + 1 and 2 stride + 1

  // place: t * kLanes + lane of row t.
  __device__ uint16_t& Code(int place) const {
    return q[place & (q_rows * kLanes - 1)];
  }
  __device__ uint8_t& Size(int place) const {
    return c[place & (c_rows * kLanes - 1)];
  }
};

// What a warp needs of the stream.
struct ReaderTables {
  LaneTables lane;  // shifted
  SearchTables search;
};

// Has device memory that is read soon come nearer.
static __device__ inline void Prefetch(const void* address) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L1 [%0];" ::"l"(address));
#else
  (void)address;
#endif
}
// How far before the words that a row reads: two lines of the cache.
constexpr int kPrefetchWords = 128;

// Calls put(t, code) for the codes of lane LaneOfState(i) in thread i, from row
// 0 up; false, some of them put, when the words do not come out even.
// kAbove: whether there is a stride.
template <bool kAbove, class Put>
__device__ bool ReadChunk(const ReaderTables& tables, int stride, int shift,
                          const ChunkHead& head, const uint16_t* words,
                          int n_words, int rows, const History& history,
                          const Put& put) {
  const int i = threadIdx.x % kLanes, lane = LaneOfState(i);
  const Lane how(head, lane);
  uint32_t state = head.state[i];
  uint16_t left = kCodeBias, above = kCodeBias;
  int size_left = 0, size_left2 = 0;
  if (__any_sync(kAllLanes, state < kStateLow || state >> 31 != 0 ||
                                (how.average && how.median))) {
    return false;
  }
  int end = n_words;
  // A word for each state that became too small; false when there are not as
  // many.
  const auto refill = [&] {
    const uint32_t low = __ballot_sync(kAllLanes, state < kStateLow);
    end -= PopCount(low);
    if (end < 0) return false;
    if (low >> i & 1) {
      state = state << 16 | words[end + PopCount(low & BitsBelow(i))];
    }
    return true;
  };
  const int back = stride * kLanes;
  for (int t = 0, place = lane; t < rows; ++t, place += kLanes) {
    Prefetch(words + Larger(end - kPrefetchWords, 0));
    const bool has = kAbove && t >= stride;
    const bool has2 = has && t - stride >= stride;
    const uint16_t now_above = has ? history.Code(place - back) : left;
    const uint16_t above_left = has && t > stride ? above : now_above;
    const int size_above = has ? history.Size(place - back) : size_left;
    const int size_above2 = has2 ? history.Size(place - 2 * back) : size_left2;
    above = now_above;
    const uint16_t median = Median(left, above, above_left);
    const uint16_t predicted = how.Predict(left, above, median);
    const int context = tables.lane.ContextOf(
        NeighbourSum(size_left, size_left2, size_above, size_above2),
        how.negative, tables.lane.median[MedianLevel(median, shift)]);
    const uint32_t slot = state & (kProbOne - 1);
    const int number = tables.search.Find(context, slot);
    const uint32_t packed = tables.search.packed[context * kTokens + number];
    const TokenEntry token = tables.lane.of_token[number];
    state = (packed >> 16) * (state >> kProbBits) + slot - (packed & 0xffff);
    if (!refill()) return false;
    const uint32_t raw = state & ((1u << token.bits()) - 1);
    state >>= token.bits();
    if (!refill()) return false;
    const uint16_t code = static_cast<uint16_t>(token.base() + raw);
    left = Unfold(code, predicted, how.negative);
    size_left2 = size_left;
    size_left = Neighbour(code, shift);
    if (kAbove) {
      history.Code(place) = left;
      history.Size(place) = static_cast<uint8_t>(size_left);
    }
    put(t, static_cast<int>(left) - kCodeBias);
  }
  return __all_sync(kAllLanes, state == kStateLow) &&
         (end == 0 || (end == 1 && words[0] == 0));
}

}  // namespace comptrain::rans

// Codec B as a GPU does it, and a test on the CPU: a chunk is encoded by a team
// of warps (team.h) and decoded by one (warp.h). rans_scalar.cc is the plain
// definition of the same.
#ifndef TF_COMPTRAIN_CC_CODEC_RANS_LANE_H_
#define TF_COMPTRAIN_CC_CODEC_RANS_LANE_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cc/codec/bits.h"
#include "cc/codec/half.h"
#include "cc/codec/host_device.h"
#include "cc/codec/quantize.h"
#include "cc/codec/rans_chunk.h"
#include "cc/codec/rans_code.h"
#include "cc/codec/rans_layout.h"
#include "cc/codec/rans_rows.h"
#include "cc/codec/warp.h"

namespace comptrain {
namespace rans {

// --- Tables ------------------------------------------------------------------

// How a token is written: token | raw bits << 4 | its first code << 8.
struct TokenEntry {
  uint32_t packed;

  COMPTRAIN_HD int token() const { return packed & 15; }
  COMPTRAIN_HD int bits() const { return packed >> 4 & 15; }
  COMPTRAIN_HD uint32_t base() const { return packed >> 8; }
  COMPTRAIN_HD TokenEntry Shifted(int shift) const {
    if (token() == kEscape) return *this;
    return {packed + (static_cast<uint32_t>(shift) << 4) +
            (((base() << shift) - base()) << 8)};
  }
};

constexpr int kTableValues = 128;  // larger ones count as the last

// kByteTables, and the tokens by code >> shift (the last: escape) and by number.
struct LaneTables {
  TokenEntry of_value[kTableValues + 1];
  TokenEntry of_token[kTokens];
  uint8_t context[kTableValues];
  uint8_t size[kTableValues];
  uint8_t median[16];

  COMPTRAIN_HD TokenEntry TokenOf(uint32_t v) const {
    return of_value[v >= kEscapeFrom ? kTableValues
                                     : Smaller<uint32_t>(v, kTableValues - 1)];
  }
  // neighbours: a NeighbourSum. median_part: of the lane's median level.
  COMPTRAIN_HD int ContextOf(int neighbours, bool negative,
                             int median_part) const {
    return negative ? context[neighbours] : size[neighbours] + median_part;
  }
};

constexpr LaneTables MakeLaneTables() {
  LaneTables t = {};
  for (int k = 0; k < kTokens; ++k) {
    const uint32_t bits = k == kEscape ? kEscapeBits : kTokenBits[k];
    t.of_token[k].packed = static_cast<uint32_t>(k) | bits << 4 |
                           static_cast<uint32_t>(kTokenBase[k]) << 8;
  }
  for (int v = 0; v < kTableValues; ++v) {
    t.of_value[v] = t.of_token[kByteTables.token[v]];
    t.context[v] = kByteTables.context[v];
    t.size[v] = kByteTables.size[v];
  }
  t.of_value[kTableValues] = t.of_token[kEscape];
  for (int v = 0; v < 16; ++v) t.median[v] = kByteTables.median[v];
  return t;
}
constexpr LaneTables kLaneTables = MakeLaneTables();

// Words of the tables, of which the first so many are tokens, to be shifted.
constexpr int kLaneTableWords = sizeof(LaneTables) / 4;
constexpr int kTokenWords = kTableValues + 1 + kTokens;
COMPTRAIN_HD static inline uint32_t ShiftedWord(const LaneTables& tables, int i,
                                                int shift) {
  uint32_t word;
  memcpy(&word, reinterpret_cast<const uint8_t*>(&tables) + 4 * i, sizeof word);
  return i < kTokenWords ? TokenEntry{word}.Shifted(shift).packed : word;
}

// What coding a token needs of its frequency f and its start: division by f as
// a multiplication, exact for states below 2^31.
struct CodeEntry {
  uint32_t reciprocal;  // ceil(2^(31 + log2) / f)
  uint32_t packed;      // start | f << 12 | log2 << 24, log2 = ceil(log2 f)

  CodeEntry() = default;
  COMPTRAIN_HD CodeEntry(uint32_t start, uint32_t f) {
    const uint32_t log2 = BitLength(f - 1);
    reciprocal =
        static_cast<uint32_t>(((uint64_t{1} << (31 + log2)) + f - 1) / f);
    packed = start | f << 12 | log2 << 24;
  }

  COMPTRAIN_HD uint32_t frequency() const { return packed >> 12 & 4095; }
  // state / f * 4096 + state % f + start
  COMPTRAIN_HD uint32_t Put(uint32_t state) const {
    const uint32_t quotient = static_cast<uint32_t>(
        uint64_t{state << 1} * reciprocal >> 32 >> (packed >> 24));
    return state + (packed & 4095) + quotient * (kProbOne - frequency());
  }
};

// What chunks were sampled for, before any is coded.
struct Sample {
  uint64_t sum, count;       // of codes
  uint64_t lanes, negative;  // of chunks, and those with negative codes
  uint64_t counts[kContexts * kTokens];
};

COMPTRAIN_HD static inline Prior PriorOf(const Sample& s) {
  return 2 * s.negative > s.lanes ? kTwoSided : kOneSided;
}

// What the sample says.
struct WriterModel {
  int shift;
  uint32_t table;  // as in TableHead
  uint16_t freq[kContexts * kTokens];
  CodeEntry entries[kContexts * kTokens];

  // One context's part; built_in: kBuiltInFrequencies.
  COMPTRAIN_HD void Fill(const Sample& sample, bool counted,
                         const uint16_t (*built_in)[kContexts * kTokens],
                         int context) {
    const Prior prior = PriorOf(sample);
    shift = ShiftFor(sample.sum, sample.count);
    table = counted ? kCountedTable : static_cast<uint32_t>(prior);
    const int at = context * kTokens;
    uint16_t* f = freq + at;
    for (int k = 0; k < kTokens; ++k) f[k] = built_in[prior][at + k];
    if (counted) {
      NormalizeContext(sample.counts + at, built_in[prior] + at, f);
    }
    uint32_t start = 0;
    for (int k = 0; k < kTokens; ++k) {
      entries[at + k] = CodeEntry(start, f[k]);
      start += f[k];
    }
  }
};

// Tokens by their place in the frequencies, in two steps of four.
struct SearchTables {
  struct alignas(8) Starts {
    uint16_t of[4];
  };
  // [0]: of tokens 4, 8, 12; [1 + i]: of 4 i + 1, 4 i + 2, 4 i + 3.
  Starts starts[5][kContexts];
  uint32_t packed[kContexts * kTokens];  // start | f << 16

  // False when the frequencies of the context are none: see SetFrequencies.
  COMPTRAIN_HD bool Fill(int context, const uint16_t* freq) {
    uint32_t start = 0;
    for (int k = 0; k < kTokens; ++k) {
      const uint32_t f = freq[k];
      if (f == 0 || f >= kProbOne) return false;
      packed[context * kTokens + k] = start | f << 16;
      Starts& part = starts[k % 4 == 0 ? 0 : 1 + k / 4][context];
      if (k > 0) {
        part.of[k % 4 == 0 ? k / 4 - 1 : k % 4 - 1] =
            static_cast<uint16_t>(start);
      }
      start += f;
      if (start > kProbOne) return false;
    }
    return start == kProbOne;
  }

  COMPTRAIN_HD int Find(int context, uint32_t slot) const {
    const Starts coarse = starts[0][context];
    const int part =
        (slot >= coarse.of[0]) + (slot >= coarse.of[1]) + (slot >= coarse.of[2]);
    const Starts fine = starts[1 + part][context];
    return 4 * part + (slot >= fine.of[0]) + (slot >= fine.of[1]) +
           (slot >= fine.of[2]);
  }
};

// --- Encoding ----------------------------------------------------------------

// Rows that are looked up while those before them are coded.
constexpr int kBatchRows = 8;

// What the threads of a team share besides the codes.
struct WriterMemory {
  uint32_t items[2][kBatchRows * kLanes];
  uint32_t sizes[3 * kLanes];  // of codes, by predictor
  uint32_t flags, negative, n_words;
};

// Of the values that a thread saw.
struct LaneSums {
  int nonzero = 0;
  float sum = 0, sum_sq = 0;
  double large_sum = 0, large_sum_sq = 0;  // of those whose squares add up badly

  COMPTRAIN_HD void Add(float v) {
    const float magnitude = std::fabs(v);
    if (magnitude < 1e15f) {
      nonzero += !CountsAsZero(v);
      sum += v;
      sum_sq += v * v;
    } else if (magnitude <= 3.402823466e38f) {
      ++nonzero;
      large_sum += v;
      large_sum_sq += static_cast<double>(v) * v;
    }
  }
};

// A team's work on one chunk after the other.
template <class Team>
class ChunkWriter {
 public:
  template <class T>
  using Lanes = typename Team::template Lanes<T>;

  // tables: shifted. q, c: (rows + kPadRows) * kLanes elements. All of it is
  // shared by the team.
  COMPTRAIN_HD ChunkWriter(const Team& team, const LaneTables& tables,
                           int stride, int shift, WriterMemory* memory,
                           uint16_t* q, uint8_t* c)
      : team_(team), tables_(tables), stride_(stride), shift_(shift),
        memory_(memory), q_(q), c_(c) {}

  // Reads the first `rows` rows of a chunk of the tensor x, counted by
  // quant.counter. Sums: of what each thread read.
  template <class T>
  COMPTRAIN_HD ChunkKind Prepare(const Quantizer& quant, const Geometry& geometry,
                                 const ChunkPlace& place, int rows, const T* x,
                                 Lanes<LaneSums>* sums) {
    switch (quant.coding) {
      case Coding::kMidRise:
        return PrepareAs<Coding::kMidRise>(quant, geometry, place, rows, x, sums);
      case Coding::kDither:
        return PrepareAs<Coding::kDither>(quant, geometry, place, rows, x, sums);
      default:
        return PrepareAs<Coding::kPlain>(quant, geometry, place, rows, x, sums);
    }
  }

  // Of a prepared chunk: the lanes with negative codes, a thread's share of the
  // sum of what is coded, and context * kTokens + token of a value.
  COMPTRAIN_HD uint32_t negative() const { return memory_->negative; }
  COMPTRAIN_HD uint32_t CodeSum(int lane) { return seen_[lane].code_sum; }
  COMPTRAIN_HD uint32_t IndexAt(int t, int lane) {
    return Item(t, lane) >> kIndexAt;
  }

  // Codes a prepared chunk: its words to out as far as there is room for them.
  // Returns how many they are, after the head is written.
  COMPTRAIN_HD int Encode(const CodeEntry* entries, uint16_t* out, int room,
                          ChunkHead* head) {
    Lanes<uint32_t> state;
    int n_words = 0;
    team_.Each([&](int i) { state[i] = kStateLow; });
    const auto produce = [&](int batch) {
      return [this, batch](int i, int lane) {
        memory_->items[batch % 2][i * kLanes + lane] =
            Item(rows_ - 1 - batch * kBatchRows - i, lane);
      };
    };
    team_.Rows(BatchRows(0), produce(0));
    for (int batch = 0; BatchRows(batch) > 0; ++batch) {
      team_.Meanwhile(
          BatchRows(batch + 1), produce(batch + 1), [&](const auto& warp) {
            for (int i = 0; i < BatchRows(batch); ++i) {
              EncodeRow(warp, memory_->items[batch % 2] + i * kLanes, entries,
                        out, room, &state, &n_words);
            }
          });
    }
    const auto nothing = [](int, int) {};
    team_.Meanwhile(0, nothing, [&](const auto& warp) {
      const uint32_t average =
          warp.Ballot([&](int lane) { return how_[lane].average; });
      const uint32_t median =
          warp.Ballot([&](int lane) { return how_[lane].median; });
      warp.Each([&](int i) {
        head->state[i] = state[i];
        if (i != 0) return;
        head->negative = memory_->negative;
        head->average = average;
        head->median = median;
        memory_->n_words = static_cast<uint32_t>(n_words);
      });
    });
    return static_cast<int>(memory_->n_words);
  }

 private:
  // Flags of a chunk.
  static constexpr uint32_t kAny = 1, kUncodable = 2, kCheck = 4;
  // An item: raw bits | how many << 15 | context * kTokens + token << 19.
  static constexpr int kBitsAt = 15, kIndexAt = 19;
  // A byte of c_: the size as a neighbour, and the median's part of the context,
  // which is a multiple of 4 below 32.
  static constexpr int kMedianShift = 3;

  struct Seen {
    uint32_t flags = 0, negative = 0, code_sum = 0;
    uint32_t plain = 0, average = 0, median = 0;
  };

  COMPTRAIN_HD int BatchRows(int batch) const {
    return Smaller(kBatchRows, rows_ - batch * kBatchRows);
  }

  template <Coding kCoding, class T>
  COMPTRAIN_HD ChunkKind PrepareAs(const Quantizer& quant,
                                   const Geometry& geometry,
                                   const ChunkPlace& place, int rows, const T* x,
                                   Lanes<LaneSums>* sums) {
    rows_ = rows;
    Lanes<Column> column;
    team_.Each([&](int lane) {
      column[lane] = geometry.ColumnOf(place, lane);
      seen_[lane] = Seen();
      (*sums)[lane] = LaneSums();
    });
    team_.Rows(3, [&](int t, int lane) {
      memory_->sizes[t * kLanes + lane] = 0;
      if (t < kPadRows) {
        q_[t * kLanes + lane] = kCodeBias;
        c_[t * kLanes + lane] = 0;
      } else if (lane == 0) {
        memory_->flags = memory_->negative = 0;
      }
    });
    const auto load = [&](int t, int lane) {
      const Column& at = column[lane];
      return t < at.rows ? ToFloat(x[at.first + t * geometry.row]) : 0.0f;
    };
    const auto number = [&](int t, int lane) {
      return quant.counter + static_cast<uint32_t>(t * kLanes + lane);
    };
    team_.Rows(rows, [&](int t, int lane) {
      const float v = load(t, lane);
      (*sums)[lane].Add(v);
      int code = 0;
      Seen& seen = seen_[lane];
      if (!QuantizeValue<kCoding>(quant, v, number(t, lane), &code)) {
        seen.flags |= kUncodable;
      }
      if (NeedsCheck<kCoding>(code)) seen.flags |= kCheck;
      if (code != 0) seen.flags |= kAny;
      if (code < 0) seen.negative = 1;
      q_[(t + kPadRows) * kLanes + lane] = static_cast<uint16_t>(code + kCodeBias);
    });
    team_.Each([&](int lane) {
      team_.Or(&memory_->flags, seen_[lane].flags);
      team_.Or(&memory_->negative, seen_[lane].negative << lane);
    });
    const uint32_t flags = memory_->flags;
    if (flags & kUncodable) return ChunkKind::kRaw;
    if (quant.verify_all || (flags & kCheck)) {
      team_.Rows(rows, [&](int t, int lane) {
        const int code = q_[(t + kPadRows) * kLanes + lane] - kCodeBias;
        if (!CodeWithinBound<kCoding>(quant, load(t, lane), code,
                                      number(t, lane))) {
          seen_[lane].flags |= kUncodable;
        }
      });
      if (!Codable()) return ChunkKind::kRaw;
    }
    if (!(flags & kAny)) return ChunkKind::kZero;
    ChoosePredictors();
    team_.Rows(rows, [&](int t, int lane) {
      const RowPlaces at = PlacesOf(t, stride_);
      uint16_t median;
      const uint16_t u = CodeAt(at, lane, &median);
      if (u >> kEscapeBits != 0) seen_[lane].flags |= kUncodable;
      seen_[lane].code_sum += u;
      const int part = tables_.median[MedianLevel(median, shift_)];
      c_[at.here + lane] =
          static_cast<uint8_t>(Neighbour(u, shift_) | part << kMedianShift);
    });
    return Codable() ? ChunkKind::kCoded : ChunkKind::kRaw;
  }

  // Whether no thread saw a value that is not.
  COMPTRAIN_HD bool Codable() {
    team_.Each([&](int lane) { team_.Or(&memory_->flags, seen_[lane].flags); });
    return !(memory_->flags & kUncodable);
  }

  // Whatever makes the sizes of what is coded the smallest, in sum.
  COMPTRAIN_HD void ChoosePredictors() {
    const uint32_t negative = memory_->negative;
    team_.Rows(rows_ / kSampleRows, [&](int i, int lane) {
      const RowPlaces at = PlacesOf(kFirstSampleRow + kSampleRows * i, stride_);
      const uint16_t left = q_[at.left + lane], above = q_[at.above + lane];
      const auto size = [&](uint16_t p) {
        return Neighbour(Fold(q_[at.here + lane], p, negative >> lane & 1),
                         shift_);
      };
      seen_[lane].plain += size(kCodeBias);
      seen_[lane].average += size(Average(left, above));
      seen_[lane].median += size(Median(left, above, q_[at.above_left + lane]));
    });
    team_.Each([&](int lane) {
      team_.Add(memory_->sizes + lane, seen_[lane].plain);
      team_.Add(memory_->sizes + kLanes + lane, seen_[lane].average);
      team_.Add(memory_->sizes + 2 * kLanes + lane, seen_[lane].median);
    });
    team_.Each([&](int lane) {
      const uint32_t plain = memory_->sizes[lane];
      const uint32_t average = memory_->sizes[kLanes + lane];
      const uint32_t median = memory_->sizes[2 * kLanes + lane];
      const bool predicted = Smaller(average, median) < plain;
      how_[lane].negative = negative >> lane & 1;
      how_[lane].median = predicted && median < average;
      how_[lane].average = predicted && !(median < average);
    });
  }

  // What is coded for a value, and the median of its neighbours.
  COMPTRAIN_HD uint16_t CodeAt(const RowPlaces& at, int lane, uint16_t* median) {
    const uint16_t left = q_[at.left + lane], above = q_[at.above + lane];
    *median = Median(left, above, q_[at.above_left + lane]);
    return Fold(q_[at.here + lane], how_[lane].Predict(left, above, *median),
                how_[lane].negative);
  }

  COMPTRAIN_HD int NeighbourAt(int at) const {
    return c_[at] & ((1 << kBitsOfNeighbour) - 1);
  }

  COMPTRAIN_HD uint32_t Item(int t, int lane) {
    const RowPlaces at = PlacesOf(t, stride_);
    uint16_t unused;
    const uint16_t u = CodeAt(at, lane, &unused);
    const int sum =
        NeighbourSum(NeighbourAt(at.left + lane), NeighbourAt(at.left2 + lane),
                     NeighbourAt(at.above + lane), NeighbourAt(at.above2 + lane));
    const int part =
        c_[at.here + lane] >> kBitsOfNeighbour << (kBitsOfNeighbour - kMedianShift);
    const uint32_t context =
        tables_.ContextOf(sum, how_[lane].negative, part);
    const TokenEntry token = tables_.TokenOf(static_cast<uint32_t>(u) >> shift_);
    return (u - token.base()) | static_cast<uint32_t>(token.bits()) << kBitsAt |
           (context * kTokens + token.token()) << kIndexAt;
  }

  // Thread i has state i.
  template <class Warp>
  COMPTRAIN_HD void EncodeRow(const Warp& warp, const uint32_t* items,
                              const CodeEntry* entries, uint16_t* out, int room,
                              Lanes<uint32_t>* state, int* n_words) const {
    Lanes<uint32_t> item;
    Lanes<CodeEntry> entry;
    // Takes a word off the states that would become too large.
    const auto shrink = [&](uint32_t which, int i) {
      if (!(which >> i & 1)) return;
      const int at = *n_words + PopCount(which & BitsBelow(i));
      if (at < room) out[at] = static_cast<uint16_t>((*state)[i]);
      (*state)[i] >>= 16;
    };
    const uint32_t raw_large = warp.Ballot([&](int i) {
      item[i] = items[LaneOfState(i)];
      entry[i] = entries[item[i] >> kIndexAt];
      return (*state)[i] >= kStateLow << (16 - (item[i] >> kBitsAt & 15));
    });
    const int raw_words = PopCount(raw_large);
    const uint32_t large = warp.Ballot([&](int i) {
      shrink(raw_large, i);
      (*state)[i] = (*state)[i] << (item[i] >> kBitsAt & 15) |
                    (item[i] & ((1u << kBitsAt) - 1));
      return (*state)[i] >= entry[i].frequency() << (31 - kProbBits);
    });
    *n_words += raw_words;
    warp.Each([&](int i) {
      shrink(large, i);
      (*state)[i] = entry[i].Put((*state)[i]);
    });
    *n_words += PopCount(large);
  }

  static constexpr int kBitsOfNeighbour = 5;
  static_assert(kMaxNeighbour < 1 << kBitsOfNeighbour, "a byte holds both");

  const Team& team_;
  const LaneTables& tables_;
  const int stride_, shift_;
  WriterMemory* const memory_;
  uint16_t* const q_;
  uint8_t* const c_;
  int rows_ = 0;
  Lanes<Seen> seen_;
  Lanes<Lane> how_;
};

// --- Decoding ----------------------------------------------------------------

// The latest rows of a chunk, in rings: codes and sizes of neighbours.
struct History {
  uint16_t* q;
  uint8_t* c;
  int q_rows, c_rows;  // powers of two, at least stride + 1 and 2 stride + 1

  COMPTRAIN_HD uint16_t& Code(int t, int lane) const {
    return q[(t & (q_rows - 1)) * kLanes + lane];
  }
  COMPTRAIN_HD uint8_t& Size(int t, int lane) const {
    return c[(t & (c_rows - 1)) * kLanes + lane];
  }
};

// What a warp needs of the stream.
struct ReaderTables {
  LaneTables lane;  // shifted
  SearchTables search;
};

// Calls put(t, lane, code) for the codes of a chunk, from row 0 up; false, some
// of them put, when the words do not come out even.
template <class Warp, class Put>
COMPTRAIN_HD bool ReadChunk(const Warp& warp, const ReaderTables& tables,
                            int stride, int shift, const ChunkHead& head,
                            const uint16_t* words, int n_words, int rows,
                            const History& history, const Put& put) {
  struct Reader {
    Lane how;
    uint32_t state;
    TokenEntry token;
    uint16_t left, above, predicted, code;
    uint8_t size_left, size_left2;
  };
  // Thread i has state i and its lane.
  typename Warp::template Lanes<Reader> reader;
  const uint32_t bad = warp.Ballot([&](int i) {
    Reader& r = reader[i];
    r.how = Lane(head, LaneOfState(i));
    r.state = head.state[i];
    r.left = r.above = kCodeBias;
    r.size_left = r.size_left2 = 0;
    return r.state < kStateLow || r.state >> 31 != 0 ||
           (r.how.average && r.how.median);
  });
  if (bad != 0) return false;
  int end = n_words;
  const auto refill = [&](Reader& r, uint32_t low, int i) {
    if (!(low >> i & 1)) return;
    r.state = r.state << 16 | words[end + PopCount(low & BitsBelow(i))];
  };
  for (int t = 0; t < rows; ++t) {
    const bool has = stride > 0 && t >= stride;
    const bool has2 = has && t - stride >= stride;
    uint32_t low = warp.Ballot([&](int i) {
      const int lane = LaneOfState(i);
      Reader& r = reader[i];
      const uint16_t above = has ? history.Code(t - stride, lane) : r.left;
      const uint16_t above_left = has && t > stride ? r.above : above;
      const int size_above = has ? history.Size(t - stride, lane) : r.size_left;
      const int size_above2 =
          has2 ? history.Size(t - 2 * stride, lane) : r.size_left2;
      r.above = above;
      const uint16_t median = Median(r.left, above, above_left);
      r.predicted = r.how.Predict(r.left, above, median);
      const int context = tables.lane.ContextOf(
          NeighbourSum(r.size_left, r.size_left2, size_above, size_above2),
          r.how.negative, tables.lane.median[MedianLevel(median, shift)]);
      const uint32_t slot = r.state & (kProbOne - 1);
      const int token = tables.search.Find(context, slot);
      const uint32_t packed = tables.search.packed[context * kTokens + token];
      r.token = tables.lane.of_token[token];
      r.state = (packed >> 16) * (r.state >> kProbBits) + slot - (packed & 0xffff);
      return r.state < kStateLow;
    });
    end -= PopCount(low);
    if (end < 0) return false;
    const uint32_t low_raw = warp.Ballot([&](int i) {
      Reader& r = reader[i];
      refill(r, low, i);
      const uint32_t raw = r.state & ((1u << r.token.bits()) - 1);
      r.state >>= r.token.bits();
      r.code = static_cast<uint16_t>(r.token.base() + raw);
      return r.state < kStateLow;
    });
    end -= PopCount(low_raw);
    if (end < 0) return false;
    warp.Each([&](int i) {
      const int lane = LaneOfState(i);
      Reader& r = reader[i];
      refill(r, low_raw, i);
      const uint16_t q = Unfold(r.code, r.predicted, r.how.negative);
      r.left = q;
      r.size_left2 = r.size_left;
      r.size_left = static_cast<uint8_t>(Neighbour(r.code, shift));
      history.Code(t, lane) = q;
      history.Size(t, lane) = r.size_left;
      put(t, lane, static_cast<int>(q) - kCodeBias);
    });
  }
  const uint32_t odd =
      warp.Ballot([&](int i) { return reader[i].state != kStateLow; });
  return odd == 0 && (end == 0 || (end == 1 && words[0] == 0));
}

}  // namespace rans
}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_RANS_LANE_H_

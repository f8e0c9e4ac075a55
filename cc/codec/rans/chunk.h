// The inner loops of rans: one chunk of 32 lanes at a time, once per
// instruction set. All of them write the same bytes.
//
// Inline functions are static: sources for wider instruction sets include this.
#pragma once

#include <cstdint>

#include "cc/codec/common/host_device.h"
#include "cc/codec/common/isa.h"
#include "cc/codec/rans/model.h"
#include "cc/codec/stream/quantizer.h"
#include "cc/codec/stream/stream.h"

namespace comptrain::rans {

constexpr int kLanes = 32;
constexpr int kMaxPixels = 512;  // of a run
constexpr int kChunkValues = kLanes * kMaxPixels;
constexpr int kPadRows = 2;               // rows of zeros before the first
constexpr uint16_t kCodeBias = 0x8000;    // codes are kept as q + this
constexpr uint32_t kStateLow = 1u << 15;  // states are in [2^15, 2^31)
// A kernel may write and read this many 16-bit words past those it reports.
constexpr int kSlackWords = 32;
// A value takes at most two words: one for its token, one for its raw bits.
constexpr int kMaxChunkWords = 2 * kChunkValues + kSlackWords;

// What precedes the words of a chunk: the states, and a bit for each lane.
struct ChunkHead {
  uint32_t state[kLanes];  // in the order of LaneOfState
  uint32_t negative;       // the lane has negative codes
  // What codes are predicted by, 0 without either, never both.
  uint32_t average;  // the mean of left and above
  uint32_t median;   // of left, above and left + above - above-left: the plane
                     // on slopes, no overshoot at edges
};
static_assert(sizeof(ChunkHead) == 140, "packed layout");

// State i belongs to this lane: the order in which 16-bit lanes unpack to
// 32 bits in vectors of 128.
COMPTRAIN_HD constexpr int LaneOfState(int i) {
  return i % 16 / 4 * 8 + i / 16 * 4 + i % 4;
}

// Row t is at (t + kPadRows) * kLanes.
struct ChunkWork {
  alignas(64) uint16_t q[(kMaxPixels + kPadRows) * kLanes];  // biased
  alignas(64) uint16_t u[(kMaxPixels + kPadRows) * kLanes];  // to be coded
  alignas(64) uint16_t c[(kMaxPixels + kPadRows) * kLanes];  // neighbour sizes
  // context * kTokens + token, of a prepared chunk
  alignas(64) uint16_t index[(kMaxPixels + kPadRows) * kLanes];
  alignas(64) uint16_t words[kMaxChunkWords];
};

enum class ChunkKind { kZero, kCoded, kRaw };

// Where the rows of a chunk are, in bytes from its first value: from a row to
// the next, and from lane 0 to lanes 0, 8, 16 and 24. Eight lanes are always
// neighbours in memory.
constexpr int kPieces = kLanes / 8;
struct Pitch {
  int64_t row;
  int64_t piece[kPieces];
};

// The values of a chunk, in host memory of the caller; or its first rows.
struct ChunkValues {
  const uint8_t* x;
  Pitch pitch;
  int rows;
};

// Fills work but for words, and the head but for its states; unspecified unless
// kCoded. *nonzero: how many values are not zero.
using PrepareFn = ChunkKind (*)(const Quantizer& quant, const Model& model,
                                const ChunkValues& from, ChunkWork* work,
                                ChunkHead* head, int64_t* nonzero);

// A prepared chunk to encode.
struct EncodeJob {
  ChunkWork* work;  // the kernel fills words
  ChunkHead* head;  // and state
  int n_words;      // set by the kernel
};
constexpr int kMaxJobs = 2;

// Encodes chunks of as many rows, at most ChunkKernels::at_once.
using EncodeChunksFn = void (*)(const Model& model, int rows, EncodeJob* jobs,
                                int n_jobs);

// A chunk to decode: to out, or only to work->q when out is null.
struct DecodeJob {
  const ChunkHead* head;
  const uint16_t* words;  // kSlackWords more are readable
  int n_words;
  uint32_t counter;    // of the first value, for dither
  int32_t first_lane;  // of its first row, as Quantizer has it
  ChunkWork* work;
  void* out;
  Pitch pitch;  // of out
  bool ok;      // set by the kernel: the words came out even
};

// Decodes chunks of as many rows, at most ChunkKernels::at_once.
using DecodeChunksFn = void (*)(const Quantizer& quant, const Model& model,
                                int rows, DecodeJob* jobs, int n_jobs);

// mask[t - first] bit l = code of row t, lane l of a decoded chunk is not zero.
using MaskRowsFn = void (*)(const ChunkWork& work, int first, int last,
                            uint32_t* mask);

struct ChunkKernels {
  PrepareFn prepare;
  EncodeChunksFn encode;
  DecodeChunksFn decode;
  MaskRowsFn mask;
  bool needs_slots;  // decode reads Model::slots
  int at_once;       // chunks that encode and decode are fastest with
};

ChunkKernels ChunkKernelsScalar(DType dtype, Coding coding);
ChunkKernels ChunkKernelsAvx2(DType dtype, Coding coding);
ChunkKernels ChunkKernelsAvx512(DType dtype, Coding coding);
static inline ChunkKernels SelectKernels(Isa isa, DType dtype, Coding coding) {
  return COMPTRAIN_FOR_ISA(isa, ChunkKernels)(dtype, coding);
}

// The parts of these.
DecodeChunksFn DecodeChunksAvx2(DType dtype, Coding coding);
DecodeChunksFn DecodeChunksAvx512(DType dtype, Coding coding);
void EncodeChunksAvx2(const Model&, int rows, EncodeJob* jobs, int n_jobs);
void EncodeChunksAvx512(const Model&, int rows, EncodeJob* jobs, int n_jobs);
void MaskRowsAvx2(const ChunkWork&, int first, int last, uint32_t* mask);
void MaskRowsAvx512(const ChunkWork&, int first, int last, uint32_t* mask);

}  // namespace comptrain::rans

// The inner loops of plane: one 32 x 32 tile at a time, once per
// instruction set. All of them write the same bytes.
//
// Inline functions are static: sources for wider instruction sets include this,
// and the linker must not give their copies to others.
#pragma once

#include <cstdint>

#include "cc/codec/common/isa.h"
#include "cc/codec/stream/quantizer.h"

namespace comptrain::plane {

constexpr int kLanes = 32;   // channels in a tile
constexpr int kPixels = 32;  // pixels in a tile
constexpr int kLog2Pixels = 5;
constexpr int kTileValues = kLanes * kPixels;
constexpr int kMaxTileWords = 1024;
// A kernel may store this many words past the ones it reports, and may read
// this many past a tile's payload.
constexpr int kSlackWords = 32;

// A directory entry: payload words in bits 0-10, then these.
constexpr uint16_t kWordsMask = 0x7ff;
constexpr uint16_t kDelta = 1 << 11;
constexpr uint16_t kZigzag = 1 << 12;
constexpr uint16_t kWide = 1 << 13;
constexpr uint16_t kRaw = 1 << 14;

// Encodes a whole tile; x: its first value, rows row_bytes apart; next: the
// same of the tile to come, fetched ahead, or x. Returns the directory entry,
// and writes its words to out, which has room for kMaxTileWords + kSlackWords.
// Returns kRaw alone, out unspecified, when a value cannot be represented
// within the bound. *nonzero: how many values are not zero.
using EncodeTileFn = uint16_t (*)(const Quantizer& q, const void* x,
                                  const void* next, int64_t row_bytes,
                                  uint32_t* out, int32_t* nonzero);

// Decodes a whole tile that is not raw; words may be read up to kSlackWords
// past EntryWords(entry). False if the words do not add up: out unspecified.
using DecodeTileFn = bool (*)(const Quantizer& q, uint16_t entry,
                              const uint32_t* words, void* out,
                              int64_t row_bytes);

// rows[t] bit l = code of pixel t, lane l is not zero. As DecodeTileFn.
using MaskTileFn = bool (*)(uint16_t entry, const uint32_t* words,
                            uint32_t rows[kPixels]);

// dx = dy where the bit is set, else 0; item is 2 or 4 bytes.
using ApplyMaskFn = void (*)(const uint32_t rows[kPixels], int item,
                             const uint8_t* dy, uint8_t* dx, int64_t row_bytes);

struct TileKernels {
  EncodeTileFn encode;
  DecodeTileFn decode;
  MaskTileFn mask;
  ApplyMaskFn apply;
};

// The kernels for one kind of stream. isa must be available.
TileKernels KernelsScalar(DType dtype, Coding coding);
TileKernels KernelsAvx2(DType dtype, Coding coding);
TileKernels KernelsAvx512(DType dtype, Coding coding);
static inline TileKernels SelectKernels(Isa isa, DType dtype, Coding coding) {
  return COMPTRAIN_FOR_ISA(isa, Kernels)(dtype, coding);
}

// The encoders of these.
EncodeTileFn EncoderAvx2(DType dtype, Coding coding);
EncodeTileFn EncoderAvx512(DType dtype, Coding coding);

// What the vector kernels leave to plain code: the packing of wide codes.
// codes: [pixel][lane].
uint32_t PackedWords(const uint16_t codes[kTileValues], bool wide);
void PackCodes(const uint16_t codes[kTileValues], bool wide, uint32_t* out);
bool UnpackCodes(const uint32_t* words, uint32_t n_words, bool wide,
                 uint16_t codes[kTileValues]);

// The codes q of any tile that is not raw; false as DecodeTileFn.
bool DecodeCodes(uint16_t entry, const uint32_t* words, int16_t q[kTileValues]);

// Delta coding is tried in tiles with more non-zero codes than this.
constexpr int kDeltaMinNonzero = kTileValues * 3 / 4;

}  // namespace comptrain::plane

// plane, decoder and ReLU mask: checks the stream, then works range by range.
#include <cstring>

#include "cc/codec/stream/check_params.h"
#include "cc/codec/common/half.h"
#include "cc/codec/plane/plane.h"
#include "cc/codec/plane/layout.h"
#include "cc/codec/plane/ranges.h"
#include "cc/codec/plane/tile.h"

namespace comptrain {
namespace {

using plane::kLanes;
using plane::kPixels;
using plane::kTileValues;
using plane::StreamView;
using plane::TilePlace;

// The non-zero values of a raw tile.
void RawMask(const uint32_t* words, DType dtype, int valid,
             uint32_t rows[kPixels]) {
  std::memset(rows, 0, kPixels * sizeof *rows);
  for (int i = 0; i < valid; ++i) {
    const bool zero = (FloatBits(LoadFloat(words, dtype, i)) & 0x7f800000) == 0;
    rows[i / kLanes] |= static_cast<uint32_t>(!zero) << i % kLanes;
  }
}

// Lines that a tile will be written to, far apart: memory has them ready by
// the time its codes are unpacked.
void FetchRows(const uint8_t* to, int64_t row_bytes, int64_t tile_row) {
  for (int t = 0; t < kPixels; ++t, to += row_bytes) {
    for (int64_t i = 0; i < tile_row; i += 64) __builtin_prefetch(to + i, 1);
  }
}

}  // namespace

Status PlaneDecode(const StreamIn& stream, void* out,
                   const ParallelFor& parallel, Isa isa) {
  Status s = CheckIsa(CodecId::kPlane, isa);
  if (!s.ok()) return s;
  StreamView v;
  s = plane::OpenValues(stream.data, stream.bytes, stream.dtype, stream.n, &v);
  if (!s.ok()) return s;
  if (out == nullptr && stream.n > 0) {
    return Status::Invalid("plane: out must not be null when n > 0");
  }
  const plane::TileKernels kernels =
      plane::SelectKernels(isa, stream.dtype, v.quantizer.coding);
  const int64_t item = static_cast<int64_t>(ItemBytes(stream.dtype));
  const int64_t row_bytes = v.geometry.row * item, tile_row = kLanes * item;
  return plane::RunRanges(
      v, parallel,
      [&](const TilePlace& place, uint16_t entry, const uint32_t* words) {
        uint8_t* to = static_cast<uint8_t*>(out) + place.offset * item;
        const int64_t valid_bytes = place.valid * item;
        if (entry & plane::kRaw) {
          CopyRows(reinterpret_cast<const uint8_t*>(words), tile_row, to,
                   row_bytes, valid_bytes, tile_row);
          return true;
        }
        const Quantizer quantizer = v.QuantizerAt(place);
        if (place.valid == kTileValues) {
          if (row_bytes > tile_row) FetchRows(to, row_bytes, tile_row);
          return kernels.decode(quantizer, entry, words, to, row_bytes);
        }
        alignas(64) uint8_t whole[kTileValues * 4];
        if (!kernels.decode(quantizer, entry, words, whole, tile_row)) {
          return false;
        }
        CopyRows(whole, tile_row, to, row_bytes, valid_bytes, tile_row);
        return true;
      });
}

Status PlaneMaskGradient(const StreamIn& stream, const void* dy, void* dx,
                         const ParallelFor& parallel, Isa isa) {
  Status s = CheckIsa(CodecId::kPlane, isa);
  if (!s.ok()) return s;
  StreamView v;
  s = plane::OpenStream(stream.data, stream.bytes, stream.n, &v);
  if (!s.ok()) return s;
  s = CheckHasMask(CodecId::kPlane, v.quantizer.coding);
  if (!s.ok()) return s;
  if ((dy == nullptr || dx == nullptr) && stream.n > 0) {
    return Status::Invalid("plane: dy and dx must not be null when n > 0");
  }
  const plane::TileKernels kernels =
      plane::SelectKernels(isa, stream.dtype, v.quantizer.coding);
  const int64_t item = static_cast<int64_t>(ItemBytes(stream.dtype));
  const int64_t row_bytes = v.geometry.row * item, tile_row = kLanes * item;
  return plane::RunRanges(
      v, parallel,
      [&](const TilePlace& place, uint16_t entry, const uint32_t* words) {
        uint32_t rows[kPixels];
        if (entry & plane::kRaw) {
          RawMask(words, v.quantizer.dtype, place.valid, rows);
        } else if (!kernels.mask(entry, words, rows)) {
          return false;
        }
        const uint8_t* from =
            static_cast<const uint8_t*>(dy) + place.offset * item;
        uint8_t* to = static_cast<uint8_t*>(dx) + place.offset * item;
        if (place.valid == kTileValues) {
          kernels.apply(rows, static_cast<int>(item), from, to, row_bytes);
          return true;
        }
        alignas(64) uint8_t whole[kTileValues * 4] = {};
        const int64_t valid_bytes = place.valid * item;
        CopyRows(from, row_bytes, whole, tile_row, valid_bytes, tile_row);
        kernels.apply(rows, static_cast<int>(item), whole, whole, tile_row);
        CopyRows(whole, tile_row, to, row_bytes, valid_bytes, tile_row);
        return true;
      });
}

}  // namespace comptrain

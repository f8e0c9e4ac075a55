// Codec B, decoder and ReLU mask: checks the stream, then works chunk by
// chunk.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <string>

#include "cc/codec/half.h"
#include "cc/codec/rans.h"
#include "cc/codec/rans_chunk.h"
#include "cc/codec/rans_layout.h"

namespace comptrain {
namespace {

using rans::ChunkHead;
using rans::ChunkPlace;
using rans::ChunkWork;
using rans::CopyRows;
using rans::kLanes;
using rans::StreamView;

constexpr int64_t kCyclesPerValue = 4;
constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

enum class StoredAs { kZero, kCoded, kRaw };

// What is stored of one chunk.
struct Stored {
  StoredAs kind;
  const uint8_t* bytes;
  uint64_t n_bytes;
  uint64_t readable;  // bytes of the stream from there on
};

// False for sizes that no encoder writes.
bool Find(const StreamView& v, int64_t chunk, const ChunkPlace& place,
          Stored* s) {
  const uint64_t start = v.Start(chunk), stop = v.Start(chunk + 1);
  if (start > stop || stop > v.payload_words || (chunk == 0 && start != 0)) {
    return false;
  }
  const uint64_t words = stop - start;
  const uint64_t raw = rans::RawWords(place.valid, v.quantizer.dtype);
  s->bytes = v.stream + v.sections.payload + 4 * start;
  s->n_bytes = 4 * words;
  s->readable = 4 * (v.payload_words - start);
  s->kind = words == 0     ? StoredAs::kZero
            : words == raw ? StoredAs::kRaw
                           : StoredAs::kCoded;
  return words <= raw && (s->kind != StoredAs::kCoded ||
                          s->n_bytes >= sizeof(ChunkHead));
}

// Calls the kernel on a coded chunk, with readable words all around it.
bool DecodeCoded(const StreamView& v, const rans::ChunkKernels& kernels,
                 const Stored& s, const ChunkPlace& place, ChunkWork* work,
                 void* out, int64_t row_bytes) {
  constexpr uint64_t kSlack = 2 * rans::kSlackWords;
  ChunkHead head;
  std::memcpy(&head, s.bytes, sizeof head);
  const uint8_t* from = s.bytes + sizeof head;
  const uint64_t bytes = s.n_bytes - sizeof head;
  const bool inside = s.readable >= s.n_bytes + kSlack &&
                      reinterpret_cast<uintptr_t>(from) % 2 == 0;
  if (!inside) {
    // A coded chunk is smaller than its values, so than work->words.
    std::memcpy(work->words, from, bytes);
    std::memset(reinterpret_cast<uint8_t*>(work->words) + bytes, 0, kSlack);
    from = reinterpret_cast<const uint8_t*>(work->words);
  }
  return kernels.decode(plane::CountedFrom(v.quantizer, place.first), v.model,
                        head, reinterpret_cast<const uint16_t*>(from),
                        static_cast<int>(bytes / 2), place.rows, work, out,
                        row_bytes);
}

// Calls body(place, stored, work) for all chunks and reports the first one of
// which it returns false.
template <typename Body>
Status RunChunks(const StreamView& v, const ParallelFor& parallel,
                 const Body& body) {
  if (v.geometry.chunks == 0 && v.payload_words != 0) {
    return Status::Damaged(
        "codec B stream: an empty tensor must have no payload, got " +
        std::to_string(v.payload_words) + " words");
  }
  std::atomic<int64_t> damaged{kNone};
  try {
    parallel(v.geometry.chunks, kCyclesPerValue * kLanes
                                    << v.geometry.log2_pixels,
             [&](int64_t begin, int64_t end) {
      std::unique_ptr<ChunkWork> work(new ChunkWork);
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const ChunkPlace place = v.geometry.Place(chunk);
        Stored stored;
        if (Find(v, chunk, place, &stored) &&
            body(place, stored, work.get())) {
          continue;
        }
        int64_t seen = damaged.load();
        while (chunk < seen && !damaged.compare_exchange_weak(seen, chunk)) {
        }
      }
    });
  } catch (const std::exception& e) {
    return Status::Invalid(std::string("codec B: decoding failed, ") +
                           e.what());
  }
  const int64_t chunk = damaged.load();
  if (chunk == kNone) return {};
  return Status::Damaged(
      "codec B stream: the payload of chunk " + std::to_string(chunk) +
      " must match the directory and end in the first state, got another one; "
      "the stream is damaged: encode it again");
}

Status Open(const uint8_t* stream, size_t stream_bytes, int64_t n, Isa isa,
            StreamView* v) {
  if (!IsaAvailable(isa)) {
    return Status::Invalid(
        "codec B: this machine lacks the instruction set asked for, got isa " +
        std::to_string(static_cast<int>(isa)) + "; use Isa::kBest");
  }
  return rans::OpenStream(stream, stream_bytes, n, v);
}

rans::ChunkKernels KernelsFor(Isa isa, StreamView* v) {
  const rans::ChunkKernels kernels = rans::SelectChunkKernels(
      isa, v->quantizer.dtype, v->quantizer.coding);
  if (kernels.needs_slots) rans::MakeSlots(&v->model);
  return kernels;
}

// Rows [first, first + 32) of the mask of a raw chunk's values.
void RawMaskRows(const Stored& s, DType dtype, const ChunkPlace& place,
                 int first, uint32_t mask[plane::kPixels]) {
  const int begin = first * kLanes;
  const int end = std::min(place.valid, begin + plane::kTileValues);
  for (int i = begin; i < end; ++i) {
    const bool set =
        (FloatBits(LoadFloat(s.bytes, dtype, i)) & 0x7f800000) != 0;
    mask[(i - begin) / kLanes] |= static_cast<uint32_t>(set) << i % kLanes;
  }
}

}  // namespace

Status RansDecode(const uint8_t* stream, size_t stream_bytes, DType dtype,
                  int64_t n, void* out, const ParallelFor& parallel, Isa isa) {
  StreamView v;
  Status s = Open(stream, stream_bytes, n, isa, &v);
  if (!s.ok()) return s;
  if (v.quantizer.dtype != dtype) {
    return Status::Damaged(
        std::string("codec B stream: header field dtype must be the type "
                    "asked for, ") +
        plane::DTypeName(dtype) + ", got " +
        plane::DTypeName(v.quantizer.dtype) +
        "; decode with the type it was encoded from");
  }
  if (out == nullptr && n > 0) {
    return Status::Invalid("codec B: out must not be null when n > 0");
  }
  const int64_t item = static_cast<int64_t>(ItemBytes(dtype));
  const int64_t row_bytes = v.geometry.row * item, tile_row = kLanes * item;
  try {
    const rans::ChunkKernels kernels = KernelsFor(isa, &v);
    return RunChunks(v, parallel, [&](const ChunkPlace& place, const Stored& c,
                                      ChunkWork* work) {
      uint8_t* to = static_cast<uint8_t*>(out) + place.offset * item;
      const int64_t valid_bytes = place.valid * item;
      if (c.kind == StoredAs::kZero) {
        for (int64_t done = 0; done < valid_bytes; done += tile_row) {
          std::memset(to + done / tile_row * row_bytes, 0,
                      std::min(tile_row, valid_bytes - done));
        }
        return true;
      }
      if (c.kind == StoredAs::kRaw) {
        CopyRows(c.bytes, tile_row, to, row_bytes, valid_bytes, tile_row);
        return true;
      }
      if (place.valid == place.rows * kLanes) {
        return DecodeCoded(v, kernels, c, place, work, to, row_bytes);
      }
      std::unique_ptr<uint8_t[]> whole(new uint8_t[place.rows * tile_row]);
      if (!DecodeCoded(v, kernels, c, place, work, whole.get(),
                       tile_row)) {
        return false;
      }
      CopyRows(whole.get(), tile_row, to, row_bytes, valid_bytes, tile_row);
      return true;
    });
  } catch (const std::exception& e) {
    return Status::Invalid(std::string("codec B: decoding failed, ") +
                           e.what());
  }
}

Status RansMaskGradient(const uint8_t* stream, size_t stream_bytes,
                        DType dtype, int64_t n, const void* dy, void* dx,
                        const ParallelFor& parallel, Isa isa) {
  StreamView v;
  Status s = Open(stream, stream_bytes, n, isa, &v);
  if (!s.ok()) return s;
  if (v.quantizer.coding == Coding::kPlain) {
    return Status::Invalid(
        "codec B stream: header field flags must have mid-rise (1) or "
        "dither (2) for a mask, got neither: small values share the code of zero; encode with "
        "mid_rise = true");
  }
  if ((dy == nullptr || dx == nullptr) && n > 0) {
    return Status::Invalid("codec B: dy and dx must not be null when n > 0");
  }
  const plane::ApplyMaskFn apply =
      plane::SelectKernels(isa, dtype, v.quantizer.coding).apply;
  const int64_t item = static_cast<int64_t>(ItemBytes(dtype));
  const int64_t row_bytes = v.geometry.row * item, tile_row = kLanes * item;
  try {
    const rans::ChunkKernels kernels = KernelsFor(isa, &v);
    return RunChunks(v, parallel, [&](const ChunkPlace& place, const Stored& c,
                                      ChunkWork* work) {
      if (c.kind == StoredAs::kCoded &&
          !DecodeCoded(v, kernels, c, place, work, nullptr, 0)) {
        return false;
      }
      const uint8_t* from =
          static_cast<const uint8_t*>(dy) + place.offset * item;
      uint8_t* to = static_cast<uint8_t*>(dx) + place.offset * item;
      for (int first = 0; first < place.rows; first += plane::kPixels) {
        uint32_t mask[plane::kPixels] = {};
        if (c.kind == StoredAs::kRaw) {
          RawMaskRows(c, v.quantizer.dtype, place, first, mask);
        } else if (c.kind == StoredAs::kCoded) {
          kernels.mask(*work, first,
                       std::min(place.rows, first + plane::kPixels), mask);
        }
        const int64_t at = first * row_bytes;
        const int valid =
            std::min(place.valid - first * kLanes, plane::kTileValues);
        if (valid == plane::kTileValues) {
          apply(mask, static_cast<int>(item), from + at, to + at, row_bytes);
          continue;
        }
        alignas(64) uint8_t whole[plane::kTileValues * 4] = {};
        CopyRows(from + at, row_bytes, whole, tile_row, valid * item, tile_row);
        apply(mask, static_cast<int>(item), whole, whole, tile_row);
        CopyRows(whole, tile_row, to + at, row_bytes, valid * item, tile_row);
      }
      return true;
    });
  } catch (const std::exception& e) {
    return Status::Invalid(std::string("codec B: decoding failed, ") +
                           e.what());
  }
}

}  // namespace comptrain

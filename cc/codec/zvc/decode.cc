// zvc, decoder and ReLU mask: checks the stream, then works range by range.
#include <algorithm>
#include <cstring>
#include <exception>

#include "cc/codec/stream/check_params.h"
#include "cc/codec/stream/check_stream.h"
#include "cc/codec/zvc/zvc.h"
#include "cc/codec/zvc/layout.h"

namespace comptrain {
namespace {

using zvc::kChunkValues;
using zvc::kMaskWords;
using zvc::kRangeChunks;
using zvc::kSlackBytes;
using zvc::StreamView;

constexpr int64_t kDecodeCyclesPerRange = 16 * 2500;

// Decodes one whole chunk of `words` words at from, of which `readable` bytes
// lie in the stream, to 2,048 elements; false when they do not add up.
class ChunkDecoder {
 public:
  ChunkDecoder(const StreamView& v, const zvc::ChunkKernels& kernels)
      : v_(v), kernels_(kernels), width_(v.layout.item == 4) {}

  bool Decode(const uint8_t* from, uint32_t words, size_t readable, int valid,
              uint8_t* to) {
    const size_t item = static_cast<size_t>(v_.layout.item);
    if (words == 0) {
      std::memset(to, 0, kChunkValues * item);
      return true;
    }
    const size_t bytes = 4 * words, raw_words = v_.layout.RawWords(valid);
    if (words == raw_words) {
      std::memcpy(to, from, valid * item);
      return AllZero(from + valid * item, from + bytes);
    }
    const size_t mask_bytes = 4 * CeilDiv(valid, 32);
    if (words > raw_words || bytes <= mask_bytes) return false;
    std::memset(mask_, 0, sizeof mask_);
    std::memcpy(mask_, from, mask_bytes);
    if (valid % 32 != 0 && mask_[valid / 32] >> valid % 32 != 0) return false;
    const int count = kernels_.ones(mask_);
    if (count == 0 || words != v_.layout.PackedWords(valid, count)) {
      return false;
    }
    const uint8_t* values = from + mask_bytes;
    if (!AllZero(values + count * item, from + bytes)) return false;
    // Scalar code reads elements: they must be aligned, whatever the stream is.
    if (readable < bytes + kSlackBytes ||
        reinterpret_cast<uintptr_t>(values) % 4 != 0) {
      std::memcpy(copy_, values, bytes - mask_bytes);
      values = copy_;
    }
    kernels_.unpack[width_](mask_, values, to);
    return true;
  }

 private:
  const StreamView& v_;
  const zvc::ChunkKernels& kernels_;
  const int width_;
  alignas(64) uint32_t mask_[kMaskWords];
  alignas(64) uint8_t copy_[kChunkValues * 4 + kSlackBytes] = {};
};

// Calls body(decoder, chunk, from, words, readable) for the chunks of a range;
// body returns false for words that do not add up.
template <class Body>
void ForChunks(const StreamView& v, int64_t range, ChunkDecoder* decoder,
               FirstFailure* failure, const Body& body) {
  const zvc::Layout& l = v.layout;
  const int64_t first = range * kRangeChunks;
  const int64_t last = std::min(l.chunks, first + kRangeChunks);
  uint64_t at = v.RangeStart(range);
  const uint64_t stop =
      range + 1 < l.ranges ? v.RangeStart(range + 1) : v.payload_words;
  if (at > stop || stop > v.payload_words || (range == 0 && at != 0)) {
    failure->Report(first);
    return;
  }
  for (int64_t chunk = first; chunk < last; ++chunk) {
    const uint32_t words = v.Words(chunk);
    if (words > stop - at ||
        !body(decoder, chunk, v.stream + l.payload + 4 * at, words,
              4 * (v.payload_words - at))) {
      failure->Report(chunk);
      return;
    }
    at += words;
  }
  if (at != stop) failure->Report(last - 1);
}

template <class Body>
Status RunChunks(const StreamView& v, const zvc::ChunkKernels& kernels,
                 const ParallelFor& parallel, const Body& body) {
  if (v.layout.chunks == 0) {
    return CheckEmptyPayload(CodecId::kZvc, v.payload_words);
  }
  FirstFailure failure;
  try {
    parallel(v.layout.ranges, kDecodeCyclesPerRange,
             [&](int64_t begin, int64_t end) {
               ChunkDecoder decoder(v, kernels);
               for (int64_t r = begin; r < end; ++r) {
                 ForChunks(v, r, &decoder, &failure, body);
               }
             });
  } catch (const std::exception& e) {
    return OutOfMemory(CodecId::kZvc, "decoding", e);
  }
  return failure.ToStatus(CodecId::kZvc, "chunk",
                          "match its directory entry, its mask and the offset "
                          "table, got other sizes");
}

// dx = element of x is zero ? 0 : dy. zero_bits: those of which a number has
// one set.
template <class X, class T>
void ApplyMask(const void* x, X zero_bits, int n, const uint8_t* dy,
               uint8_t* dx) {
  const X* in = static_cast<const X*>(x);
  for (int i = 0; i < n; ++i) {
    T g;
    std::memcpy(&g, dy + i * sizeof(T), sizeof(T));
    g = in[i] & zero_bits ? g : T{0};
    std::memcpy(dx + i * sizeof(T), &g, sizeof(T));
  }
}

void ApplyMask(const void* x, DType x_dtype, DType dtype, int n,
               const uint8_t* dy, uint8_t* dx) {
  const bool wide = dtype == DType::kF32;
  if (x_dtype == DType::kF32) {
    const uint32_t bits = 0x7f800000;
    wide ? ApplyMask<uint32_t, uint32_t>(x, bits, n, dy, dx)
         : ApplyMask<uint32_t, uint16_t>(x, bits, n, dy, dx);
  } else {
    // The subnormals of float16 are normal numbers of float32.
    const uint16_t bits = x_dtype == DType::kBF16 ? 0x7f80 : 0x7fff;
    wide ? ApplyMask<uint16_t, uint32_t>(x, bits, n, dy, dx)
         : ApplyMask<uint16_t, uint16_t>(x, bits, n, dy, dx);
  }
}

}  // namespace

Status ZvcDecode(const StreamIn& stream, void* out, const ParallelFor& parallel,
                 Isa isa) {
  Status s = CheckIsa(CodecId::kZvc, isa);
  if (!s.ok()) return s;
  StreamView v;
  s = zvc::OpenStream(stream.data, stream.bytes, stream.n, &v);
  if (!s.ok()) return s;
  s = CheckDType(CodecId::kZvc, v.dtype, stream.dtype);
  if (!s.ok()) return s;
  if (out == nullptr && stream.n > 0) {
    return Status::Invalid("zvc: out must not be null when n > 0");
  }
  uint8_t* const to = static_cast<uint8_t*>(out);
  return RunChunks(v, zvc::ChunkKernelsOf(isa), parallel,
                   [&](ChunkDecoder* decoder, int64_t chunk,
                       const uint8_t* from, uint32_t words, size_t readable) {
                     const int valid = v.layout.Valid(chunk);
                     uint8_t* at = to + chunk * kChunkValues * v.layout.item;
                     if (valid == kChunkValues) {
                       return decoder->Decode(from, words, readable, valid, at);
                     }
                     alignas(64) uint8_t whole[kChunkValues * 4];
                     if (!decoder->Decode(from, words, readable, valid, whole))
                       return false;
                     std::memcpy(at, whole, valid * v.layout.item);
                     return true;
                   });
}

Status ZvcMaskGradient(const StreamIn& stream, const void* dy, void* dx,
                       const ParallelFor& parallel, Isa isa) {
  Status s = CheckIsa(CodecId::kZvc, isa);
  if (!s.ok()) return s;
  StreamView v;
  s = zvc::OpenStream(stream.data, stream.bytes, stream.n, &v);
  if (!s.ok()) return s;
  if ((dy == nullptr || dx == nullptr) && stream.n > 0) {
    return Status::Invalid("zvc: dy and dx must not be null when n > 0");
  }
  const int64_t stride =
      kChunkValues * static_cast<int64_t>(ItemBytes(stream.dtype));
  return RunChunks(v, zvc::ChunkKernelsOf(isa), parallel,
                   [&](ChunkDecoder* decoder, int64_t chunk,
                       const uint8_t* from, uint32_t words, size_t readable) {
                     alignas(64) uint8_t x[kChunkValues * 4];
                     const int valid = v.layout.Valid(chunk);
                     if (!decoder->Decode(from, words, readable, valid, x))
                       return false;
                     ApplyMask(x, v.dtype, stream.dtype, valid,
                               static_cast<const uint8_t*>(dy) + chunk * stride,
                               static_cast<uint8_t*>(dx) + chunk * stride);
                     return true;
                   });
}

}  // namespace comptrain

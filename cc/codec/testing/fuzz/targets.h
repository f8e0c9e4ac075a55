// What the fuzzers do with arbitrary bytes: decode them with every instruction
// set, into memory of exactly the right size. Each target aborts when two sets
// disagree; what lies outside the buffers is for the sanitizers to notice.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "cc/codec/layers/batch_norm.h"
#include "cc/codec/plane/plane.h"
#include "cc/codec/rans/rans.h"
#include "cc/codec/testing/isas.h"
#include "cc/codec/zvc/zvc.h"

namespace comptrain::fuzz {

constexpr int64_t kMaxElements = 1 << 16;  // of the tensors fuzzers decode to

// One way to read a stream: into out, n elements of dtype.
using Reader =
    std::function<Status(const uint8_t* stream, size_t bytes, DType dtype,
                         int64_t n, uint8_t* out, Isa isa)>;

// Reads the stream as it is and, since fuzzers change lengths more often than
// total_bytes along with them, with that field corrected. Returns how often it
// decoded.
inline int ReadEverywhere(const uint8_t* data, size_t size,
                          const Reader& reader) {
  static const std::vector<Isa> isas = AvailableIsas();
  StreamHeader h = {};
  if (size > 0) std::memcpy(&h, data, std::min(size, sizeof h));
  if (h.n > static_cast<uint64_t>(kMaxElements) || h.dtype > 2) {
    h.n = 0;  // a decoder that believes the header is to be stopped here
    h.dtype = 0;
  }
  const DType dtype = static_cast<DType>(h.dtype);
  const int64_t n = static_cast<int64_t>(h.n);
  const size_t out_bytes = n * ItemBytes(dtype);
  std::unique_ptr<uint8_t[]> stream(new uint8_t[size]);
  std::copy(data, data + size, stream.get());
  int decoded = 0;
  for (int corrected = 0; corrected < 2; ++corrected) {
    if (corrected) {
      if (size < sizeof h || h.total_bytes == size) break;
      const uint64_t total = size;
      std::memcpy(stream.get() + offsetof(StreamHeader, total_bytes), &total,
                  sizeof total);
    }
    std::unique_ptr<uint8_t[]> first;
    bool first_ok = false;
    for (Isa isa : isas) {
      std::unique_ptr<uint8_t[]> out(new uint8_t[out_bytes]());
      const bool ok = reader(stream.get(), size, dtype, n, out.get(), isa).ok();
      if (first == nullptr) {
        first = std::move(out);
        first_ok = ok;
      } else if (ok != first_ok ||
                 (ok && out_bytes > 0 &&
                  std::memcmp(first.get(), out.get(), out_bytes) != 0)) {
        std::fprintf(stderr,
                     "instruction set %d disagrees with the scalar "
                     "decoder\n",
                     static_cast<int>(isa));
        std::abort();
      }
    }
    decoded += first_ok;
  }
  return decoded;
}

inline int FuzzPlane(const uint8_t* data, size_t size) {
  const Reader decode = [](const uint8_t* stream, size_t bytes, DType dtype,
                           int64_t n, uint8_t* out, Isa isa) {
    return PlaneDecode({stream, bytes, dtype, n}, out, SerialFor, isa);
  };
  const Reader mask = [](const uint8_t* stream, size_t bytes, DType dtype,
                         int64_t n, uint8_t* out, Isa isa) {
    std::fill(out, out + n * ItemBytes(dtype), uint8_t{0x3f});
    return PlaneMaskGradient({stream, bytes, dtype, n}, out, out, SerialFor,
                             isa);
  };
  const Reader norm = [](const uint8_t* stream, size_t bytes, DType dtype,
                         int64_t n, uint8_t* out, Isa isa) {
    uint32_t channels = 1;
    if (bytes >= sizeof(StreamHeader)) {
      std::memcpy(&channels, stream + offsetof(StreamHeader, channels), 4);
    }
    if (channels == 0 || channels > kMaxElements) channels = 1;
    const std::vector<float> ones(channels, 1.0f);
    std::vector<float> dgamma(channels), dbeta(channels);
    BatchNormChannels of;
    of.channels = channels;
    of.gamma = of.mean = of.inv_std = ones.data();
    const Status s =
        BatchNormGradient({stream, bytes, dtype, n}, out, of,
                          {out, dgamma.data(), dbeta.data()}, SerialFor, isa);
    // Its values follow from the decoded ones, which are compared already; NaN
    // payloads need not agree.
    std::fill(out, out + n * ItemBytes(dtype), uint8_t{0});
    return s;
  };
  return ReadEverywhere(data, size, decode) + ReadEverywhere(data, size, mask) +
         ReadEverywhere(data, size, norm);
}

// The decoder and the mask of a codec that has nothing else.
template <class Decode, class Mask>
int FuzzDecoder(const uint8_t* data, size_t size, Decode* decode, Mask* mask) {
  const Reader values = [decode](const uint8_t* stream, size_t bytes,
                                 DType dtype, int64_t n, uint8_t* out,
                                 Isa isa) {
    return decode({stream, bytes, dtype, n}, out, SerialFor, isa);
  };
  const Reader gradient = [mask](const uint8_t* stream, size_t bytes,
                                 DType dtype, int64_t n, uint8_t* out,
                                 Isa isa) {
    std::fill(out, out + n * ItemBytes(dtype), uint8_t{0x3f});
    return mask({stream, bytes, dtype, n}, out, out, SerialFor, isa);
  };
  return ReadEverywhere(data, size, values) +
         ReadEverywhere(data, size, gradient);
}

inline int FuzzRans(const uint8_t* data, size_t size) {
  return FuzzDecoder(data, size, RansDecode, RansMaskGradient);
}

inline int FuzzZvc(const uint8_t* data, size_t size) {
  return FuzzDecoder(data, size, ZvcDecode, ZvcMaskGradient);
}

}  // namespace comptrain::fuzz

// Internal: gathers a range's words in cache and sends them to the stream in
// whole cache lines.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "cc/codec/zvc/kernels.h"

namespace comptrain::zvc {

constexpr int kLineBytes = 64;

// Past the caches: a line that is written as a whole need not be read first,
// which a stream that outgrows the caches would pay for with its bandwidth.
inline void StreamLines(uint8_t* to, const uint8_t* from, size_t bytes) {
#if defined(__x86_64__)
  for (size_t i = 0; i < bytes; i += sizeof(__m128i)) {
    _mm_stream_si128(
        reinterpret_cast<__m128i*>(to + i),
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
#else
  std::memcpy(to, from, bytes);
#endif
}

// Append to at(), then Advance; or Copy. Writes exactly the bytes advanced
// over: lines shared with other threads' ranges get ordinary stores.
class LineWriter {
 public:
  // past_caches: use StreamLines.
  LineWriter(uint8_t* to, bool past_caches)
      : skip_(reinterpret_cast<uintptr_t>(to) % kLineBytes),
        used_(skip_),
        line_(to - skip_),
        past_caches_(past_caches) {}
  LineWriter(const LineWriter&) = delete;

  // Room for a mask, a chunk of values and kSlackBytes.
  uint8_t* at() { return staged_ + used_; }

  void Advance(size_t bytes) {
    used_ += bytes;
    const size_t whole = used_ / kLineBytes * kLineBytes;
    if (whole == 0) return;
    size_t first = 0;
    if (skip_ > 0) {
      std::memcpy(line_ + skip_, staged_ + skip_, kLineBytes - skip_);
      first = kLineBytes;
      skip_ = 0;
    }
    Send(staged_ + first, first, whole - first);
    line_ += whole;
    used_ -= whole;
    std::memcpy(staged_, staged_ + whole, used_);  // less than a line
  }

  // Appends bytes that are elsewhere, without a detour where it can.
  void Copy(const uint8_t* from, size_t bytes) {
    const size_t head =
        std::min(bytes, (kLineBytes - used_ % kLineBytes) % kLineBytes);
    std::memcpy(at(), from, head);
    Advance(head);
    const size_t whole = (bytes - head) / kLineBytes * kLineBytes;
    Send(from + head, 0, whole);
    line_ += whole;
    std::memcpy(at(), from + head + whole, bytes - head - whole);
    Advance(bytes - head - whole);
  }

  void Finish() {
    std::memcpy(line_ + skip_, staged_ + skip_, used_ - skip_);
#if defined(__x86_64__)
    if (past_caches_) _mm_sfence();
#endif
  }

 private:
  void Send(const uint8_t* from, size_t offset, size_t bytes) {
    if (past_caches_) {
      StreamLines(line_ + offset, from, bytes);
    } else {
      std::memcpy(line_ + offset, from, bytes);
    }
  }

  alignas(kLineBytes) uint8_t
      staged_[kLineBytes + 4 * kMaskWords + 4 * kChunkValues + kSlackBytes];
  size_t skip_;  // bytes of the first line that are not ours
  size_t used_;
  uint8_t* line_;
  const bool past_caches_;
};

}  // namespace comptrain::zvc

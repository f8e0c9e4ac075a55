// Internal: what the decoders of all codecs check of a stream, and how they say
// what is wrong with it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "cc/codec/common/status.h"
#include "cc/codec/stream/stream.h"

namespace comptrain {

const char* DTypeName(DType dtype);

// "plane stream: <field> must be <rule>, got <value>; <remedy>"
Status BadField(CodecId codec, const std::string& field,
                const std::string& rule, const std::string& got);
// The same of a field of the header; `got` is what is there.
Status BadHeader(CodecId codec, const char* field, const std::string& rule,
                 uint64_t got);

bool AllZero(const uint8_t* begin, const uint8_t* end);

// Reads the header of a stream of n values, and checks what it has whichever
// the codec: magic, version, codec, dtype, padding, n, channels, total_bytes.
Status ReadHeader(CodecId codec, const uint8_t* stream, size_t stream_bytes,
                  int64_t n, StreamHeader* header);

// Of a codec with an error bound: flags, step and inv.
Status CheckQuantizer(CodecId codec, const StreamHeader& header);

// Where the sections begin: directory, table and payload, which is whole words.
Status CheckSections(CodecId codec, const StreamHeader& header,
                     uint64_t directory, uint64_t table, uint64_t payload);

// Whether values are of the type that the caller reads.
Status CheckDType(CodecId codec, DType stored, DType asked);

// Whether a stream coded like this, which is not zvc's, has the mask.
Status CheckHasMask(CodecId codec, Coding coding);

// That of an empty tensor is empty.
Status CheckEmptyPayload(CodecId codec, uint64_t payload_words);

// The first damaged tile or chunk, whichever thread meets it.
class FirstFailure {
 public:
  void Report(int64_t item) {
    int64_t seen = item_.load();
    while (item < seen && !item_.compare_exchange_weak(seen, item)) {
    }
  }
  // "the payload of <item> <number> must <rule>"
  Status ToStatus(CodecId codec, const char* item, const char* rule) const;

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> item_{kNone};
};

}  // namespace comptrain

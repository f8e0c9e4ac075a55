// Result of a codec call. The codecs never abort and never throw; the caller
// (a TensorFlow kernel, a test) decides what a failure means.
#pragma once

#include <string>
#include <utility>

namespace comptrain {

enum class Code {
  kOk = 0,
  kInvalidArgument,  // what the caller asked for is not possible
  kDamagedStream,    // the bytes are not a stream this library wrote
};

struct Status {
  Code code = Code::kOk;
  std::string message;  // field, rule, value, remedy; empty when ok

  bool ok() const { return code == Code::kOk; }
  static Status Invalid(std::string m) {
    return {Code::kInvalidArgument, std::move(m)};
  }
  static Status Damaged(std::string m) {
    return {Code::kDamagedStream, std::move(m)};
  }
};

}  // namespace comptrain

// libFuzzer target: the decoders of codec zvc.
// tools/build_native.py fuzz runs it.
#include "cc/codec/testing/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  comptrain::fuzz::FuzzZvc(data, size);
  return 0;
}

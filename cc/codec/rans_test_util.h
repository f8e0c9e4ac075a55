// Encoding and decoding as one call, for the tests of codec B.
#ifndef TF_COMPTRAIN_CC_CODEC_RANS_TEST_UTIL_H_
#define TF_COMPTRAIN_CC_CODEC_RANS_TEST_UTIL_H_

#include "cc/codec/plane_test_util.h"
#include "cc/codec/rans.h"

namespace comptrain {

inline RansParams RansParamsOf(DType dtype, int64_t n, int64_t channels,
                               float eb, bool mid_rise, int64_t width) {
  return RansParams(Params(dtype, n, channels, eb, mid_rise), width);
}

// scratch_bytes < 0: what RansScratchBytes says.
inline Encoded EncodeRans(const Bytes& x, const RansParams& p, Isa isa,
                          const ParallelFor& parallel = SerialFor,
                          int64_t scratch_bytes = -1) {
  RansEncoder encoder(p, isa);
  if (scratch_bytes < 0) {
    scratch_bytes =
        static_cast<int64_t>(RansScratchBytes(p.n, p.channels, p.dtype));
  }
  Bytes scratch(scratch_bytes, 0xaa);
  Status s = encoder.Encode(x.data(), scratch.data(), scratch.size(), parallel);
  CHECK_MSG(s.ok(), s.message);
  Encoded e;
  e.stream.assign(encoder.total_bytes(), 0x55);
  s = encoder.Write(e.stream.data(), parallel);
  CHECK_MSG(s.ok(), s.message);
  e.stats = encoder.stats();
  return e;
}

// The output is poisoned before decoding.
inline Bytes DecodeRans(const Bytes& stream, const RansParams& p, Isa isa,
                        const ParallelFor& parallel = SerialFor) {
  Bytes y(p.n * ItemBytes(p.dtype), 0xcd);
  const Status s = RansDecode(stream.data(), stream.size(), p.dtype, p.n,
                              y.data(), parallel, isa);
  CHECK_MSG(s.ok(), s.message);
  return y;
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_RANS_TEST_UTIL_H_

// Encoding and decoding with any codec, for the tests of what they share.
#ifndef TF_COMPTRAIN_CC_CODEC_CODEC_TEST_UTIL_H_
#define TF_COMPTRAIN_CC_CODEC_CODEC_TEST_UTIL_H_

#include "cc/codec/codec.h"
#include "cc/codec/plane_test_util.h"

namespace comptrain {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr Coding kCodings[] = {Coding::kPlain, Coding::kMidRise,
                               Coding::kDither};

inline EncodeParams ParamsOf(DType dtype, int64_t n, int64_t channels, float eb,
                             Coding coding, int64_t width = 8) {
  EncodeParams p(Params(dtype, n, channels, eb, coding == Coding::kMidRise),
                 width);
  p.dither = coding == Coding::kDither;
  return p;
}

inline Bytes EncodeWith(CodecId codec, const Bytes& x, const EncodeParams& p,
                        Isa isa = Isa::kBest,
                        const ParallelFor& parallel = SerialFor) {
  const std::unique_ptr<StreamEncoder> encoder = MakeEncoder(codec, p, isa);
  Bytes scratch(encoder->scratch_bytes(), 0xaa);
  Status s = encoder->Encode(x.data(), scratch.data(), scratch.size(),
                             parallel);
  CHECK_MSG(s.ok(), s.message);
  Bytes stream(encoder->total_bytes(), 0x55);
  s = encoder->Write(stream.data(), parallel);
  CHECK_MSG(s.ok(), s.message);
  return stream;
}

// The output is poisoned before decoding.
inline Bytes DecodeWith(const Bytes& stream, const EncodeParams& p,
                        Isa isa = Isa::kBest,
                        const ParallelFor& parallel = SerialFor) {
  Bytes y(p.n * ItemBytes(p.dtype), 0xcd);
  const Status s = DecodeStream(stream.data(), stream.size(), p.dtype, p.n,
                                y.data(), parallel, isa);
  CHECK_MSG(s.ok(), s.message);
  return y;
}

}  // namespace comptrain

#endif  // TF_COMPTRAIN_CC_CODEC_CODEC_TEST_UTIL_H_

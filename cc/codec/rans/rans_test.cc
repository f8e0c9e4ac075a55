#include "cc/codec/rans/rans.h"

#include "cc/codec/testing/bounded.h"

int main() {
  using comptrain::CodecId;
  const comptrain::BoundedCodec rans = {CodecId::kRans,
                                        "rans",
                                        comptrain::RansMaxBytes,
                                        {{4095, 1},
                                         {4096, 1},
                                         {4097, 1},
                                         {4096, 32},
                                         {4064, 32},
                                         {4128, 32},
                                         {16, 16},
                                         {4080, 16},
                                         {4112, 16},
                                         {67600, 16},
                                         {81936, 48},
                                         {8, 8},
                                         {4088, 8},
                                         {4104, 8},
                                         {69624, 24}},
                                        {0, 1, 8, 40, 1 << 20}};
  comptrain::TestBounded(rans);
  comptrain::TestLargeChunks(rans);
  return comptrain::FinishTests();
}

#include "cc/codec/plane/plane.h"

#include "cc/codec/testing/bounded.h"

int main() {
  using comptrain::CodecId;
  comptrain::TestBounded(
      {CodecId::kPlane,
       "plane",
       comptrain::PlaneMaxBytes,
       {{1023, 1}, {1024, 1}, {1025, 1}, {1024, 32}, {992, 32}, {1056, 32}},
       {8}});
  return comptrain::FinishTests();
}

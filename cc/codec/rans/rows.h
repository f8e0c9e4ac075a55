// Which rows of a chunk a row is predicted from, and its context read from.
//
// Everything is `static`: sources for wider instruction sets include this.
#pragma once

#include <cstdint>

#include "cc/codec/common/host_device.h"
#include "cc/codec/rans/chunk.h"

namespace comptrain::rans {

// In elements of a ChunkWork buffer, for row t.
struct RowPlaces {
  int here, left, left2;
  int above, above_left;
  int above2;  // for contexts, as left2
};

// Without a row above, the left one stands in for it.
COMPTRAIN_HD static inline RowPlaces PlacesOf(int t, int stride) {
  const int row = t + kPadRows;
  const bool has = stride > 0 && t >= stride;
  RowPlaces p;
  p.here = row * kLanes;
  p.left = (row - 1) * kLanes;
  p.left2 = (row - 2) * kLanes;
  p.above = has ? (row - stride) * kLanes : p.left;
  p.above_left = has && t > stride ? p.above - kLanes : p.above;
  p.above2 =
      has && t - stride >= stride ? (row - 2 * stride) * kLanes : p.left2;
  return p;
}

// Predictors are chosen on every fourth row.
constexpr int kFirstSampleRow = 3, kSampleRows = 4;

}  // namespace comptrain::rans

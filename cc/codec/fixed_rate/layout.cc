#include "cc/codec/fixed_rate/layout.h"

#include <algorithm>

namespace comptrain {
namespace {

// Values of a channel that it has a centre from on, and that share a scale.
constexpr int64_t kFewest = 8, kLeast = 32;
// Values from which on a row of words is long; one value in so many may be
// missing of those that are packed together for longer rows.
constexpr int64_t kLongRow = 64, kMostMissing = 32;

int64_t Product(const std::vector<int64_t>& dims, int first, int last) {
  int64_t n = 1;
  for (int d = first; d < last; ++d) n *= dims[d];
  return n;
}

int LastOf(const std::vector<int64_t>& dims) {
  return static_cast<int>(dims.size()) - 1;
}

bool HaveCentres(const std::vector<int64_t>& dims) {
  return Product(dims, 0, LastOf(dims)) >= kFewest;
}

int64_t Members(int64_t along) {
  const int64_t groups = std::max<int64_t>(1, along / kLeast);
  return (along + groups - 1) / groups;
}

GroupLayout Along(const std::vector<int64_t>& dims, int axis) {
  return GroupLayout(
      dims, axis, static_cast<int>(std::max<int64_t>(1, Members(dims[axis]))));
}

}  // namespace

int64_t ElementsOf(const std::vector<int64_t>& dims) {
  return Product(dims, 0, static_cast<int>(dims.size()));
}

GroupLayout::GroupLayout(const std::vector<int64_t>& of, int values_a_group)
    : dims(of), size(values_a_group) {
  if (dims.empty()) dims.push_back(1);
  double least = 0;
  for (int d = 0; d <= LastOf(dims); ++d) {
    const int64_t along = (dims[d] + size - 1) / size;
    const double cost =
        dims[d] == 0 ? 1 : static_cast<double>(along * size) / dims[d];
    if (groups == 0 || cost < least) {
      axis = d;
      groups = along;
      least = cost;
    }
  }
}

GroupLayout::GroupLayout(const std::vector<int64_t>& of, int along,
                         int values_a_group)
    : dims(of),
      size(values_a_group),
      axis(along),
      groups((dims[axis] + size - 1) / size) {}

std::vector<int64_t> GroupLayout::SpreadDims(
    const std::vector<int64_t>& of_group) const {
  std::vector<int64_t> shape = dims;
  shape[axis] = groups;
  shape.insert(shape.begin() + axis, of_group.begin(), of_group.end());
  return shape;
}

int64_t GroupLayout::outer() const { return Product(dims, 0, axis); }
int64_t GroupLayout::row() const {
  return groups * Product(dims, axis + 1, LastOf(dims) + 1);
}
int64_t GroupLayout::length() const {
  return Product(dims, axis, LastOf(dims) + 1);
}

// Along the one dimension that is divided into the smallest groups. Where none
// is long enough, along all between the batch and the channels, which are
// neighbours in any layout; or with the batch.
GroupLayout ScaleLayout(const std::vector<int64_t>& dims) {
  const int last = LastOf(dims);
  if (!HaveCentres(dims)) return Along(dims, last);
  int best = -1;
  for (int d = 0; d < last; ++d) {
    if (dims[d] >= kLeast &&
        (best < 0 || Members(dims[d]) < Members(dims[best]))) {
      best = d;
    }
  }
  if (best >= 0) return Along(dims, best);
  const int64_t inside = Product(dims, 1, last);
  if (last > 1 && inside >= kLeast) {
    return Along({dims[0], inside, dims[last]}, 1);
  }
  return Along({dims[0] * inside, dims[last]}, 0);
}

GroupLayout WordLayout(const std::vector<int64_t>& dims) {
  const GroupLayout along(dims, FixedRateCoding::kPacked);
  if (along.row() >= kLongRow) return along;
  const int last = LastOf(along.dims);
  const int64_t rows = Product(along.dims, 0, last);
  const GroupLayout together({rows, along.dims[last]}, 0,
                             FixedRateCoding::kPacked);
  const int64_t missing = together.groups * together.size - rows;
  return missing * kMostMissing <= rows ? together : along;
}

bool FixedRateCoding::HasCentres(const std::vector<int64_t>& dims) const {
  return !mid_rise && HaveCentres(dims);
}

int64_t FixedRateCoding::WordBytes(const std::vector<int64_t>& dims) const {
  return 4 * ElementsOf(WordLayout(dims).SpreadDims({bits}));
}

int64_t FixedRateCoding::ScaleBytes(const std::vector<int64_t>& dims) const {
  return ElementsOf(ScaleLayout(dims).group_dims());
}

int64_t FixedRateCoding::RowBytes(const std::vector<int64_t>& dims) const {
  return row_scales ? Product(dims, 0, LastOf(dims)) : 0;
}

int64_t FixedRateCoding::StreamBytes(const std::vector<int64_t>& dims) const {
  return WordBytes(dims) + ScaleBytes(dims) +
         (HasCentres(dims) ? 2 * dims.back() : 0) + RowBytes(dims);
}

}  // namespace comptrain

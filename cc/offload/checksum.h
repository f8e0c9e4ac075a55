// Checksum of bytes that leave memory and come back.
#pragma once

#include <cstddef>
#include <cstdint>

namespace comptrain {

// 64 bits, at the speed of memory. Two strings of equal length that differ
// within eight bytes at a multiple of eight never have the same; others have
// with a probability of about 2^-64. Not for data that someone forges.
uint64_t Checksum(const void* data, size_t bytes);

}  // namespace comptrain

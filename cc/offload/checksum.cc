#include "cc/offload/checksum.h"

#include <cstring>

namespace comptrain {
namespace {

constexpr int kLanes = 4;  // chains of multiplications side by side
constexpr size_t kWord = sizeof(uint64_t);
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;

// For a given state one to one in the word, and the other way round.
uint64_t Mix(uint64_t state, uint64_t word) {
  state = (state ^ word) * kOdd;
  return state ^ (state >> 29);
}

uint64_t Load(const uint8_t* from, size_t bytes = kWord) {
  uint64_t word = 0;
  std::memcpy(&word, from, bytes);
  return word;
}

}  // namespace

uint64_t Checksum(const void* data, size_t bytes) {
  const uint8_t* at = static_cast<const uint8_t*>(data);
  const uint8_t* end = at + bytes;
  uint64_t lanes[kLanes] = {1, 2, 3, 4};
  for (; end - at >= static_cast<ptrdiff_t>(kLanes * kWord);
       at += kLanes * kWord) {
    for (int k = 0; k < kLanes; ++k) {
      lanes[k] = Mix(lanes[k], Load(at + k * kWord));
    }
  }
  uint64_t sum = Mix(0, bytes);
  for (uint64_t lane : lanes) sum = Mix(sum, lane);
  for (; end - at >= static_cast<ptrdiff_t>(kWord); at += kWord) {
    sum = Mix(sum, Load(at));
  }
  return at == end ? sum : Mix(sum, Load(at, end - at));
}

}  // namespace comptrain

// Codec C as a GPU's warp does it, with the lanes in turn: the words of the CPU's
// encoder, its elements again, and its verdict on damage.
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cc/codec/codec_test_util.h"
#include "cc/codec/test_data.h"
#include "cc/codec/zvc.h"
#include "cc/codec/zvc_lane.h"

namespace comptrain {
namespace zvc {
namespace {

const HostWarp kWarp;

template <class T>
bool Read(const Layout& layout, const uint32_t* words, int n_words, int valid,
          std::vector<T>* out) {
  out->assign(valid, T(0x5555));
  return ReadChunk<T>(kWarp, layout, words, n_words, valid,
                      [out](int i, T v) { (*out)[i] = v; });
}

// One tensor of at most a chunk.
template <class T>
void TestChunk(DType dtype, const Bytes& x, std::mt19937* random,
               const std::string& what) {
  const int valid = static_cast<int>(x.size() / sizeof(T));
  const Layout layout(valid, dtype);
  ZvcEncoder encoder({dtype, valid, 1});
  CHECK(encoder.Encode(x.data(), SerialFor).ok());
  Bytes stream(encoder.total_bytes());
  CHECK(encoder.Write(stream.data(), SerialFor).ok());

  const T* values = reinterpret_cast<const T*>(x.data());
  int seen = 0;
  const int count =
      CountChunk<T>(kWarp, values, valid, [&seen](T v) { seen += v != 0; });
  CHECK_MSG(count == encoder.nonzero() && seen == count, what);
  const int n_words = static_cast<int>(layout.Words(valid, count));
  if (!CHECK_MSG(stream.size() == layout.payload + 4 * n_words, what)) return;
  // A word more, to see that it is left alone.
  std::vector<uint32_t> words(n_words + 1, 0xdeadbeef);
  WriteChunk<T>(kWarp, layout, values, valid, n_words, words.data());
  CHECK_MSG(words[n_words] == 0xdeadbeef, what);
  CHECK_MSG(std::memcmp(words.data(), stream.data() + layout.payload,
                        4 * n_words) == 0, what);
  std::vector<T> again;
  CHECK_MSG(Read(layout, words.data(), n_words, valid, &again), what);
  CHECK_MSG(std::memcmp(again.data(), x.data(), x.size()) == 0, what);

  Bytes out(x.size());
  for (int i = 0; i < 8 && n_words > 0; ++i) {
    Bytes broken = stream;
    broken[layout.payload + (*random)() % (4 * n_words)] ^= 1 << (*random)() % 8;
    std::memcpy(words.data(), broken.data() + layout.payload, 4 * n_words);
    const bool ok = ZvcDecode(broken.data(), broken.size(), dtype, valid,
                              out.data(), SerialFor).ok();
    CHECK_MSG(Read(layout, words.data(), n_words, valid, &again) == ok,
              "damaged, " + what);
    if (!ok) continue;
    CHECK_MSG(std::memcmp(again.data(), out.data(), out.size()) == 0,
              "damaged, " + what);
  }
}

void TestChunks() {
  std::mt19937 random(3);
  for (DType dtype : kAllDTypes) {
    for (int valid : {1, 2, 31, 32, 33, 63, 65, 255, 1000, 1023, 2047, 2048}) {
      for (int percent : {0, 1, 20, 50, 95, 97, 100}) {
        const std::string what = "dtype " +
                                 std::to_string(static_cast<int>(dtype)) + ", " +
                                 std::to_string(valid) + " elements, " +
                                 std::to_string(percent) + "% non-zero";
        Bytes x(valid * ItemBytes(dtype));
        FillRandom(random(), dtype, valid, 10, x.data());
        for (int i = 0; i < valid; ++i) {
          if (static_cast<int>(random() % 100) < percent) continue;
          std::memset(x.data() + i * ItemBytes(dtype), 0, ItemBytes(dtype));
        }
        if (dtype == DType::kF32) {
          TestChunk<uint32_t>(dtype, x, &random, what);
        } else {
          TestChunk<uint16_t>(dtype, x, &random, what);
        }
      }
    }
  }
}

}  // namespace
}  // namespace zvc
}  // namespace comptrain

int main() {
  comptrain::zvc::TestChunks();
  return comptrain::FinishTests();
}

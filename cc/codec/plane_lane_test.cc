// What a GPU thread does with its lane, run here lane by lane with the sums over
// the tile in between: the words of the CPU's packing, and the codes again.
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cc/codec/plane_lane.h"
#include "cc/codec/testing.h"

namespace comptrain {
namespace plane {
namespace {

struct Tile {
  LaneCodes lanes[kLanes];
  uint16_t codes[kTileValues];  // [pixel][lane]

  void Spread() {
    for (int i = 0; i < kTileValues; ++i) {
      lanes[i % kLanes].u[i / kLanes] = codes[i];
    }
  }
};

// As LayOut in plane_gpu.cu, with loops for the exchanges of a warp.
struct Layout {
  int words = 0, first_sparse = 0;
  int map[kLanes], dense[kLanes], sparse[kLanes];

  Layout(const LaneFormat formats[kLanes], bool wide) {
    const int header = wide ? kWideHeaderWords : kNarrowHeaderWords;
    int maps = 0, dense_words = 0, bits = 0;
    for (int l = 0; l < kLanes; ++l) {
      map[l] = header + maps;
      maps += formats[l].sparse;
    }
    for (int l = 0; l < kLanes; ++l) {
      dense[l] = header + maps + dense_words;
      if (!formats[l].sparse) dense_words += formats[l].width;
    }
    first_sparse = header + maps + dense_words;
    for (int l = 0; l < kLanes; ++l) {
      sparse[l] = 32 * first_sparse + bits;
      if (formats[l].sparse) bits += formats[l].value_bits();
    }
    words = dense_words + maps == 0 ? 0 : first_sparse + (bits + 31) / 32;
  }
};

std::vector<uint32_t> Pack(const Tile& tile, bool wide) {
  LaneFormat formats[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    formats[l] = tile.lanes[l].Format(wide ? kWideMaxSparse : kNarrowMaxSparse);
  }
  const Layout at(formats, wide);
  std::vector<uint32_t> words(at.words, 0);
  if (at.words == 0) return words;
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t code = FormatCode(formats[l], wide);
    const int byte = wide ? l : l % 16;
    words[byte / 4] |= code << (8 * (byte % 4) + (wide ? 0 : l / 16 * 4));
    if (formats[l].sparse) {
      words[at.map[l]] = formats[l].map;
      tile.lanes[l].WriteSparse(
          formats[l], at.sparse[l],
          [&words](int i, uint32_t bits) { words[i] |= bits; });
    } else {
      tile.lanes[l].WriteDense(formats[l].width, words.data() + at.dense[l]);
    }
  }
  return words;
}

bool Unpack(const std::vector<uint32_t>& words, bool wide, Tile* tile) {
  const int header = wide ? kWideHeaderWords : kNarrowHeaderWords;
  LaneFormat formats[kLanes];
  int maps = 0;
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t byte = words[(wide ? l : l % 16) / 4] >> (8 * (l & 3));
    const uint32_t code = wide ? byte & 255 : byte >> (l / 16 * 4) & 15;
    if (!FormatOfCode(code, wide, &formats[l])) return false;
    if (formats[l].sparse) formats[l].map = words[header + maps++];
  }
  const Layout at(formats, wide);
  if (at.words != static_cast<int>(words.size())) return false;
  for (int l = 0; l < kLanes; ++l) {
    if (formats[l].sparse) {
      tile->lanes[l].ReadSparse(formats[l], at.sparse[l], words.data());
    } else {
      tile->lanes[l].ReadDense(formats[l].width, words.data() + at.dense[l]);
    }
  }
  return true;
}

void TestTile(const Tile& tile, bool wide, const std::string& what) {
  const uint32_t count =
      wide ? WideWords(tile.codes) : NarrowWords(tile.codes);
  const std::vector<uint32_t> words = Pack(tile, wide);
  if (!CHECK_MSG(words.size() == count, what) || count == 0) return;
  std::vector<uint32_t> expected(count + 2);
  if (wide) {
    PackWide(tile.codes, expected.data());
  } else {
    PackNarrow(tile.codes, expected.data());
  }
  CHECK_MSG(std::memcmp(words.data(), expected.data(), 4 * count) == 0, what);
  Tile again;
  if (!CHECK_MSG(Unpack(words, wide, &again), what)) return;
  CHECK_MSG(std::memcmp(again.lanes, tile.lanes, sizeof tile.lanes) == 0, what);
}

void TestTiles() {
  std::mt19937 random(1);
  for (int bits = 0; bits <= 16; ++bits) {
    for (int percent : {0, 1, 10, 50, 90, 100}) {
      for (int repeat = 0; repeat < 8; ++repeat) {
        Tile tile;
        for (int i = 0; i < kTileValues; ++i) {
          // Lanes differ in width; some are all zero.
          const int width = (bits + i % kLanes % 3) * (i % kLanes % 7 != 3);
          const uint32_t code = random() & ((1u << (width > 16 ? 16 : width)) - 1);
          const bool set = static_cast<int>(random() % 100) < percent;
          tile.codes[i] = static_cast<uint16_t>(set ? code : 0);
        }
        tile.Spread();
        const std::string what = "bits " + std::to_string(bits) +
                                 ", non-zero " + std::to_string(percent) + "%";
        TestTile(tile, true, "wide, " + what);
        if (bits + 2 <= 8) TestTile(tile, false, "narrow, " + what);
      }
    }
  }
}

}  // namespace
}  // namespace plane
}  // namespace comptrain

int main() {
  comptrain::plane::TestTiles();
  return comptrain::FinishTests();
}

// Codec B as a GPU does it, with threads and lanes in turn: the bytes of the
// CPU's encoder, its values again, and its verdict on damage.
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/codec/half.h"
#include "cc/codec/rans_lane.h"
#include "cc/codec/codec_test_util.h"
#include "cc/codec/team.h"
#include "cc/codec/test_data.h"

namespace comptrain {
namespace rans {
namespace {

const HostWarp kWarp;
const HostTeam kTeam;

LaneTables ShiftedTables(int shift) {
  uint32_t words[kLaneTableWords];
  for (int i = 0; i < kLaneTableWords; ++i) {
    words[i] = ShiftedWord(kLaneTables, i, shift);
  }
  LaneTables t;
  std::memcpy(&t, words, sizeof t);
  return t;
}

// What the tests came by: chunks by their kind, and escapes.
int64_t seen_kinds[3], seen_escapes;

// Encodes as the kernels do, one chunk after the other.
template <class T>
class LaneEncoder {
 public:
  using Writer = ChunkWriter<HostTeam>;

  LaneEncoder(const RansParams& p, const T* x)
      : geometry(p.n, p.channels),
        quantizer_(plane::MakeQuantizer(p.dtype, plane::CodingOf(p), p.eb)),
        stride(geometry.Stride(p.width, p.channels)),
        counted(p.n >= p.counted_from),
        x_(x) {
    const int64_t step = geometry.ShiftStep();
    for (int64_t chunk = step / 2; chunk < geometry.chunks; chunk += step) {
      Writer writer = MakeWriter(0);
      const int rows = std::min(geometry.Place(chunk).rows, kShiftRows);
      if (Prepare(&writer, chunk, rows) != ChunkKind::kCoded) continue;
      sample_.lanes += kLanes;
      sample_.negative += PopCount(writer.negative());
      for (int l = 0; l < kLanes; ++l) sample_.sum += writer.CodeSum(l);
      sample_.count += static_cast<uint64_t>(rows) * kLanes;
    }
    const int shift = ShiftFor(sample_.sum, sample_.count);
    tables_ = ShiftedTables(shift);
    for (int64_t chunk = 0; counted && chunk < geometry.chunks;
         chunk += geometry.CountStep()) {
      Writer writer = MakeWriter(shift);
      const int rows = geometry.Place(chunk).rows;
      if (Prepare(&writer, chunk, rows) != ChunkKind::kCoded) continue;
      kTeam.Rows(rows, [&](int t, int lane) {
        ++sample_.counts[writer.IndexAt(t, lane)];
      });
    }
    for (int i = kEscape; i < kContexts * kTokens; i += kTokens) {
      seen_escapes += sample_.counts[i];
    }
    for (int c = 0; c < kContexts; ++c) {
      model.Fill(sample_, counted, kBuiltInFrequencies, c);
    }
  }

  // A chunk's words where it is coded.
  ChunkKind Encode(int64_t chunk, int room, std::vector<uint16_t>* words,
                   int* n_words, ChunkHead* head) {
    Writer writer = MakeWriter(model.shift);
    const ChunkKind kind = Prepare(&writer, chunk, geometry.Place(chunk).rows);
    words->assign(room, 0xdead);
    *n_words = 0;
    if (kind != ChunkKind::kCoded) return kind;
    *n_words = writer.Encode(model.entries, words->data(), room, head);
    return kind;
  }

  const Geometry geometry;
  const Quantizer quantizer_;
  const int stride;
  const bool counted;
  WriterModel model = {};
  PlaneStats stats;  // of the chunks that were encoded

 private:
  Writer MakeWriter(int shift) {
    return Writer(kTeam, tables_, stride, shift, memory_.get(), q_.data(),
                  c_.data());
  }
  ChunkKind Prepare(Writer* writer, int64_t chunk, int rows) {
    const ChunkPlace place = geometry.Place(chunk);
    HostTeam::Lanes<LaneSums> sums;
    const ChunkKind kind =
        writer->Prepare(plane::CountedFrom(quantizer_, place.first), geometry,
                        place, rows, x_, &sums);
    stats = PlaneStats();
    for (int l = 0; l < kLanes; ++l) {
      const LaneSums& s = sums[l];
      stats.nonzero += s.nonzero;
      stats.sum_sq += s.sum_sq + s.large_sum_sq;
    }
    return kind;
  }

  const T* const x_;
  LaneTables tables_ = kLaneTables;
  Sample sample_ = {};
  std::unique_ptr<WriterMemory> memory_{new WriterMemory};
  // Exact, so that a sanitizer sees an access beyond them.
  const size_t values_ =
      static_cast<size_t>(kPadRows + (1 << geometry.log2_pixels)) * kLanes;
  std::vector<uint16_t> q_ = std::vector<uint16_t>(values_, 0x5555);
  std::vector<uint8_t> c_ = std::vector<uint8_t>(values_, 0x55);
};

// The payload of a chunk, as a kernel lays it out.
template <class T>
std::vector<uint32_t> ChunkWords(LaneEncoder<T>* encoder, int64_t chunk,
                                 const T* x) {
  const ChunkPlace place = encoder->geometry.Place(chunk);
  const uint32_t raw_words = plane::CeilDiv(place.valid * sizeof(T), 4);
  std::vector<uint16_t> words;
  ChunkHead head;
  int n_words;
  ChunkKind kind = encoder->Encode(chunk, 2 * raw_words, &words, &n_words, &head);
  const uint32_t coded = sizeof head / 4 + (n_words + 1) / 2;
  if (kind == ChunkKind::kCoded && coded >= raw_words) kind = ChunkKind::kRaw;
  ++seen_kinds[static_cast<int>(kind)];
  std::vector<uint32_t> out;
  if (kind == ChunkKind::kCoded) {
    out.assign(coded, 0);
    std::memcpy(out.data(), &head, sizeof head);
    std::memcpy(reinterpret_cast<uint16_t*>(out.data() + sizeof head / 4) +
                    n_words % 2,
                words.data(), 2 * n_words);
    // With less room the same words, as far as they go.
    int again;
    const int room = n_words / 3;
    std::vector<uint16_t> fewer;
    encoder->Encode(chunk, room, &fewer, &again, &head);
    CHECK(again == n_words &&
          std::memcmp(fewer.data(), words.data(), 2 * room) == 0);
  } else if (kind == ChunkKind::kRaw) {
    out.assign(raw_words, 0);
    for (int lane = 0; lane < kLanes; ++lane) {
      const Column c = encoder->geometry.ColumnOf(place, lane);
      for (int t = 0; t < c.rows; ++t) {
        reinterpret_cast<T*>(out.data())[c.raw + t * encoder->geometry.unit] =
            x[c.first + t * encoder->geometry.row];
      }
    }
  }
  return out;
}

// Decodes a stream that opens; false when a chunk is damaged.
template <class T>
bool Decode(const Bytes& stream, const RansParams& p, T* out) {
  StreamView v;
  if (!OpenStream(stream.data(), stream.size(), p.n, &v).ok()) return false;
  TableHead table;
  std::memcpy(&table, stream.data() + v.sections.table, sizeof table);
  uint16_t freq[kContexts * kTokens];
  const void* from = table.table == kCountedTable
                         ? stream.data() + v.sections.table + sizeof table
                         : static_cast<const void*>(
                               kBuiltInFrequencies[table.table]);
  std::memcpy(freq, from, sizeof freq);
  ReaderTables tables;
  tables.lane = ShiftedTables(table.shift);
  for (int c = 0; c < kContexts; ++c) {
    if (!CHECK(tables.search.Fill(c, freq + c * kTokens))) return false;
  }
  const int stride = static_cast<int>(table.stride);
  int q_rows = 2;
  while (q_rows < stride + 1) q_rows *= 2;
  std::vector<uint16_t> q(q_rows * kLanes, 0x5555);
  std::vector<uint8_t> c(2 * q_rows * kLanes, 0x55);
  const History history = {q.data(), c.data(), q_rows, 2 * q_rows};
  bool good = true;
  for (int64_t chunk = 0; chunk < v.geometry.chunks; ++chunk) {
    const ChunkPlace place = v.geometry.Place(chunk);
    const uint64_t start = v.Start(chunk), stop = v.Start(chunk + 1);
    std::vector<uint32_t> words(stop - start);
    std::memcpy(words.data(), stream.data() + v.sections.payload + 4 * start,
                4 * words.size());
    const auto put = [&](int t, int lane, T value) {
      const Column c = v.geometry.ColumnOf(place, lane);
      if (t < c.rows) out[c.first + t * v.geometry.row] = value;
    };
    if (words.empty() || words.size() == RawWords(place.valid, p.dtype)) {
      const T* raw = reinterpret_cast<const T*>(words.data());
      kTeam.Rows(place.rows, [&](int t, int lane) {
        const Column c = v.geometry.ColumnOf(place, lane);
        if (t >= c.rows) return;
        put(t, lane, words.empty() ? T() : raw[c.raw + t * v.geometry.unit]);
      });
      continue;
    }
    const auto* head = reinterpret_cast<const ChunkHead*>(words.data());
    const Quantizer quant = plane::CountedFrom(v.quantizer, place.first);
    good &= ReadChunk(
        kWarp, tables, stride, table.shift, *head,
        reinterpret_cast<const uint16_t*>(head + 1),
        static_cast<int>(2 * words.size() - sizeof *head / 2), place.rows,
        history, [&](int t, int lane, int code) {
          const uint32_t i =
              quant.counter + static_cast<uint32_t>(t * kLanes + lane);
          const float value =
              quant.coding == Coding::kMidRise
                  ? DequantizeValue<Coding::kMidRise>(quant, code, i)
              : quant.coding == Coding::kDither
                  ? DequantizeValue<Coding::kDither>(quant, code, i)
                  : DequantizeValue<Coding::kPlain>(quant, code, i);
          T stored;
          FromFloat(value, &stored);
          put(t, lane, stored);
        });
  }
  return good;
}

template <class T>
void TestOne(const Bytes& x, const RansParams& p, std::mt19937* random,
             const std::string& what) {
  const Encoded expected =
      EncodeWithStats(CodecId::kRans, x, p, Isa::kScalar);
  const Bytes& stream = expected.stream;
  const T* values = reinterpret_cast<const T*>(x.data());
  StreamView v;
  if (!CHECK(OpenStream(stream.data(), stream.size(), p.n, &v).ok())) return;
  LaneEncoder<T> encoder(p, values);
  TableHead table;
  std::memcpy(&table, stream.data() + v.sections.table, sizeof table);
  CHECK_MSG(static_cast<int>(table.stride) == encoder.stride, what);
  CHECK_MSG(table.shift == encoder.model.shift, what);
  if (!CHECK_MSG(table.table == encoder.model.table, what)) return;
  if (encoder.counted) {
    CHECK_MSG(std::memcmp(stream.data() + v.sections.table + sizeof table,
                          encoder.model.freq, kFrequencyBytes) == 0,
              what);
  }
  PlaneStats stats;
  for (int64_t chunk = 0; chunk < v.geometry.chunks; ++chunk) {
    const std::vector<uint32_t> words = ChunkWords(&encoder, chunk, values);
    stats.nonzero += encoder.stats.nonzero;
    stats.sum_sq += encoder.stats.sum_sq;
    const std::string which = "chunk " + std::to_string(chunk) + ", " + what;
    const uint64_t start = v.Start(chunk);
    if (!CHECK_MSG(words.size() == v.Start(chunk + 1) - start, which)) continue;
    CHECK_MSG(std::memcmp(words.data(),
                          stream.data() + v.sections.payload + 4 * start,
                          4 * words.size()) == 0,
              which);
  }
  CHECK_MSG(stats.nonzero == expected.stats.nonzero, what);
  CHECK_MSG(std::fabs(stats.sum_sq - expected.stats.sum_sq) <=
                1e-5 * expected.stats.sum_sq,
            what);

  Bytes want(x.size()), got(x.size());
  CHECK(RansDecode(stream.data(), stream.size(), p.dtype, p.n, want.data(),
                   SerialFor, Isa::kScalar).ok());
  std::fill(got.begin(), got.end(), 0x55);
  CHECK_MSG(Decode(stream, p, reinterpret_cast<T*>(got.data())), what);
  CHECK_MSG(got == want, what);
  for (int i = 0; i < 3 && stream.size() > v.sections.payload; ++i) {
    Bytes broken = stream;
    const size_t payload = v.sections.payload;
    broken[payload + (*random)() % (stream.size() - payload)] ^=
        1 << (*random)() % 8;
    const bool ok = RansDecode(broken.data(), broken.size(), p.dtype, p.n,
                               want.data(), SerialFor, Isa::kScalar).ok();
    std::fill(got.begin(), got.end(), 0x55);
    CHECK_MSG(Decode(broken, p, reinterpret_cast<T*>(got.data())) == ok,
              "damaged, " + what);
    if (ok) CHECK_MSG(got == want, "damaged, " + what);
  }
}

Bytes Values(DType dtype, int64_t n, int kind, std::mt19937* random) {
  Bytes x(n * ItemBytes(dtype));
  if (kind < 2) {  // awkward ones among few: NaN, infinities, -0, subnormals
    FillRandom((*random)(), dtype, n, kind == 0 ? 2000 : 0, x.data());
    return x;
  }
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  float walk = 0;
  for (int64_t i = 0; i < n; ++i) {
    walk = 0.9f * walk + normal(*random);
    float& v = values[i];
    if (kind == 2) v = std::max(walk, 0.0f);
    if (kind == 3) v = walk;
    if (kind == 4) v = (*random)() % 512 == 0 ? 70 : walk / 16;  // escapes
    if (kind == 5 && i > n / 2) v = 100 * walk;  // the first chunks are zero
  }
  return ToTensor(values, dtype);
}

void TestTensors() {
  std::mt19937 random(5);
  struct Shape {
    int64_t pixels, channels, width;
  };
  const Shape shapes[] = {{1, 1, 0},      {3, 5, 0},      {130, 32, 0},
                          {1024, 8, 16},  {700, 48, 28},  {333, 7, 0},
                          {4000, 3, 32},  {2500, 64, 56}, {300, 96, 127},
                          {9000, 32, 120}};
  const float bounds[] = {1e-4f, 0.01f, 0.1f, 0.5f};
  for (const Shape& shape : shapes) {
    for (DType dtype : kAllDTypes) {
      for (int kind = 0; kind < 6; ++kind) {
        const int64_t n = shape.pixels * shape.channels;
        EncodeParams p = Params(dtype, n, shape.channels,
                                bounds[random() % 4], false, shape.width);
        const int coding = random() % 3;
        p.mid_rise = coding == 1;
        p.dither = coding == 2;
        if (random() % 2) p.counted_from = 1 << 10;
        const Bytes x = Values(dtype, n, kind, &random);
        const std::string what =
            "dtype " + std::to_string(static_cast<int>(dtype)) + ", kind " +
            std::to_string(kind) + ", pixels " + std::to_string(shape.pixels) +
            ", channels " + std::to_string(shape.channels) + ", eb " +
            std::to_string(p.eb) + ", coding " + std::to_string(coding);
        WithStorageType(dtype, [&](auto type) {
          TestOne<decltype(type)>(x, p, &random, what);
        });
      }
    }
  }
}

// The longest chunks, and a stride of nearly their rows.
void TestLongChunks() {
  std::mt19937 random(6);
  for (int64_t width : {224, 511}) {
    const EncodeParams p = Params(DType::kF32, 1 << 20, 256, 0.1f,
                                  width == 224, width);
    TestOne<float>(Values(p.dtype, p.n, 2, &random), p, &random,
                   "width " + std::to_string(width));
  }
}

// Divisions by multiplication, at and around every multiple's ends.
void TestEntries() {
  std::mt19937 random(7);
  long wrong = 0;
  for (uint32_t f = 1; f < kProbOne; ++f) {
    const uint32_t start = random() % (kProbOne - f);
    const CodeEntry entry(start, f);
    wrong += entry.frequency() != f;
    const uint32_t limit = f << (31 - kProbBits);
    for (int i = 0; i < 200; ++i) {
      const uint32_t multiple = random() % (1u << (31 - kProbBits)) * f;
      for (uint32_t state : {multiple, multiple - 1, multiple + f - 1,
                             static_cast<uint32_t>(random())}) {
        state %= limit;
        if (i == 0) state = limit - 1;
        wrong += entry.Put(state) !=
                 (state / f << kProbBits) + state % f + start;
      }
    }
  }
  CHECK_EQ(wrong, 0);
}

}  // namespace
}  // namespace rans
}  // namespace comptrain

int main() {
  comptrain::rans::TestEntries();
  comptrain::rans::TestTensors();
  comptrain::rans::TestLongChunks();
  for (int64_t chunks : comptrain::rans::seen_kinds) CHECK(chunks > 10);
  CHECK(comptrain::rans::seen_escapes > 10);
  return comptrain::FinishTests();
}

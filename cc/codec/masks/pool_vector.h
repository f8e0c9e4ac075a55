// pool_kernels.h over vectors, for avx2.cc and avx512.cc.
#pragma once

#include "cc/codec/common/vector.h"
#include "cc/codec/masks/pool_kernels.h"

#define V COMPTRAIN_V

namespace comptrain {
namespace {

// n: how many elements of a vector there are. AVX-512 reads and writes no
// others; AVX2 is given whole vectors.
#if COMPTRAIN_IS_AVX512
constexpr bool kPartVectors = true;
constexpr int kMostVectors = 4;

inline uint32_t Elements(int64_t n) { return n >= 32 ? ~0u : (1u << n) - 1; }
inline Floats LoadPart(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(static_cast<Mask>(Elements(n)), p);
}
template <class T>
Floats LoadPart(const T* p, int64_t n) {
  return FromStorage(
      _mm256_maskz_loadu_epi16(static_cast<Mask>(Elements(n)), p), T());
}
inline void StorePart(Floats v, float* p, int64_t n) {
  _mm512_mask_storeu_ps(p, static_cast<Mask>(Elements(n)), v);
}
template <class T>
void StorePart(Floats v, T* p, int64_t n) {
  _mm256_mask_storeu_epi16(p, static_cast<Mask>(Elements(n)),
                           ToStorage(v, T()));
}
inline Ints LoadPart16(const void* p, int64_t n) {
  return _mm512_maskz_loadu_epi16(Elements(n), p);
}
inline void StorePart16(Ints v, void* p, int64_t n) {
  _mm512_mask_storeu_epi16(p, Elements(n), v);
}
// The low bytes of 32-bit elements, and of 16-bit ones.
inline void StoreBytes32(Ints v, uint8_t* p, int64_t n) {
  _mm_mask_storeu_epi8(p, static_cast<Mask>(Elements(n)),
                       _mm512_cvtepi32_epi8(v));
}
inline void StoreBytes16(Ints v, uint8_t* p, int64_t n) {
  _mm256_mask_storeu_epi8(p, Elements(n), _mm512_cvtepi16_epi8(v));
}
// A bit for each byte that is `value`.
inline Mask Equals32(const uint8_t* bytes, unsigned value, int64_t n) {
  const auto elements = static_cast<Mask>(Elements(n));
  return _mm_mask_cmpeq_epi8_mask(elements,
                                  _mm_maskz_loadu_epi8(elements, bytes),
                                  _mm_set1_epi8(static_cast<char>(value)));
}
// v where the byte is `value`.
inline Ints KeepEquals16(Ints v, const uint8_t* bytes, unsigned value,
                         int64_t n) {
  return _mm512_maskz_mov_epi16(
      _mm256_mask_cmpeq_epi8_mask(Elements(n),
                                  _mm256_maskz_loadu_epi8(Elements(n), bytes),
                                  _mm256_set1_epi8(static_cast<char>(value))),
      v);
}
inline Ints Choose32(Mask m, Ints then, Ints otherwise) {
  return _mm512_mask_mov_epi32(otherwise, m, then);
}
using Mask16 = __mmask32;
inline Mask16 Greater16(Ints a, Ints b) {
  return _mm512_cmpgt_epi16_mask(a, b);
}
inline Ints Choose16(Mask16 m, Ints then, Ints otherwise) {
  return _mm512_mask_mov_epi16(otherwise, m, then);
}
// -magnitude where v is negative.
inline Ints WithSign16(Ints magnitude, Ints v) {
  return _mm512_mask_sub_epi16(magnitude, _mm512_movepi16_mask(v), Ints{},
                               magnitude);
}
#else
constexpr bool kPartVectors = false;
constexpr int kMostVectors = 2;

template <class T>
Floats LoadPart(const T* p, int64_t /*n*/) {
  return Load(p);
}
template <class T>
void StorePart(Floats v, T* p, int64_t /*n*/) {
  Store(v, p);
}
inline Ints LoadPart16(const void* p, int64_t /*n*/) { return LoadInts(p); }
inline void StorePart16(Ints v, void* p, int64_t /*n*/) { StoreInts(v, p); }
inline void StoreBytes32(Ints v, uint8_t* p, int64_t /*n*/) {
  const __m128i words = _mm_packus_epi32(Low(v), High(v));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p),
                   _mm_packus_epi16(words, words));
}
inline void StoreBytes16(Ints v, uint8_t* p, int64_t /*n*/) {
  StoreHalf(_mm_packus_epi16(Low(v), High(v)), p);
}
inline Mask Equals32(const uint8_t* bytes, unsigned value, int64_t /*n*/) {
  const __m128i v = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  return _mm256_cvtepi8_epi32(
      _mm_cmpeq_epi8(v, _mm_set1_epi8(static_cast<char>(value))));
}
inline Ints KeepEquals16(Ints v, const uint8_t* bytes, unsigned value,
                         int64_t /*n*/) {
  return v & _mm256_cvtepi8_epi16(_mm_cmpeq_epi8(
                 LoadHalf(bytes), _mm_set1_epi8(static_cast<char>(value))));
}
inline Ints Choose32(Mask m, Ints then, Ints otherwise) {
  return _mm256_blendv_epi8(otherwise, then, m);
}
using Mask16 = Ints;
inline Mask16 Greater16(Ints a, Ints b) { return _mm256_cmpgt_epi16(a, b); }
inline Ints Choose16(Mask16 m, Ints then, Ints otherwise) {
  return _mm256_blendv_epi8(otherwise, then, m);
}
inline Ints WithSign16(Ints magnitude, Ints v) {
  return _mm256_sign_epi16(magnitude, v);
}
#endif

// The running maximum of floats and its position. A NaN is not looked for at
// every step: the sum of all values shows that there may have been one.
struct Best32 {
  using T = float;
  static constexpr int64_t kElements = kWidth;

  Floats value, sum;
  Ints position;

  void Start(const T* x, int64_t n, uint32_t first) {
    value = sum = LoadPart(x, n);
    position = AllInts(first);
  }
  void Add(const T* x, int64_t n, uint32_t at) {
    const Floats v = LoadPart(x, n);
    const Mask wins = Compare<_CMP_GT_OQ>(v, value);
    value = V(max_ps)(v, value);  // of equals, the second: the earlier
    sum += v;
    position = Choose32(wins, AllInts(at), position);
  }
  // False when the result may be wrong, and is to be found one by one.
  bool Sound() const { return !Any(Compare<_CMP_UNORD_Q>(sum, sum)); }
  void Put(T* y, uint8_t* positions, int64_t n) const {
    if (y != nullptr) StorePart(value, y, n);
    StoreBytes32(position, positions, n);
  }
};

// Likewise for a 16-bit type, compared as integers in the same order:
// sign-magnitude becomes two's complement (so -0 == +0), NaN the top.
template <class Type, int kInfinity>
struct Best16 {
  using T = Type;
  static constexpr int64_t kElements = 2 * kWidth;

  Ints value, key, position;

  static Ints Key(Ints v) {
    const Ints magnitude = v & All16(0x7fff);
    return Choose16(Greater16(magnitude, All16(kInfinity)), All16(0x7fff),
                    WithSign16(magnitude, v));
  }
  void Start(const T* x, int64_t n, uint32_t first) {
    value = LoadPart16(x, n);
    key = Key(value);
    position = All16(static_cast<int>(first));
  }
  void Add(const T* x, int64_t n, uint32_t at) {
    const Ints v = LoadPart16(x, n), k = Key(v);
    const Mask16 wins = Greater16(k, key);
    value = Choose16(wins, v, value);
    key = V(max_epi16)(key, k);
    position = Choose16(wins, All16(static_cast<int>(at)), position);
  }
  bool Sound() const { return true; }
  void Put(T* y, uint8_t* positions, int64_t n) const {
    if (y != nullptr) StorePart16(value, y, n);
    StoreBytes16(position, positions, n);
  }
};

// kVectors vectors of channels from c on, n elements in each. Several at a time
// share the walk over the window and hide each other's latency. All loops over
// them are unrolled, or they would live in memory.
template <class Best, int kVectors>
inline void IndexBlock(const typename Best::T* x, const PoolRun& run, int64_t c,
                       int64_t n, typename Best::T* y, uint8_t* positions) {
  const PoolOffset* const offsets = run.offsets;
  Best best[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    best[v].Start(x + c + v * Best::kElements, n, offsets[0].position);
  }
  for (int64_t i = 1; i < run.n_offsets; ++i) {
    const auto* at = x + c + offsets[i].element;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      best[v].Add(at + v * Best::kElements, n, offsets[i].position);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const int64_t first = c + v * Best::kElements;
    if (best[v].Sound()) {
      best[v].Put(y == nullptr ? nullptr : y + first, positions + first, n);
    } else {
      PoolIndexTail<uint8_t>(x, run, first, first + n, y, positions);
    }
  }
}

// Channels from c on in blocks of kVectors; returns where it stopped.
template <class Best, int kVectors>
inline int64_t IndexBlocks(const typename Best::T* x, const PoolRun& run,
                           int64_t c, typename Best::T* y, uint8_t* positions) {
  constexpr int64_t kElements = Best::kElements;
  // A literal count lets the compiler drop the masks of whole vectors.
  for (; c + kVectors * kElements <= run.channels; c += kVectors * kElements) {
    IndexBlock<Best, kVectors>(x, run, c, kElements, y, positions);
  }
  if constexpr (kVectors > 1) {
    return IndexBlocks<Best, kVectors / 2>(x, run, c, y, positions);
  }
  return c;
}

template <class Best>
void Index(const void* x, const PoolRun& run, void* y, uint8_t* positions) {
  using T = typename Best::T;
  PoolForPixels<uint8_t, T>(
      x, run, y, positions, [&run](const T* in, T* out, uint8_t* to) {
        const int64_t c = IndexBlocks<Best, kMostVectors>(in, run, 0, out, to);
        if (kPartVectors && c < run.channels) {
          IndexBlock<Best, 1>(in, run, c, run.channels - c, out, to);
        } else {
          PoolIndexTail<uint8_t>(in, run, c, run.channels, out, to);
        }
      });
}

// Calls body(c, n) for vectors of channels; returns how many it has done.
template <class Body>
inline int64_t ForVectors(int64_t elements, int64_t channels,
                          const Body& body) {
  int64_t c = 0;
  for (; c + elements <= channels; c += elements) body(c, elements);
  if (!kPartVectors || c == channels) return c;
  body(c, channels - c);
  return channels;
}

// Channels of a pixel under one cover.
int64_t CopyCover(const PoolCover& cover, int64_t channels, float* dx) {
  const float* dy = static_cast<const float*>(cover.dy);
  return ForVectors(kWidth, channels, [&](int64_t c, int64_t n) {
    const Mask hit = Equals32(cover.positions + c, cover.position, n);
    StorePart(Keep(LoadPart(dy + c, n), hit), dx + c, n);
  });
}
template <class T>
int64_t CopyCover(const PoolCover& cover, int64_t channels, T* dx) {
  const T* dy = static_cast<const T*>(cover.dy);
  return ForVectors(2 * kWidth, channels, [&](int64_t c, int64_t n) {
    StorePart16(KeepEquals16(LoadPart16(dy + c, n), cover.positions + c,
                             cover.position, n),
                dx + c, n);
  });
}

template <class T>
void Gradient(const PoolCover* covers, int64_t n_covers, int64_t channels,
              void* dx) {
  T* out = static_cast<T*>(dx);
  const int64_t done =
      n_covers == 1
          ? CopyCover(covers[0], channels, out)
          : ForVectors(kWidth, channels, [&](int64_t c, int64_t n) {
              Floats sum = {};
              for (int64_t i = 0; i < n_covers; ++i) {
                const PoolCover& cover = covers[i];
                const Mask hit =
                    Equals32(cover.positions + c, cover.position, n);
                sum +=
                    Keep(LoadPart(static_cast<const T*>(cover.dy) + c, n), hit);
              }
              StorePart(sum, out + c, n);
            });
  PoolGradientTail<uint8_t>(covers, n_covers, done, channels, out);
}

constexpr int64_t kBytes = 4 * kWidth;

#if COMPTRAIN_IS_AVX512
inline uint64_t LowBits(Ints v) { return _mm512_test_epi8_mask(v, v); }
inline Ints FromBits(uint64_t bits) { return _mm512_maskz_set1_epi8(bits, 1); }
inline void StoreQuarter(Ints v, uint8_t* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
}
inline __m128i LoadQuarter(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
#else
inline uint64_t LowBits(Ints v) {
  return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_slli_epi16(v, 7)));
}
inline Ints FromBits(uint64_t bits) {
  const Ints spread = _mm256_setr_epi64x(
      0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const Ints bit =
      _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  const Ints bytes =
      _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), spread);
  return _mm256_cmpeq_epi8(bytes & bit, bit) & _mm256_set1_epi8(1);
}
inline void StoreQuarter(Ints v, uint8_t* p) { StoreBytes32(v, p, kWidth); }
inline __m128i LoadQuarter(const uint8_t* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
#endif

void Pack(const uint8_t* positions, int64_t n, int bits, uint8_t* packed) {
  const Ints pairs = All16(bits == 4 ? 0x1001 : 0x0401);
  int64_t i = 0;
  for (; i + kBytes <= n; i += kBytes) {
    const Ints v = LoadInts(positions + i);
    uint8_t* out = packed + i * bits / 8;
    if (bits == 1) {
      const uint64_t word = LowBits(v);
      std::memcpy(out, &word, kBytes / 8);
      continue;
    }
    const Ints two = V(maddubs_epi16)(v, pairs);
    if (bits == 4) {
      StoreBytes16(two, out, 2 * kWidth);
    } else {
      StoreQuarter(V(madd_epi16)(two, AllInts(0x00100001)), out);
    }
  }
  PoolPackTail(positions + i, n - i, bits, packed + i * bits / 8);
}

// A vector of positions.
inline Ints UnpackVector(const uint8_t* packed, int bits) {
  if (bits == 1) {
    uint64_t word = 0;
    std::memcpy(&word, packed, kBytes / 8);
    return FromBits(word);
  }
  if (bits == 4) {
    const Ints v = V(cvtepu8_epi16)(LoadHalf(packed));
    return (v | V(slli_epi16)(v, 4)) & All8(15);
  }
  const Ints v = V(cvtepu8_epi32)(LoadQuarter(packed));
  const Ints low = v | V(slli_epi32)(v, 6);
  return (low | V(slli_epi32)(low, 12)) & All8(3);
}

void Unpack(const uint8_t* packed, int64_t n, int bits, uint8_t* positions) {
  int64_t i = 0;
  for (; i + kBytes <= n; i += kBytes) {
    StoreInts(UnpackVector(packed + i * bits / 8, bits), positions + i);
  }
  PoolUnpackTail(packed + i * bits / 8, n - i, bits, positions + i);
}

}  // namespace

constexpr PoolKernels COMPTRAIN_NAME(kPoolKernels) = {
    {Index<Best32>, Index<Best16<BF16, 0x7f80>>, Index<Best16<F16, 0x7c00>>},
    {Gradient<float>, Gradient<BF16>, Gradient<F16>},
    Pack,
    Unpack};

}  // namespace comptrain

#undef V

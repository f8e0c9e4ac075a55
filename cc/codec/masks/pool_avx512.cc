#include "cc/codec/masks/pool_kernels.h"

#if defined(__AVX512VBMI2__)
#include "cc/codec/common/half_avx512.h"

namespace comptrain {
namespace {

// The running maximum of 16 floats and its position. A NaN is not looked for
// at every step: the sum of all values shows that there may have been one.
struct Best32 {
  using T = float;
  static constexpr int64_t kLanes = 16;

  __m512 value, sum;
  __m512i position;

  void Start(const T* x, int64_t n, uint32_t first) {
    value = sum = _mm512_maskz_loadu_ps(Lanes16(n), x);
    position = _mm512_set1_epi32(static_cast<int>(first));
  }

  void Add(const T* x, int64_t n, uint32_t at) {
    const __m512 v = _mm512_maskz_loadu_ps(Lanes16(n), x);
    const __mmask16 wins = _mm512_cmp_ps_mask(v, value, _CMP_GT_OQ);
    value = _mm512_max_ps(v, value);  // of equals, the second: the earlier
    sum = _mm512_add_ps(sum, v);
    position = _mm512_mask_mov_epi32(position, wins,
                                     _mm512_set1_epi32(static_cast<int>(at)));
  }

  // False when the result may be wrong, and is to be found one by one.
  bool Sound() const {
    return _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q) == 0;
  }

  void Store(T* y, uint8_t* positions, int64_t n) const {
    if (y != nullptr) _mm512_mask_storeu_ps(y, Lanes16(n), value);
    _mm_mask_storeu_epi8(positions, Lanes16(n),
                         _mm512_cvtepi32_epi8(position));
  }
};

// Likewise for 32 elements of a 16-bit type, compared as integers in the same
// order: sign-magnitude becomes two's complement (so -0 == +0), NaN the top.
template <class Type, int kInfinity>
struct Best16 {
  using T = Type;
  static constexpr int64_t kLanes = 32;

  __m512i value, key, position;

  static __m512i Key(__m512i v) {
    const __m512i magnitude =
        _mm512_and_si512(v, _mm512_set1_epi16(0x7fff));
    const __m512i key = _mm512_mask_sub_epi16(
        magnitude, _mm512_movepi16_mask(v), _mm512_setzero_si512(), magnitude);
    const __mmask32 nan = _mm512_cmpgt_epi16_mask(
        magnitude, _mm512_set1_epi16(kInfinity));
    return _mm512_mask_mov_epi16(key, nan, _mm512_set1_epi16(0x7fff));
  }

  void Start(const T* x, int64_t n, uint32_t first) {
    value = _mm512_maskz_loadu_epi16(Lanes32(n), x);
    key = Key(value);
    position = _mm512_set1_epi16(static_cast<int16_t>(first));
  }

  void Add(const T* x, int64_t n, uint32_t at) {
    const __m512i v = _mm512_maskz_loadu_epi16(Lanes32(n), x);
    const __m512i k = Key(v);
    const __mmask32 wins = _mm512_cmpgt_epi16_mask(k, key);
    value = _mm512_mask_mov_epi16(value, wins, v);
    key = _mm512_max_epi16(key, k);
    position = _mm512_mask_mov_epi16(
        position, wins, _mm512_set1_epi16(static_cast<int16_t>(at)));
  }

  bool Sound() const { return true; }

  void Store(T* y, uint8_t* positions, int64_t n) const {
    if (y != nullptr) _mm512_mask_storeu_epi16(y, Lanes32(n), value);
    _mm256_mask_storeu_epi8(positions, Lanes32(n),
                            _mm512_cvtepi16_epi8(position));
  }
};

// kVectors vectors of channels from c on, `lanes` in each. Several at a time
// share the walk over the window and hide each other's latency. All loops
// over them are unrolled, or they would live in memory.
template <class Best, int kVectors>
inline void IndexBlock(const typename Best::T* x, const PoolRun& run,
                       int64_t c, int64_t lanes, typename Best::T* y,
                       uint8_t* positions) {
  const PoolOffset* const offsets = run.offsets;
  Best best[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    best[v].Start(x + c + v * Best::kLanes, lanes, offsets[0].position);
  }
  for (int64_t i = 1; i < run.n_offsets; ++i) {
    const auto* at = x + c + offsets[i].element;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      best[v].Add(at + v * Best::kLanes, lanes, offsets[i].position);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const int64_t first = c + v * Best::kLanes;
    if (best[v].Sound()) {
      best[v].Store(y == nullptr ? nullptr : y + first, positions + first,
                    lanes);
    } else {
      PoolIndexTail<uint8_t>(x, run, first, first + lanes, y, positions);
    }
  }
}

template <class Best>
inline void IndexPixel(const typename Best::T* x, const PoolRun& run,
                       typename Best::T* y, uint8_t* positions) {
  constexpr int64_t kLanes = Best::kLanes;
  const int64_t channels = run.channels;
  int64_t c = 0;
  // A literal count lets the compiler drop the masks of whole vectors.
  for (; c + 4 * kLanes <= channels; c += 4 * kLanes) {
    IndexBlock<Best, 4>(x, run, c, kLanes, y, positions);
  }
  for (; c + 2 * kLanes <= channels; c += 2 * kLanes) {
    IndexBlock<Best, 2>(x, run, c, kLanes, y, positions);
  }
  for (; c + kLanes <= channels; c += kLanes) {
    IndexBlock<Best, 1>(x, run, c, kLanes, y, positions);
  }
  if (c < channels) IndexBlock<Best, 1>(x, run, c, channels - c, y, positions);
}

template <class Best>
void Index(const void* x, const PoolRun& run, void* y, uint8_t* positions) {
  using T = typename Best::T;
  PoolForPixels<uint8_t, T>(x, run, y, positions,
                            [&run](const T* in, T* out, uint8_t* to) {
                              IndexPixel<Best>(in, run, out, to);
                            });
}

inline void CopyCover(const PoolCover& cover, int64_t channels, float* dx) {
  const float* dy = static_cast<const float*>(cover.dy);
  const __m128i here = _mm_set1_epi8(static_cast<char>(cover.position));
  for (int64_t c = 0; c < channels; c += 16) {
    const __mmask16 lanes = Lanes16(channels - c);
    const __mmask16 hit = _mm_mask_cmpeq_epi8_mask(
        lanes, _mm_maskz_loadu_epi8(lanes, cover.positions + c), here);
    _mm512_mask_storeu_ps(dx + c, lanes, _mm512_maskz_loadu_ps(hit, dy + c));
  }
}

template <class T>
inline void CopyCover(const PoolCover& cover, int64_t channels, T* dx) {
  const T* dy = static_cast<const T*>(cover.dy);
  const __m256i here = _mm256_set1_epi8(static_cast<char>(cover.position));
  for (int64_t c = 0; c < channels; c += 32) {
    const __mmask32 lanes = Lanes32(channels - c);
    const __mmask32 hit = _mm256_mask_cmpeq_epi8_mask(
        lanes, _mm256_maskz_loadu_epi8(lanes, cover.positions + c), here);
    _mm512_mask_storeu_epi16(dx + c, lanes,
                             _mm512_maskz_loadu_epi16(hit, dy + c));
  }
}

template <class T>
void Gradient(const PoolCover* covers, int64_t n_covers, int64_t channels,
              void* dx) {
  T* out = static_cast<T*>(dx);
  if (n_covers == 1) return CopyCover(covers[0], channels, out);
  for (int64_t c = 0; c < channels; c += 16) {
    const __mmask16 lanes = Lanes16(channels - c);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < n_covers; ++i) {
      const PoolCover& cover = covers[i];
      const __mmask16 hit = _mm_mask_cmpeq_epi8_mask(
          lanes, _mm_maskz_loadu_epi8(lanes, cover.positions + c),
          _mm_set1_epi8(static_cast<char>(cover.position)));
      const __m512 dy = Load16(static_cast<const T*>(cover.dy) + c, lanes);
      sum = _mm512_mask_add_ps(sum, hit, sum, dy);
    }
    Store16(sum, out + c, lanes);
  }
}

void Pack(const uint8_t* positions, int64_t n, int bits, uint8_t* packed) {
  const __m512i pairs = _mm512_set1_epi16(bits == 4 ? 0x1001 : 0x0401);
  const __m512i fours = _mm512_set1_epi32(0x00100001);
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i v = _mm512_loadu_si512(positions + i);
    uint8_t* out = packed + i * bits / 8;
    if (bits == 1) {
      const uint64_t word = _mm512_test_epi8_mask(v, v);
      std::memcpy(out, &word, sizeof(word));
      continue;
    }
    const __m512i two = _mm512_maddubs_epi16(v, pairs);
    if (bits == 4) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                          _mm512_cvtepi16_epi8(two));
    } else {
      _mm_storeu_si128(
          reinterpret_cast<__m128i*>(out),
          _mm512_cvtepi32_epi8(_mm512_madd_epi16(two, fours)));
    }
  }
  PoolPackTail(positions + i, n - i, bits, packed + i * bits / 8);
}

// 64 positions from 8 * bits bytes.
inline __m512i Unpack64(const uint8_t* packed, int bits) {
  if (bits == 1) {
    uint64_t word;
    std::memcpy(&word, packed, sizeof(word));
    return _mm512_maskz_set1_epi8(word, 1);
  }
  if (bits == 4) {
    const __m512i v = _mm512_cvtepu8_epi16(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed)));
    return _mm512_and_si512(_mm512_or_si512(v, _mm512_slli_epi16(v, 4)),
                            _mm512_set1_epi8(15));
  }
  const __m512i v = _mm512_cvtepu8_epi32(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed)));
  const __m512i low = _mm512_or_si512(v, _mm512_slli_epi32(v, 6));
  return _mm512_and_si512(_mm512_or_si512(low, _mm512_slli_epi32(low, 12)),
                          _mm512_set1_epi8(3));
}

void Unpack(const uint8_t* packed, int64_t n, int bits, uint8_t* positions) {
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    _mm512_storeu_si512(positions + i, Unpack64(packed + i * bits / 8, bits));
  }
  PoolUnpackTail(packed + i * bits / 8, n - i, bits, positions + i);
}

}  // namespace

const PoolKernels* PoolKernelsAvx512() {
  static const PoolKernels kernels = {
      {Index<Best32>, Index<Best16<BF16, 0x7f80>>, Index<Best16<F16, 0x7c00>>},
      {Gradient<float>, Gradient<BF16>, Gradient<F16>},
      Pack,
      Unpack};
  return &kernels;
}

}  // namespace comptrain

#else

namespace comptrain {
const PoolKernels* PoolKernelsAvx512() { return nullptr; }
}  // namespace comptrain

#endif

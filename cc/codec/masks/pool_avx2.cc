#include "cc/codec/masks/pool_kernels.h"

#if defined(__AVX2__)
#include "cc/codec/common/half_avx2.h"

namespace comptrain {
namespace {

inline __m256i Load256(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

// The running maximum of 16 floats and its position. A NaN is not looked for
// at every step: the sum of all values shows that there may have been one.
struct Best32 {
  using T = float;

  __m256 value[2], sum[2];
  __m256i position[2];

  Best32(const T* x, uint32_t first) {
    for (int h = 0; h < 2; ++h) {
      value[h] = sum[h] = _mm256_loadu_ps(x + 8 * h);
      position[h] = _mm256_set1_epi32(static_cast<int>(first));
    }
  }

  void Add(const T* x, uint32_t at) {
    const __m256i here = _mm256_set1_epi32(static_cast<int>(at));
    for (int h = 0; h < 2; ++h) {
      const __m256 v = _mm256_loadu_ps(x + 8 * h);
      const __m256 wins = _mm256_cmp_ps(v, value[h], _CMP_GT_OQ);
      value[h] = _mm256_max_ps(v, value[h]);  // of equals, the earlier
      sum[h] = _mm256_add_ps(sum[h], v);
      position[h] = _mm256_blendv_epi8(position[h], here,
                                       _mm256_castps_si256(wins));
    }
  }

  // False when the result may be wrong, and is to be found one by one.
  bool Sound() const {
    return _mm256_movemask_ps(
               _mm256_cmp_ps(sum[0], sum[1], _CMP_UNORD_Q)) == 0;
  }

  void Store(T* y, uint8_t* positions) const {
    if (y != nullptr) {
      _mm256_storeu_ps(y, value[0]);
      _mm256_storeu_ps(y + 8, value[1]);
    }
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packus_epi32(position[0], position[1]), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(positions),
                     _mm_packus_epi16(_mm256_castsi256_si128(words),
                                      _mm256_extracti128_si256(words, 1)));
  }
};

// Likewise for 16 elements of a 16-bit type, compared as integers in the same
// order: sign-magnitude becomes two's complement (so -0 == +0), NaN the top.
template <class Type, int kInfinity>
struct Best16 {
  using T = Type;

  __m256i value, key, position;

  static __m256i Key(__m256i v) {
    const __m256i top = _mm256_set1_epi16(0x7fff);
    const __m256i magnitude = _mm256_and_si256(v, top);
    const __m256i nan =
        _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(kInfinity));
    return _mm256_blendv_epi8(_mm256_sign_epi16(magnitude, v), top, nan);
  }

  Best16(const T* x, uint32_t first)
      : value(Load256(x)),
        key(Key(value)),
        position(_mm256_set1_epi16(static_cast<int16_t>(first))) {}

  void Add(const T* x, uint32_t at) {
    const __m256i v = Load256(x);
    const __m256i k = Key(v);
    const __m256i wins = _mm256_cmpgt_epi16(k, key);
    value = _mm256_blendv_epi8(value, v, wins);
    key = _mm256_max_epi16(key, k);
    position = _mm256_blendv_epi8(
        position, _mm256_set1_epi16(static_cast<int16_t>(at)), wins);
  }

  bool Sound() const { return true; }

  void Store(T* y, uint8_t* positions) const {
    if (y != nullptr) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), value);
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(positions),
                     _mm_packus_epi16(_mm256_castsi256_si128(position),
                                      _mm256_extracti128_si256(position, 1)));
  }
};

// Channels [c, c + 16).
template <class Best>
inline void IndexBlock(const typename Best::T* x, const PoolRun& run,
                       int64_t c, typename Best::T* y, uint8_t* positions) {
  const PoolOffset* const offsets = run.offsets;
  Best best(x + c, offsets[0].position);
  for (int64_t i = 1; i < run.n_offsets; ++i) {
    best.Add(x + c + offsets[i].element, offsets[i].position);
  }
  if (best.Sound()) {
    best.Store(y == nullptr ? nullptr : y + c, positions + c);
  } else {
    PoolIndexTail<uint8_t>(x, run, c, c + 16, y, positions);
  }
}

template <class Best>
void Index(const void* x, const PoolRun& run, void* y, uint8_t* positions) {
  using T = typename Best::T;
  const auto pixel = [&run](const T* in, T* out, uint8_t* to) {
    int64_t c = 0;
    for (; c + 16 <= run.channels; c += 16) {
      IndexBlock<Best>(in, run, c, out, to);
    }
    PoolIndexTail<uint8_t>(in, run, c, run.channels, out, to);
  };
  PoolForPixels<uint8_t, T>(x, run, y, positions, pixel);
}

// Ones in the 32-bit lanes of 8 channels whose maximum was here.
inline __m256i Hits8(const PoolCover& cover, int64_t c) {
  const __m128i positions = _mm_loadl_epi64(
      reinterpret_cast<const __m128i*>(cover.positions + c));
  const __m128i here = _mm_set1_epi8(static_cast<char>(cover.position));
  return _mm256_cvtepi8_epi32(_mm_cmpeq_epi8(positions, here));
}

// Channels of a pixel under one cover. Returns how many it has done.
int64_t CopyCover(const PoolCover& cover, int64_t channels, float* dx) {
  const float* dy = static_cast<const float*>(cover.dy);
  int64_t c = 0;
  for (; c + 8 <= channels; c += 8) {
    const __m256 hit = _mm256_castsi256_ps(Hits8(cover, c));
    _mm256_storeu_ps(dx + c, _mm256_and_ps(hit, _mm256_loadu_ps(dy + c)));
  }
  return c;
}

template <class T>
int64_t CopyCover(const PoolCover& cover, int64_t channels, T* dx) {
  const T* dy = static_cast<const T*>(cover.dy);
  const __m128i here = _mm_set1_epi8(static_cast<char>(cover.position));
  int64_t c = 0;
  for (; c + 16 <= channels; c += 16) {
    const __m128i positions = _mm_loadu_si128(
        reinterpret_cast<const __m128i*>(cover.positions + c));
    const __m256i hit =
        _mm256_cvtepi8_epi16(_mm_cmpeq_epi8(positions, here));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dx + c),
                        _mm256_and_si256(hit, Load256(dy + c)));
  }
  return c;
}

template <class T>
int64_t SumCovers(const PoolCover* covers, int64_t n_covers, int64_t channels,
                  T* dx) {
  int64_t c = 0;
  for (; c + 8 <= channels; c += 8) {
    __m256 sum = _mm256_setzero_ps();
    for (int64_t i = 0; i < n_covers; ++i) {
      const __m256 dy = Load8(static_cast<const T*>(covers[i].dy) + c);
      const __m256 hit = _mm256_castsi256_ps(Hits8(covers[i], c));
      sum = _mm256_add_ps(sum, _mm256_and_ps(hit, dy));
    }
    Store8(sum, dx + c);
  }
  return c;
}

template <class T>
void Gradient(const PoolCover* covers, int64_t n_covers, int64_t channels,
              void* dx) {
  T* out = static_cast<T*>(dx);
  const int64_t done = n_covers == 1
                           ? CopyCover(covers[0], channels, out)
                           : SumCovers(covers, n_covers, channels, out);
  PoolGradientTail<uint8_t>(covers, n_covers, done, channels, out);
}

// The low bytes of sixteen 16-bit lanes.
inline __m128i Narrow(__m256i v) {
  return _mm_packus_epi16(_mm256_castsi256_si128(v),
                          _mm256_extracti128_si256(v, 1));
}

void Pack(const uint8_t* positions, int64_t n, int bits, uint8_t* packed) {
  const __m256i pairs = _mm256_set1_epi16(bits == 4 ? 0x1001 : 0x0401);
  const __m256i fours = _mm256_set1_epi32(0x00100001);
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i v = Load256(positions + i);
    uint8_t* out = packed + i * bits / 8;
    if (bits == 1) {
      const int word = _mm256_movemask_epi8(_mm256_slli_epi16(v, 7));
      std::memcpy(out, &word, sizeof(word));
      continue;
    }
    const __m256i two = _mm256_maddubs_epi16(v, pairs);
    if (bits == 4) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), Narrow(two));
      continue;
    }
    const __m256i four = _mm256_madd_epi16(two, fours);
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(four),
                                           _mm256_extracti128_si256(four, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out),
                     _mm_packus_epi16(words, words));
  }
  PoolPackTail(positions + i, n - i, bits, packed + i * bits / 8);
}

// 32 positions from 4 * bits bytes.
inline __m256i Unpack32(const uint8_t* packed, int bits) {
  if (bits == 1) {
    int word;
    std::memcpy(&word, packed, sizeof(word));
    const __m256i spread = _mm256_setr_epi64x(
        0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(
        static_cast<int64_t>(0x8040201008040201u));
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(word), spread);
    return _mm256_and_si256(
        _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit),
        _mm256_set1_epi8(1));
  }
  if (bits == 4) {
    const __m256i v = _mm256_cvtepu8_epi16(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed)));
    return _mm256_and_si256(_mm256_or_si256(v, _mm256_slli_epi16(v, 4)),
                            _mm256_set1_epi8(15));
  }
  const __m256i v = _mm256_cvtepu8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed)));
  const __m256i low = _mm256_or_si256(v, _mm256_slli_epi32(v, 6));
  return _mm256_and_si256(_mm256_or_si256(low, _mm256_slli_epi32(low, 12)),
                          _mm256_set1_epi8(3));
}

void Unpack(const uint8_t* packed, int64_t n, int bits, uint8_t* positions) {
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(positions + i),
                        Unpack32(packed + i * bits / 8, bits));
  }
  PoolUnpackTail(packed + i * bits / 8, n - i, bits, positions + i);
}

}  // namespace

const PoolKernels* PoolKernelsAvx2() {
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
const PoolKernels* PoolKernelsAvx2() { return nullptr; }
}  // namespace comptrain

#endif

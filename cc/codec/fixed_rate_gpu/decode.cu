// By columns where they are even; else value after value.
#include "cc/codec/common/gpu_items.h"
#include "cc/codec/fixed_rate_gpu/column.h"
#include "cc/codec/fixed_rate_gpu/gpu.h"

namespace comptrain {
namespace {

using gpu::Column;
using gpu::kColumnThreads;
using gpu::kPacked;
using gpu::kTogether;
using gpu::Neighbours;
using gpu::StreamOnGpu;

template <int kBits, class T>
__global__ void __launch_bounds__(kColumnThreads)
    WriteValues(StreamOnGpu stream, T* x_hat) {
  const gpu::RowsOnGpu& rows = stream.of.words;
  const int64_t column = gpu::ColumnOfThread<kTogether<T>>();
  if (column >= rows.columns) return;
  const Column first(stream.of, column);
  Neighbours<T> values[kPacked] = {};
  gpu::ColumnsOut<T> out(x_hat, first, rows.row);
  COMPTRAIN_UNROLL
  for (int j = 0; j < kTogether<T>; ++j) {
    const Column at = first.Beside(j);
    const float step = stream.StepOfGroup(at.column);
    // What leaves a number as it is, its sign too, where there is no centre.
    const float centre = stream.of.has_centres
                             ? stream.of.Centre(stream.data, at.column)
                             : -0.0f;
    gpu::ForLevels<kBits>(stream, at, [&](int i, float level, bool is_zero) {
      const float v = level * step;
      T item;
      FromFloat(is_zero ? 0 : v + centre, &item);
      values[i].Set(j, item);
      out.Put(j, values[i]);
    });
  }
}

template <class T>
COMPTRAIN_HD T SumOf(T a, T b) {
  T sum;
  FromFloat(ToFloat(a) + ToFloat(b), &sum);
  return sum;
}

// The terms of a gradient. Item: a value; where kTerms is 1 an integer as large
// as one will do.
template <class Item, int kTerms>
struct Terms {
  const Item* first;
  const Item* second;

  explicit Terms(const GradientTerms& of)
      : first(static_cast<const Item*>(of.first)),
        second(static_cast<const Item*>(of.second)) {}

  COMPTRAIN_HD Item At(int64_t i) const {
    if constexpr (kTerms == 2) return SumOf(first[i], second[i]);
    return first[i];
  }
};

template <int kBits, class Item, int kTerms>
__global__ void __launch_bounds__(kColumnThreads)
    SelectItems(StreamOnGpu stream, Terms<Item, kTerms> dy, Item* dx) {
  const gpu::RowsOnGpu& rows = stream.of.words;
  const int64_t column = gpu::ColumnOfThread<kTogether<Item>>();
  if (column >= rows.columns) return;
  const Column first(stream.of, column);
  Neighbours<Item> items[kPacked];
  gpu::LoadColumns(dy.first, first, rows.row, items);
  if constexpr (kTerms == 2) {
    Neighbours<Item> others[kPacked];
    gpu::LoadColumns(dy.second, first, rows.row, others);
    COMPTRAIN_UNROLL
    for (int i = 0; i < kPacked; ++i) {
      COMPTRAIN_UNROLL
      for (int j = 0; j < kTogether<Item>; ++j) {
        items[i].Set(j, SumOf(items[i].Of(j), others[i].Of(j)));
      }
    }
  }
  gpu::ColumnsOut<Item> out(dx, first, rows.row);
  COMPTRAIN_UNROLL
  for (int j = 0; j < kTogether<Item>; ++j) {
    gpu::ColumnWords<kBits> words;
    words.Load(
        reinterpret_cast<const uint32_t*>(stream.data) + first.Beside(j).word,
        rows.row);
    COMPTRAIN_UNROLL
    for (int i = 0; i < kPacked; ++i) {
      if (words.Code(i) == 0) items[i].Set(j, Item{});
      out.Put(j, items[i]);
    }
  }
}

// Item: a value.
template <class T>
struct DecodeItem {
  StreamOnGpu stream;
  T* x_hat;

  COMPTRAIN_HD void operator()(int64_t i) const {
    FromFloat(stream.ValueAt(i), &x_hat[i]);
  }
};

template <class Item, int kTerms>
struct SelectItem {
  StreamOnGpu stream;
  Terms<Item, kTerms> dy;
  Item* dx;

  COMPTRAIN_HD void operator()(int64_t i) const {
    dx[i] = stream.CodeAt(i) == 0 ? Item{} : dy.At(i);
  }
};

template <class Item, int kTerms>
Status MaskGradient(const FixedRateStream& stream, const GradientTerms& dy,
                    void* dx, CUstream_st* cuda_stream) {
  const StreamOnGpu from(stream);
  const Terms<Item, kTerms> in(dy);
  auto* const out = static_cast<Item*>(dx);
  if (!from.of.even()) {
    return gpu::ForItems("the mask's gradient", ElementsOf(stream.of.dims),
                         SelectItem<Item, kTerms>{from, in, out}, cuda_stream);
  }
  return gpu::WithBits(stream.of.coding.bits, [&](auto bits) {
    return gpu::LaunchColumns(
        "the mask's gradient", SelectItems<decltype(bits)::value, Item, kTerms>,
        from.of.words.columns, kTogether<Item>, cuda_stream, from, in, out);
  });
}

}  // namespace

Status GpuFixedRateDecode(const FixedRateStream& stream, void* x_hat,
                          CUstream_st* cuda_stream) {
  const StreamOnGpu from(stream);
  if (!from.of.even()) {
    return gpu::ForTypedItems(
        "values", stream.of.dtype, ElementsOf(stream.of.dims),
        [&](auto type) {
          using T = decltype(type);
          return DecodeItem<T>{from, static_cast<T*>(x_hat)};
        },
        cuda_stream);
  }
  return gpu::WithBitsAndType(stream.of, [&](auto bits, auto type) {
    using T = decltype(type);
    return gpu::LaunchColumns("values", WriteValues<decltype(bits)::value, T>,
                              from.of.words.columns, kTogether<T>, cuda_stream,
                              from, static_cast<T*>(x_hat));
  });
}

Status GpuFixedRateMaskGradient(const FixedRateStream& stream,
                                const GradientTerms& dy, void* dx,
                                CUstream_st* cuda_stream) {
  if (dy.second == nullptr) {
    const auto of_size = stream.of.dtype == DType::kF32
                             ? MaskGradient<uint32_t, 1>
                             : MaskGradient<uint16_t, 1>;
    return of_size(stream, dy, dx, cuda_stream);
  }
  Status s;
  WithStorageType(stream.of.dtype, [&](auto type) {
    s = MaskGradient<decltype(type), 2>(stream, dy, dx, cuda_stream);
  });
  return s;
}

}  // namespace comptrain

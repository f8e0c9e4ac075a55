// CPU kernels of Spill, ReadAhead, Fetch and OffloadTraffic: what waits in a
// file is a store's of cc/offload.
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/kernels/common/util.h"
#include "cc/offload/store.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"
#include "tensorflow/core/framework/variant_tensor_data.h"
#include "tensorflow/core/profiler/lib/traceme.h"

namespace comptrain {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Files and folders are the user's to mend.
absl::Status OffloadStatus(const Status& s) {
  if (s.ok()) return absl::OkStatus();
  return s.code == Code::kDamagedStream
             ? absl::DataLossError(s.message)
             : absl::FailedPreconditionError(s.message);
}

Buffer BufferOf(const Tensor& tensor) {
  auto owner = std::make_shared<Tensor>(tensor);
  void* data = MutableData(owner.get());
  return {owner, data, owner->tensor_data().size()};
}

// The value of a handle's tensor. Executors drop it with the last op that reads
// the handle, also where a step fails: nothing else lets go of the parcel.
struct Spilled {
  Store* store = nullptr;
  std::shared_ptr<Parcel> parcel;  // null: the tensor stayed in memory
  Tensor stayed;
  TensorShape shape;
  DataType dtype = tensorflow::DT_INVALID;

  std::string TypeName() const { return "comptrain::Spilled"; }
  std::string DebugString() const {
    return absl::StrCat("offloaded tensor of shape ", shape.DebugString());
  }
  // It is of this process.
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
};

absl::Status ReadHandle(OpKernelContext* ctx, const Spilled** spilled) {
  const Tensor& handle = ctx->input(0);
  const absl::Status s = CheckShape("handle", handle.shape(), TensorShape(),
                                    "as Comptrain>Spill made it");
  if (!s.ok()) return s;
  *spilled = handle.scalar<tensorflow::Variant>()().get<Spilled>();
  if (*spilled != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "handle must be an output of Comptrain>Spill, got another variant");
}

// Memory of TensorFlow's allocator, where its peak counts it.
Store::Allocate Allocator(OpKernelContext* ctx, const Spilled& spilled) {
  return [ctx, &spilled](size_t, Buffer* buffer) -> Status {
    Tensor tensor;
    const absl::Status s =
        ctx->allocate_temp(spilled.dtype, spilled.shape, &tensor);
    if (!s.ok()) return Status::Invalid(std::string(s.message()));
    *buffer = BufferOf(tensor);
    return {};
  };
}

// Transfers are events of TensorFlow's profiler, on the threads that carry
// them.
const bool observed = [] {
  ObserveTransfers([](const Transfer& transfer) -> std::shared_ptr<void> {
    using tsl::profiler::TraceMe;
    if (!TraceMe::Active()) return nullptr;
    return std::make_shared<TraceMe>([&transfer] {
      return tsl::profiler::TraceMeEncode(
          transfer.out ? "comptrain_offload_out" : "comptrain_offload_in",
          {{"site", transfer.site},
           {"plain_bytes", transfer.plain_bytes},
           {"bytes", transfer.bytes}});
    });
  });
  return true;
}();

class SpillOp : public AsyncOpKernel {
 public:
  explicit SpillOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("folder", &folder_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("site", &site_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("inflight_bytes", &inflight_bytes_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("least_bytes", &least_bytes_));
    OP_REQUIRES(
        ctx, inflight_bytes_ >= 0,
        absl::InvalidArgumentError(absl::StrCat(
            "inflight_bytes must not be negative, got ", inflight_bytes_)));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    const Tensor& value = ctx->input(0);
    OP_REQUIRES_OK_ASYNC(ctx,
                         CheckShape("plain_bytes", ctx->input(1).shape(),
                                    TensorShape(), "a scalar"),
                         done);
    Spilled spilled;
    spilled.shape = value.shape();
    spilled.dtype = value.dtype();
    Tensor* handle = nullptr;
    OP_REQUIRES_OK_ASYNC(ctx, ctx->allocate_output(0, TensorShape(), &handle),
                         done);
    if (static_cast<int64_t>(value.tensor_data().size()) < least_bytes_) {
      spilled.stayed = value;
      handle->scalar<tensorflow::Variant>()() = std::move(spilled);
      return done();
    }
    OP_REQUIRES_OK_ASYNC(
        ctx, OffloadStatus(Store::Get(folder_, &spilled.store)), done);
    Store* store = spilled.store;
    const int64_t plain_bytes = ctx->input(1).scalar<int64_t>()();
    store->Put(BufferOf(value), site_, plain_bytes, inflight_bytes_,
               [handle, done, spilled](std::shared_ptr<Parcel> parcel) mutable {
                 spilled.parcel = std::move(parcel);
                 handle->scalar<tensorflow::Variant>()() = std::move(spilled);
                 done();
               });
  }

 private:
  std::string folder_, site_;
  int64_t inflight_bytes_ = 0, least_bytes_ = 0;
};

class ReadAheadOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Spilled* spilled = nullptr;
    OP_REQUIRES_OK(ctx, ReadHandle(ctx, &spilled));
    if (spilled->parcel != nullptr) {
      spilled->store->ReadAhead(spilled->parcel, Allocator(ctx, *spilled));
    }
    ctx->set_output(0, ctx->input(0));
  }
};

class FetchOp : public AsyncOpKernel {
 public:
  explicit FetchOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype_));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    const Spilled* spilled = nullptr;
    OP_REQUIRES_OK_ASYNC(ctx, ReadHandle(ctx, &spilled), done);
    OP_REQUIRES_ASYNC(ctx, spilled->dtype == dtype_,
                      absl::InvalidArgumentError(absl::StrCat(
                          "T must be the type that Comptrain>Spill took, ",
                          tensorflow::DataTypeString(spilled->dtype), ", got ",
                          tensorflow::DataTypeString(dtype_))),
                      done);
    if (spilled->parcel == nullptr) {
      ctx->set_output(0, spilled->stayed);
      return done();
    }
    spilled->store->Fetch(spilled->parcel, Allocator(ctx, *spilled),
                          [ctx, done](const Status& s, const Buffer& buffer) {
                            OP_REQUIRES_OK_ASYNC(ctx, OffloadStatus(s), done);
                            ctx->set_output(
                                0, *static_cast<Tensor*>(buffer.owner.get()));
                            done();
                          });
  }

 private:
  DataType dtype_;
};

class OffloadTrafficOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const auto all = AllTraffic();
    int64_t rows = 0;
    for (const auto& folder : all) rows += folder.second.size();
    Tensor *folders, *sites, *moved, *seconds;
    const TensorShape vector({rows});
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, vector, &folders));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, vector, &sites));
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(2, TensorShape({rows, 5}), &moved));
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(3, TensorShape({rows, 2}), &seconds));
    int64_t row = 0;
    for (const auto& folder : all) {
      for (const auto& site : folder.second) {
        const Traffic& t = site.second;
        folders->vec<tensorflow::tstring>()(row) = folder.first;
        sites->vec<tensorflow::tstring>()(row) = site.first;
        const int64_t bytes[] = {t.tensors, t.plain_bytes, t.put_bytes,
                                 t.written_bytes, t.read_bytes};
        for (int k = 0; k < 5; ++k) moved->matrix<int64_t>()(row, k) = bytes[k];
        seconds->matrix<double>()(row, 0) = t.room_s;
        seconds->matrix<double>()(row, 1) = t.fetch_s;
        ++row;
      }
    }
  }
};

#define COMPTRAIN_REGISTER_CPU(OP, KERNEL) \
  REGISTER_KERNEL_BUILDER(                 \
      Name("Comptrain>" OP).Device(tensorflow::DEVICE_CPU), KERNEL);
COMPTRAIN_REGISTER_CPU("Spill", SpillOp)
COMPTRAIN_REGISTER_CPU("ReadAhead", ReadAheadOp)
COMPTRAIN_REGISTER_CPU("Fetch", FetchOp)
COMPTRAIN_REGISTER_CPU("OffloadTraffic", OffloadTrafficOp)
#undef COMPTRAIN_REGISTER_CPU

}  // namespace
}  // namespace comptrain

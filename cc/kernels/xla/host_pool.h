// The threads of a step that XLA has compiled for a CPU, as codecs ask for
// them.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "cc/codec/common/parallel.h"
#include "xla/ffi/api/ffi.h"

namespace comptrain::hlo {

// The caller is one of the pool's own threads, so it never waits for work that
// has not begun: it does that itself.
class PartsOfWork {
 public:
  PartsOfWork(int64_t n, int64_t parts, const RangeBody* body)
      : n_(n), parts_(parts), body_(body) {}

  // Takes parts until there are none; `body` is not read after the last.
  void Run() {
    for (int64_t part; (part = next_.fetch_add(1)) < parts_;) {
      (*body_)(n_* part / parts_, n_ * (part + 1) / parts_);
      if (done_.fetch_add(1) + 1 == parts_) {
        const std::lock_guard<std::mutex> lock(mutex_);
        all_done_.notify_all();
      }
    }
  }

  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return done_.load() == parts_; });
  }

 private:
  const int64_t n_, parts_;
  const RangeBody* const body_;
  std::atomic<int64_t> next_{0}, done_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
};

inline ParallelFor OnPool(xla::ffi::ThreadPool pool) {
  // Cycles that are worth another thread, and parts for each: some are slower.
  constexpr int64_t kWorthIt = 1 << 16, kParts = 4;
  return [pool](int64_t n, int64_t cost_per_item,
                const RangeBody& body) mutable {
    if (n <= 0) return;
    const int64_t worth = n * std::max<int64_t>(cost_per_item, 1) / kWorthIt;
    const int64_t threads = std::min({pool.num_threads(), worth, n});
    if (threads <= 1) {
      body(0, n);
      return;
    }
    const auto work =
        std::make_shared<PartsOfWork>(n, std::min(n, kParts * threads), &body);
    for (int64_t i = 1; i < threads; ++i) {
      pool.Schedule([work] { work->Run(); });
    }
    work->Run();
    work->Wait();
  };
}

}  // namespace comptrain::hlo

// The threads of a block as coroutines, each with a stack of its own.
#include <cuda_runtime.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

emulated_gpu::Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulated_gpu {
namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr int kMostThreads = 1024;
constexpr size_t kMostSharedBytes = 64 << 10;  // of the smallest GPU, sm_75

[[noreturn]] void Fail(const char* what) {
  std::printf("emulated GPU: %s, in block %u, thread %u\n", what, blockIdx.x,
              threadIdx.x);
  std::exit(1);
}

enum class State { kReady, kAtExchange, kAtBarrier, kDone };

// swapcontext asks the system for signal masks, each time; so it is only for
// the first step of a thread.
struct Thread {
  ucontext_t start;
  jmp_buf place;
  bool started = false;
  void* stack = nullptr;
  State state = State::kDone;
};

struct Warp {
  int live = 0, arrived = 0;
  Exchange what = Exchange::kSync;
  int turn = 0;  // of two sets of values: threads may still read the last
  uint64_t values[2][kWarp] = {};
};

// A block on its way.
class Block {
 public:
  void Run(int threads, const std::function<void()>& body);
  const uint64_t* AtExchange(Exchange what, uint64_t value);
  bool AtBarrier(bool value);

 private:
  static void Entry();
  void GoOn(Thread* thread);
  void Arrive(void* kept);
  void Wait(State state);
  void Finish();
  void ReleaseWarp(int warp);
  void ReleaseBlock();

  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  const std::function<void()>* body_ = nullptr;
  jmp_buf scheduler_;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
  int current_ = 0, left_ = 0, at_barrier_ = 0;
  bool all_ = true, result_ = true;
  std::mt19937 random_{1};
};

Block block;
uint8_t* shared_memory = nullptr;

// AddressSanitizer has to know of every change of stacks: where to, before, and
// after it what was kept of the one that goes on, null for a new one.
void Leave(void** keep, const void* stack, size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(keep, stack, bytes);
#else
  (void)keep, (void)stack, (void)bytes;
#endif
}

void Block::Arrive(void* kept) {
#ifdef __SANITIZE_ADDRESS__
  const void* from;
  size_t bytes;
  __sanitizer_finish_switch_fiber(kept, &from, &bytes);
  if (scheduler_stack_ != nullptr) return;
  scheduler_stack_ = from;  // the first thread comes from there
  scheduler_stack_bytes_ = bytes;
#else
  (void)kept;
#endif
}

// Until the thread waits.
void Block::GoOn(Thread* thread) {
  void* kept = nullptr;
  Leave(&kept, thread->stack, kStackBytes);
  if (_setjmp(scheduler_) == 0) {
    if (thread->started) _longjmp(thread->place, 1);
    thread->started = true;
    setcontext(&thread->start);
  }
  Arrive(kept);
}

void Block::Entry() {
  block.Arrive(nullptr);
  (*block.body_)();
  block.Finish();
}

void Block::Wait(State state) {
  Thread& me = threads_[current_];
  me.state = state;
  void* kept = nullptr;
  Leave(state == State::kDone ? nullptr : &kept, scheduler_stack_,
        scheduler_stack_bytes_);
  if (_setjmp(me.place) == 0) _longjmp(scheduler_, 1);
  Arrive(kept);
}

const uint64_t* Block::AtExchange(Exchange what, uint64_t value) {
  const int me = current_;
  Warp& warp = warps_[me / kWarp];
  if (warp.arrived > 0 && warp.what != what) Fail("threads of a warp diverged");
  warp.what = what;
  uint64_t* const values = warp.values[warp.turn];
  values[me % kWarp] = value;
  // Those that were last go on in their turn, too.
  threads_[me].state = State::kAtExchange;
  if (++warp.arrived == warp.live) ReleaseWarp(me / kWarp);
  Wait(threads_[me].state);
  return values;
}

void Block::ReleaseWarp(int w) {
  Warp& warp = warps_[w];
  warp.arrived = 0;
  warp.turn ^= 1;
  std::fill_n(warp.values[warp.turn], kWarp, 0);
  const int end = std::min<int>((w + 1) * kWarp, threads_.size());
  for (int i = w * kWarp; i < end; ++i) {
    if (threads_[i].state == State::kAtExchange)
      threads_[i].state = State::kReady;
  }
}

bool Block::AtBarrier(bool value) {
  all_ &= value;
  threads_[current_].state = State::kAtBarrier;
  if (++at_barrier_ == left_) ReleaseBlock();
  Wait(threads_[current_].state);
  return result_;
}

void Block::ReleaseBlock() {
  at_barrier_ = 0;
  result_ = all_;
  all_ = true;
  for (Thread& t : threads_) {
    if (t.state == State::kAtBarrier) t.state = State::kReady;
  }
}

void Block::Finish() {
  const int w = current_ / kWarp;
  Warp& warp = warps_[w];
  --left_;
  --warp.live;
  if (warp.live > 0 && warp.arrived == warp.live) ReleaseWarp(w);
  if (left_ > 0 && at_barrier_ == left_) ReleaseBlock();
  Wait(State::kDone);
}

void Block::Run(int threads, const std::function<void()>& body) {
  body_ = &body;
  while (static_cast<int>(threads_.size()) < threads) {
    threads_.emplace_back();
    threads_.back().stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (threads_.back().stack == MAP_FAILED) Fail("no memory for a stack");
  }
  warps_.assign((threads + kWarp - 1) / kWarp, Warp());
  for (int i = 0; i < threads; ++i) {
    Thread& t = threads_[i];
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(t.stack, kStackBytes);  // of who ended there
#endif
    getcontext(&t.start);
    t.start.uc_stack.ss_sp = t.stack;
    t.start.uc_stack.ss_size = kStackBytes;
    makecontext(&t.start, Entry, 0);
    t.started = false;
    t.state = State::kReady;
    ++warps_[i / kWarp].live;
  }
  left_ = threads;
  while (left_ > 0) {
    bool any = false;
    const int first = random_() % threads;
    const bool down = random_() % 2;
    for (int k = 0; k < threads; ++k) {
      const int i = (first + (down ? threads - k : k)) % threads;
      if (threads_[i].state != State::kReady) continue;
      any = true;
      current_ = i;
      threadIdx.x = static_cast<unsigned>(i);
      GoOn(&threads_[i]);
    }
    if (!any) Fail("deadlock: threads wait for those that wait elsewhere");
  }
}

}  // namespace

const uint64_t* WarpExchange(Exchange what, uint64_t value) {
  return block.AtExchange(what, value);
}

bool BlockBarrier(bool value) { return block.AtBarrier(value); }

uint8_t* SharedMemory() { return shared_memory; }

void RunBlocks(unsigned blocks, int threads, size_t shared_bytes,
               const std::function<void()>& thread) {
  if (blocks == 0 || threads <= 0 || threads > kMostThreads) {
    Fail("a launch of that many blocks or threads");
  }
  if (shared_bytes > kMostSharedBytes) Fail("too much shared memory");
  blockDim.x = static_cast<unsigned>(threads);
  gridDim.x = blocks;
  for (unsigned b = 0; b < blocks; ++b) {
    blockIdx.x = b;
    const std::unique_ptr<uint8_t[]> memory(new uint8_t[shared_bytes]);
    std::memset(memory.get(), 0xa5, shared_bytes);
    shared_memory = memory.get();
    block.Run(threads, thread);
  }
}

}  // namespace emulated_gpu

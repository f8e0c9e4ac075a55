// Tensors that wait in a file: written and read by threads of this library,
// while TensorFlow's compute.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/codec/common/status.h"
#include "cc/offload/spill_file.h"

namespace comptrain {

// Bytes in memory, alive as long as `owner` is.
struct Buffer {
  std::shared_ptr<void> owner;
  void* data = nullptr;
  size_t bytes = 0;
};

// What was moved of the tensors of one site.
struct Traffic {
  int64_t tensors = 0;
  int64_t plain_bytes = 0;  // as plain values
  int64_t put_bytes = 0;    // as they were handed over
  int64_t written_bytes =
      0;  // into the file: without what was asked back first
  int64_t read_bytes = 0;
  double room_s = 0;   // waited until there was room for more bytes in flight
  double fetch_s = 0;  // waited for bytes that were asked back
};

// Bytes on their way, for those who observe it.
struct Transfer {
  bool out = false;  // into the file; else back
  const std::string& site;
  int64_t plain_bytes = 0;
  size_t bytes = 0;
};

// Called when a transfer of any store begins, on the thread that carries it;
// what it returns is dropped there when the transfer ends.
using Observer = std::function<std::shared_ptr<void>(const Transfer&)>;

// For all stores; has to be called while nothing is on its way.
void ObserveTransfers(Observer observer);

// As `inflight_bytes`: as many as two of the largest that the store has had. A
// fixed number would be a large part of a small step's memory, and hold a large
// one up.
constexpr size_t kTwoLargest = 0;

class Store;

// Bytes that were handed to a store. When the last pointer to it is gone its
// place in the file is free again, whatever became of the step.
class Parcel {
 public:
  ~Parcel();
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;

 private:
  friend class Store;
  enum class State { kQueued, kWriting, kInMemory, kInFile, kReading, kFailed };
  using Fetched = std::function<void(const Status&, const Buffer&)>;

  explicit Parcel(Store* store) : store_(store) {}

  // All under the store's mutex, but for what does not change after Put: the
  // store, the site and the numbers of bytes.
  Store* const store_;
  State state_ = State::kQueued;
  bool wanted_ = false;  // asked back while it was being written
  Buffer buffer_;        // empty in the file, and until it is read
  size_t bytes_ = 0;
  int64_t plain_bytes_ = 0;
  uint64_t checksum_ = 0;
  Slot slot_;
  Status status_;
  std::pair<const std::string, Traffic>* site_ = nullptr;
  std::vector<std::pair<Fetched, std::chrono::steady_clock::time_point>>
      waiting_;
};

// One for each folder of a process; lives until that exits.
class Store {
 public:
  using Accepted = std::function<void(std::shared_ptr<Parcel>)>;
  using Fetched = Parcel::Fetched;
  // Makes memory for bytes that come back.
  using Allocate = std::function<Status(size_t bytes, Buffer* buffer)>;

  // The folder's, with its file. The same folder has to be named the same way.
  static Status Get(const std::string& folder, Store** store);

  // Takes bytes, which must not change any more, and begins to write them.
  //
  // site: whom its traffic counts for.
  // plain_bytes: of the same tensor as plain values.
  // inflight_bytes: `accepted` is called at once where not more than so many,
  //   these included, wait to be written, or these alone; else when that is so.
  //   Or kTwoLargest.
  void Put(const Buffer& bytes, const std::string& site, int64_t plain_bytes,
           size_t inflight_bytes, Accepted accepted);
  // Begins to read a parcel back, where it is no longer in memory.
  void ReadAhead(const std::shared_ptr<Parcel>& parcel,
                 const Allocate& allocate);
  // The same, and hands it over; on the caller's thread where it is at hand.
  // What was read stays in memory for others that ask, as long as the parcel.
  void Fetch(const std::shared_ptr<Parcel>& parcel, const Allocate& allocate,
             Fetched fetched);

  std::map<std::string, Traffic> traffic() const;
  const SpillFile& file() const { return *file_; }
  size_t bytes_in_flight() const;

 private:
  friend class Parcel;
  struct Waiter {
    std::shared_ptr<Parcel> parcel;
    size_t inflight_bytes;
    Accepted accepted;
    std::chrono::steady_clock::time_point since;

    void Go() { accepted(std::move(parcel)); }
  };

  explicit Store(std::unique_ptr<SpillFile> file);
  void WriteAll();
  void ReadAll();
  void Write(const std::shared_ptr<Parcel>& parcel);
  void Read(const std::shared_ptr<Parcel>& parcel);
  // Notes that bytes left the flight; returns those who may go on, to be
  // called without the mutex.
  std::vector<Waiter> Land(size_t bytes);
  void Finish(const std::shared_ptr<Parcel>& parcel, const Status& status);
  static std::shared_ptr<void> Observed(const Parcel& parcel, bool out);

  const std::unique_ptr<SpillFile> file_;
  mutable std::mutex mutex_;
  std::condition_variable to_write_, to_read_;
  std::deque<std::weak_ptr<Parcel>> writes_, reads_;
  std::deque<Waiter> waiters_;
  size_t in_flight_bytes_ = 0, largest_bytes_ = 0;
  std::map<std::string, Traffic> traffic_;
};

// Of every store of the process, by folder.
std::map<std::string, std::map<std::string, Traffic>> AllTraffic();

}  // namespace comptrain

#include "cc/offload/store.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "cc/offload/checksum.h"

namespace comptrain {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Stores {
  std::mutex mutex;
  std::map<std::string, Store*> by_folder;
};

// Never destroyed: threads may still look at what is in it when statics are.
Stores& AllStores() {
  static Stores* stores = new Stores;
  return *stores;
}

void RemoveFiles() {
  Stores& all = AllStores();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& entry : all.by_folder) {
    const_cast<SpillFile&>(entry.second->file()).Remove();
  }
}

Observer& TheObserver() {
  static Observer* observer = new Observer;
  return *observer;
}

}  // namespace

void ObserveTransfers(Observer observer) {
  TheObserver() = std::move(observer);
}

std::map<std::string, std::map<std::string, Traffic>> AllTraffic() {
  Stores& all = AllStores();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::map<std::string, std::map<std::string, Traffic>> found;
  for (const auto& entry : all.by_folder) {
    found[entry.first] = entry.second->traffic();
  }
  return found;
}

Status Store::Get(const std::string& folder, Store** store) {
  Stores& all = AllStores();
  std::lock_guard<std::mutex> lock(all.mutex);
  Store*& found = all.by_folder[folder];
  if (found == nullptr) {
    std::unique_ptr<SpillFile> file;
    const Status opened = SpillFile::Open(folder, &file);
    if (!opened.ok()) {
      all.by_folder.erase(folder);
      return opened;
    }
    found = new Store(std::move(file));
    static const int registered = std::atexit(RemoveFiles);
    (void)registered;
  }
  *store = found;
  return {};
}

Store::Store(std::unique_ptr<SpillFile> file) : file_(std::move(file)) {
  std::thread([this] { WriteAll(); }).detach();
  std::thread([this] { ReadAll(); }).detach();
}

Parcel::~Parcel() {
  buffer_ = {};  // before its bytes count as landed
  std::vector<Store::Waiter> accepted;
  {
    std::lock_guard<std::mutex> lock(store_->mutex_);
    if (state_ == State::kQueued) accepted = store_->Land(bytes_);
  }
  store_->file_->Return(slot_);
  for (Store::Waiter& each : accepted) each.Go();
}

std::vector<Store::Waiter> Store::Land(size_t bytes) {
  in_flight_bytes_ -= bytes;
  std::vector<Store::Waiter> accepted;
  while (!waiters_.empty() &&
         in_flight_bytes_ <= waiters_.front().inflight_bytes) {
    Waiter& first = waiters_.front();
    first.parcel->site_->second.room_s += SecondsSince(first.since);
    accepted.push_back(std::move(first));
    waiters_.pop_front();
  }
  return accepted;
}

void Store::Put(const Buffer& bytes, const std::string& site,
                int64_t plain_bytes, size_t inflight_bytes, Accepted accepted) {
  std::shared_ptr<Parcel> parcel(new Parcel(this));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    parcel->site_ = &*traffic_.try_emplace(site).first;
    Traffic& traffic = parcel->site_->second;
    ++traffic.tensors;
    traffic.plain_bytes += plain_bytes;
    traffic.put_bytes += static_cast<int64_t>(bytes.bytes);
    parcel->plain_bytes_ = plain_bytes;
    parcel->buffer_ = bytes;
    parcel->bytes_ = bytes.bytes;
    writes_.push_back(parcel);
    largest_bytes_ = std::max(largest_bytes_, bytes.bytes);
    if (inflight_bytes == kTwoLargest) inflight_bytes = 2 * largest_bytes_;
    const bool alone = in_flight_bytes_ == 0;
    in_flight_bytes_ += bytes.bytes;
    if (!alone && in_flight_bytes_ > inflight_bytes) {
      // Bytes that never fit by themselves wait until they are alone.
      const size_t room = std::max(inflight_bytes, bytes.bytes);
      waiters_.push_back({parcel, room, std::move(accepted), Clock::now()});
      accepted = nullptr;
    }
  }
  to_write_.notify_one();
  if (accepted) accepted(std::move(parcel));
}

void Store::WriteAll() {
  for (;;) {
    std::shared_ptr<Parcel> parcel;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      to_write_.wait(lock, [this] { return !writes_.empty(); });
      parcel = writes_.front().lock();
      writes_.pop_front();
    }
    if (parcel != nullptr) Write(parcel);
  }
}

void Store::Write(const std::shared_ptr<Parcel>& parcel) {
  Buffer buffer;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (parcel->state_ != Parcel::State::kQueued) return;  // asked back
    parcel->state_ = Parcel::State::kWriting;
    buffer = parcel->buffer_;
  }
  std::shared_ptr<void> observed = Observed(*parcel, /*out=*/true);
  const Slot slot = file_->Take(buffer.bytes);
  const uint64_t checksum = Checksum(buffer.data, buffer.bytes);
  const Status status = file_->Write(slot, buffer.data, buffer.bytes);
  observed.reset();
  const size_t bytes = buffer.bytes;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    parcel->slot_ = slot;
    parcel->checksum_ = checksum;
    if (parcel->wanted_) {
      parcel->state_ = Parcel::State::kInMemory;
    } else {
      parcel->state_ =
          status.ok() ? Parcel::State::kInFile : Parcel::State::kFailed;
      parcel->status_ = status;
      parcel->buffer_ = {};  // `buffer` is what lets go of it
    }
    if (status.ok()) {
      parcel->site_->second.written_bytes += static_cast<int64_t>(bytes);
    }
  }
  buffer = {};  // before its bytes count as landed
  std::vector<Store::Waiter> accepted;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    accepted = Land(bytes);
  }
  for (Store::Waiter& each : accepted) each.Go();
}

void Store::ReadAhead(const std::shared_ptr<Parcel>& parcel,
                      const Allocate& allocate) {
  std::vector<Store::Waiter> accepted;
  bool read = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (parcel->state_ == Parcel::State::kQueued) {
      parcel->state_ = Parcel::State::kInMemory;
      accepted = Land(parcel->bytes_);
    } else if (parcel->state_ == Parcel::State::kWriting) {
      parcel->wanted_ = true;
    } else if (parcel->state_ == Parcel::State::kInFile) {
      parcel->state_ = Parcel::State::kReading;
      read = true;
    }
  }
  for (Store::Waiter& each : accepted) each.Go();
  if (!read) return;
  Buffer buffer;
  const Status allocated = allocate(parcel->bytes_, &buffer);
  if (!allocated.ok()) return Finish(parcel, allocated);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    parcel->buffer_ = std::move(buffer);
    reads_.push_back(parcel);
  }
  to_read_.notify_one();
}

void Store::Fetch(const std::shared_ptr<Parcel>& parcel,
                  const Allocate& allocate, Fetched fetched) {
  ReadAhead(parcel, allocate);
  Buffer buffer;
  Status status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (parcel->state_ == Parcel::State::kReading) {
      parcel->waiting_.emplace_back(std::move(fetched), Clock::now());
      return;
    }
    buffer = parcel->buffer_;
    status = parcel->status_;
  }
  fetched(status, buffer);
}

void Store::ReadAll() {
  for (;;) {
    std::shared_ptr<Parcel> parcel;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      to_read_.wait(lock, [this] { return !reads_.empty(); });
      parcel = reads_.front().lock();
      reads_.pop_front();
    }
    if (parcel != nullptr) Read(parcel);
  }
}

void Store::Read(const std::shared_ptr<Parcel>& parcel) {
  std::shared_ptr<void> observed = Observed(*parcel, /*out=*/false);
  // Nobody else touches these while it is read.
  Status status =
      file_->Read(parcel->slot_, parcel->buffer_.data, parcel->bytes_);
  if (status.ok() &&
      Checksum(parcel->buffer_.data, parcel->bytes_) != parcel->checksum_) {
    status = Status::Damaged(
        "what comes back from the file '" + file_->path() +
        "' of offloaded tensors is not what was written (its checksum "
        "differs); keep other programs from changing it, or give Offload a "
        "`folder` on another disk");
  }
  observed.reset();
  Finish(parcel, status);
}

void Store::Finish(const std::shared_ptr<Parcel>& parcel,
                   const Status& status) {
  Buffer buffer, dropped;
  decltype(parcel->waiting_) waiting;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    parcel->status_ = status;
    parcel->state_ =
        status.ok() ? Parcel::State::kInMemory : Parcel::State::kFailed;
    if (status.ok()) {
      parcel->site_->second.read_bytes += static_cast<int64_t>(parcel->bytes_);
    } else {
      std::swap(dropped, parcel->buffer_);
    }
    buffer = parcel->buffer_;
    std::swap(waiting, parcel->waiting_);
    for (const auto& each : waiting) {
      parcel->site_->second.fetch_s += SecondsSince(each.second);
    }
  }
  for (const auto& each : waiting) each.first(status, buffer);
}

std::shared_ptr<void> Store::Observed(const Parcel& parcel, bool out) {
  const Observer& observer = TheObserver();
  if (!observer) return nullptr;
  return observer(
      {out, parcel.site_->first, parcel.plain_bytes_, parcel.bytes_});
}

std::map<std::string, Traffic> Store::traffic() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return traffic_;
}

size_t Store::bytes_in_flight() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return in_flight_bytes_;
}

}  // namespace comptrain

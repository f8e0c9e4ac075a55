// Checksums, slots, the file's life, and what a store hands back.
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>

#include "cc/codec/testing/harness.h"
#include "cc/offload/checksum.h"
#include "cc/offload/spill_file.h"
#include "cc/offload/store.h"

namespace comptrain {
namespace {

constexpr size_t kAnyMany = size_t{1} << 30;

std::string NewFolder() {
  char name[] = "/tmp/tf_comptrain_test_XXXXXX";
  return mkdtemp(name);
}

std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> found;
  DIR* entries = opendir(folder.c_str());
  while (const dirent* entry =
             entries == nullptr ? nullptr : readdir(entries)) {
    if (entry->d_name[0] != '.') found.push_back(folder + "/" + entry->d_name);
  }
  if (entries != nullptr) closedir(entries);
  return found;
}

void RemoveFolder(const std::string& folder) {
  for (const std::string& file : FilesIn(folder)) unlink(file.c_str());
  rmdir(folder.c_str());
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Buffer Bytes(size_t count, uint8_t seed) {
  auto made = std::make_shared<std::vector<uint8_t>>(count);
  for (size_t k = 0; k < count; ++k) {
    (*made)[k] = static_cast<uint8_t>(seed + k * 7);
  }
  return {made, made->data(), count};
}

Status Allocate(size_t bytes, Buffer* buffer) {
  *buffer = Bytes(bytes, 0);
  return {};
}

std::shared_ptr<Parcel> Put(Store* store, Buffer bytes,
                            size_t inflight = kAnyMany) {
  std::promise<std::shared_ptr<Parcel>> accepted;
  const int64_t plain = 4 * static_cast<int64_t>(bytes.bytes);
  store->Put(bytes, "site", plain, inflight,
             [&](std::shared_ptr<Parcel> parcel) {
               accepted.set_value(std::move(parcel));
             });
  return accepted.get_future().get();
}

Status Fetch(Store* store, const std::shared_ptr<Parcel>& parcel, Buffer* got) {
  std::promise<Status> done;
  store->Fetch(parcel, Allocate, [&](const Status& s, const Buffer& buffer) {
    *got = buffer;
    done.set_value(s);
  });
  return done.get_future().get();
}

// Until nothing is left to write.
void Settle(const Store& store) {
  while (store.bytes_in_flight() > 0) std::this_thread::yield();
}

bool Same(const Buffer& a, const Buffer& b) {
  return a.bytes == b.bytes && std::memcmp(a.data, b.data, a.bytes) == 0;
}

void TestChecksum() {
  for (size_t count : {0, 1, 7, 8, 31, 32, 33, 100}) {
    Buffer bytes = Bytes(count, 3);
    uint8_t* data = static_cast<uint8_t*>(bytes.data);
    const uint64_t sum = Checksum(data, count);
    CHECK(count == 0 || sum != Checksum(data, count - 1));
    for (size_t bit = 0; bit < 8 * count; ++bit) {
      data[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      CHECK(sum != Checksum(data, count));
      data[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    }
    CHECK_EQ(sum, Checksum(data, count));
  }
}

void TestSlots(const std::string& folder) {
  CHECK_EQ(SizeClass(0), size_t{4096});
  CHECK_EQ(SizeClass(4096), size_t{4096});
  CHECK_EQ(SizeClass(4097), size_t{8192});
  for (size_t bytes = 1 << 15; bytes < 1 << 20; bytes += 999) {
    const size_t found = SizeClass(bytes);
    CHECK(found >= bytes && found <= bytes + bytes / 4 + 4096);
    CHECK_EQ(SizeClass(found), found);
  }
  std::unique_ptr<SpillFile> file;
  CHECK_EQ(SpillFile::Open(folder, &file).message, std::string());
  const Slot first = file->Take(100000), second = file->Take(5000);
  CHECK(second.offset >= static_cast<int64_t>(first.capacity));
  file->Return(first);
  CHECK_EQ(file->Take(90000).offset, first.offset);
  file->Return(second);
  CHECK(file->Take(1 << 20).offset != second.offset);  // too small
  const int64_t end = file->bytes();
  for (int step = 0; step < 50; ++step) {
    const Slot a = file->Take(70000 + step), b = file->Take(4000);
    file->Return(a);
    file->Return(b);
  }
  CHECK(file->bytes() <= end + 100000);
}

void TestLife(const std::string& folder) {
  std::string path;
  {
    std::unique_ptr<SpillFile> file, other;
    CHECK(SpillFile::Open(folder, &file).ok());
    path = file->path();
    struct stat status;
    CHECK_EQ(stat(path.c_str(), &status), 0);
    CHECK_EQ(status.st_mode & 0777, mode_t{0600});
    CHECK(SpillFile::Open(folder, &other).ok());  // leaves what is locked
    CHECK_EQ(FilesIn(folder).size(), size_t{2});
  }
  CHECK_EQ(FilesIn(folder).size(), size_t{0});
  const pid_t child = fork();
  if (child == 0) {
    std::unique_ptr<SpillFile> file;
    _exit(SpillFile::Open(folder, &file).ok() && raise(SIGKILL));
  }
  waitpid(child, nullptr, 0);
  CHECK_EQ(FilesIn(folder).size(), size_t{1});
  const std::string other = folder + "/notes.txt";
  close(open(other.c_str(), O_CREAT | O_WRONLY, 0600));
  {
    std::unique_ptr<SpillFile> file;
    CHECK(SpillFile::Open(folder, &file).ok());
    CHECK_EQ(FilesIn(folder).size(), size_t{2});  // this one, and the notes
  }
  CHECK_EQ(FilesIn(folder).front(), other);
  unlink(other.c_str());
}

void TestFolders(const std::string& folder) {
  std::unique_ptr<SpillFile> file;
  const Status missing = SpillFile::Open(folder + "/none", &file);
  CHECK(!missing.ok() && Has(missing.message, folder + "/none") &&
        Has(missing.message, "make it"));
  const Status refused = SpillFile::Open("/proc", &file);
  CHECK(!refused.ok() && Has(refused.message, "/proc") &&
        Has(refused.message, "`folder`"));
}

void TestRoundTrips(const std::string& folder) {
  Store* store = nullptr;
  CHECK(Store::Get(folder, &store).ok());
  Store* again = nullptr;
  CHECK(Store::Get(folder, &again).ok() && again == store);
  std::vector<std::shared_ptr<Parcel>> parcels;
  std::vector<Buffer> sent;
  for (size_t count :
       {size_t{1}, size_t{4096}, size_t{100001}, size_t{1} << 22}) {
    sent.push_back(Bytes(count, static_cast<uint8_t>(count)));
    parcels.push_back(Put(store, sent.back()));
  }
  Settle(*store);
  for (const Buffer& each : sent) CHECK_EQ(each.owner.use_count(), 1L);
  store->ReadAhead(parcels[2], Allocate);
  for (size_t k = 0; k < parcels.size(); ++k) {
    Buffer got, shared;
    CHECK(Fetch(store, parcels[k], &got).ok());
    CHECK(Same(got, sent[k]));
    CHECK(Fetch(store, parcels[k], &shared).ok());
    CHECK_EQ(shared.data, got.data);  // moved once
  }
  const Traffic traffic = store->traffic()["site"];
  CHECK_EQ(traffic.tensors, int64_t{4});
  CHECK_EQ(traffic.written_bytes, traffic.put_bytes);
  CHECK_EQ(traffic.read_bytes, traffic.put_bytes);
  CHECK_EQ(traffic.plain_bytes, 4 * traffic.put_bytes);
  // Places are free again: the file does not grow, but for those of a parcel
  // that a thread lets go of a moment late.
  const int64_t end = store->file().bytes();
  for (int step = 0; step < 100; ++step) {
    parcels.clear();
    for (const Buffer& each : sent) parcels.push_back(Put(store, each));
    Settle(*store);
  }
  CHECK(store->file().bytes() <= 2 * end);
}

// More bytes than may be in flight wait, and go on in their order.
void TestFlight(const std::string& folder) {
  Store* store = nullptr;
  CHECK(Store::Get(folder, &store).ok());
  std::vector<std::shared_ptr<Parcel>> parcels;
  for (int k = 0; k < 20; ++k) {
    parcels.push_back(Put(store, Bytes(1 << 20, k), 3 << 20));
    CHECK(store->bytes_in_flight() <= size_t{3} << 20);
  }
  parcels.push_back(Put(store, Bytes(8 << 20, 0), 3 << 20));  // by itself
  CHECK(store->bytes_in_flight() <= size_t{8} << 20);
  for (int k = 0; k < 20; ++k) {
    Buffer got;
    CHECK(Fetch(store, parcels[k], &got).ok());
    CHECK(Same(got, Bytes(1 << 20, k)));
  }
}

// A parcel that nobody fetches leaves nothing, in whatever state it is.
// The writer is slow: it waits until the test lets it go on.
void TestTwoLargestInFlight(const std::string& folder) {
  Store* store = nullptr;
  CHECK(Store::Get(folder, &store).ok());
  std::promise<void> go;
  std::shared_future<void> may_write(go.get_future());
  ObserveTransfers([may_write](const Transfer& transfer) {
    if (transfer.out) may_write.wait();
    return nullptr;
  });
  constexpr size_t kBytes = 100000;
  std::vector<std::promise<std::shared_ptr<Parcel>>> accepted(4);
  std::vector<std::future<std::shared_ptr<Parcel>>> parcels;
  const size_t sizes[] = {kBytes / 4, kBytes, 3 * kBytes / 4, kBytes};
  for (size_t k = 0; k < accepted.size(); ++k) {
    parcels.push_back(accepted[k].get_future());
    store->Put(Bytes(sizes[k], 1), "site", 0, kTwoLargest,
               [&accepted, k](std::shared_ptr<Parcel> parcel) {
                 accepted[k].set_value(std::move(parcel));
               });
  }
  const auto is_accepted = [&](size_t k) {
    return parcels[k].wait_for(std::chrono::seconds(0)) ==
           std::future_status::ready;
  };
  for (size_t k = 0; k < 3; ++k) CHECK(is_accepted(k));  // two of the largest
  CHECK(!is_accepted(3));
  CHECK(store->bytes_in_flight() <= 3 * kBytes);  // with the one that waits
  go.set_value();
  std::vector<std::shared_ptr<Parcel>> kept;
  for (auto& parcel : parcels) kept.push_back(parcel.get());
  CHECK(store->traffic().at("site").room_s > 0);
  Settle(*store);
  ObserveTransfers(nullptr);
}

void TestGivenUp(const std::string& folder) {
  Store* store = nullptr;
  CHECK(Store::Get(folder, &store).ok());
  const Buffer bytes = Bytes(1 << 20, 1);
  for (int k = 0; k < 50; ++k) {
    std::shared_ptr<Parcel> parcel = Put(store, bytes);
    if (k % 3 == 1) Settle(*store);
    if (k % 3 == 1) store->ReadAhead(parcel, Allocate);
  }
  Settle(*store);
  const int64_t end = store->file().bytes();
  for (int k = 0; k < 50; ++k) Put(store, bytes);
  Settle(*store);
  CHECK(store->file().bytes() <= end + (4 << 20));
  CHECK_EQ(bytes.owner.use_count(), 1L);
}

void TestDamage(const std::string& folder) {
  Store* store = nullptr;
  CHECK(Store::Get(folder, &store).ok());
  std::shared_ptr<Parcel> parcel = Put(store, Bytes(50000, 1));
  Settle(*store);
  const int file = open(store->file().path().c_str(), O_RDWR);
  std::vector<char> all(store->file().bytes());
  CHECK(pread(file, all.data(), all.size(), 0) > 0);
  for (char& each : all) each ^= 4;
  CHECK(pwrite(file, all.data(), all.size(), 0) > 0);
  Buffer got;
  const Status damaged = Fetch(store, parcel, &got);
  CHECK(damaged.code == Code::kDamagedStream && got.data == nullptr &&
        Has(damaged.message, store->file().path()));
  parcel = Put(store, Bytes(60000, 1));
  Settle(*store);
  CHECK_EQ(ftruncate(file, 0), 0);
  const Status cut = Fetch(store, parcel, &got);
  CHECK(cut.code == Code::kDamagedStream && Has(cut.message, "shorter"));
  close(file);
}

void TestFullDisk(const std::string& folder) {
  Store* store = nullptr;
  CHECK(Store::Get(folder, &store).ok());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before, small;
  getrlimit(RLIMIT_FSIZE, &before);
  small = before;
  small.rlim_cur = 1 << 20;
  setrlimit(RLIMIT_FSIZE, &small);
  const Buffer bytes = Bytes(4 << 20, 1);
  std::shared_ptr<Parcel> parcel = Put(store, bytes);
  Settle(*store);
  Buffer got;
  const Status full = Fetch(store, parcel, &got);
  setrlimit(RLIMIT_FSIZE, &before);
  CHECK(full.code == Code::kInvalidArgument && got.data == nullptr &&
        Has(full.message, store->file().path()) &&
        Has(full.message, "make room"));
  CHECK_EQ(bytes.owner.use_count(), 1L);
  parcel = Put(store, bytes);  // and goes on
  Settle(*store);
  CHECK(Fetch(store, parcel, &got).ok() && Same(got, bytes));
}

// What was begun, and how many of them have ended.
struct Seen {
  std::mutex mutex;
  std::vector<std::string> begun;
  size_t ended = 0;
};

void TestObserver(const std::string& folder) {
  static Seen seen;
  ObserveTransfers([](const Transfer& transfer) {
    std::lock_guard<std::mutex> lock(seen.mutex);
    seen.begun.push_back((transfer.out ? "out " : "in ") + transfer.site + " " +
                         std::to_string(transfer.plain_bytes) + " " +
                         std::to_string(transfer.bytes));
    return std::shared_ptr<void>(&seen, [](void*) {
      std::lock_guard<std::mutex> held(seen.mutex);
      ++seen.ended;
    });
  });
  Store* store = nullptr;
  CHECK(Store::Get(folder, &store).ok());
  std::shared_ptr<Parcel> parcel = Put(store, Bytes(100000, 1));
  Settle(*store);
  CHECK_EQ(seen.ended, size_t{1});
  Buffer got;
  CHECK(Fetch(store, parcel, &got).ok());
  CHECK_EQ(seen.ended, size_t{2});
  CHECK(Fetch(store, parcel, &got).ok());  // from memory: nothing moves
  CHECK((seen.begun == std::vector<std::string>{"out site 400000 100000",
                                                "in site 400000 100000"}));
}

}  // namespace
}  // namespace comptrain

int main() {
  using namespace comptrain;
  TestChecksum();
  const std::string folder = NewFolder();
  TestSlots(folder);
  TestLife(folder);
  TestFolders(folder);
  std::vector<std::string> folders;
  for (auto* test : {TestRoundTrips, TestFlight, TestGivenUp, TestDamage,
                     TestFullDisk, TestTwoLargestInFlight, TestObserver}) {
    folders.push_back(NewFolder());
    test(folders.back());
  }
  for (const std::string& each : folders) RemoveFolder(each);
  RemoveFolder(folder);
  return FinishTests();
}

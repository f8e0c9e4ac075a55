#include "cc/offload/spill_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

namespace comptrain {
namespace {

constexpr size_t kPage = 4096;
constexpr char kPrefix[] = "tf_comptrain-";
constexpr char kSuffix[] = ".spill";
constexpr int kTries = 16;  // of names that someone else has

std::string Text(int error) {
  return std::string(std::strerror(error)) + " (errno " +
         std::to_string(error) + ")";
}

bool IsSpillName(const std::string& name) {
  const std::string prefix = kPrefix, suffix = kSuffix;
  return name.size() > prefix.size() + suffix.size() &&
         name.compare(0, prefix.size(), prefix) == 0 &&
         name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
}

bool IsOurs(int file) {
  struct stat status;
  return fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
         status.st_uid == geteuid();
}

bool IsLocked(int file) { return flock(file, LOCK_EX | LOCK_NB) != 0; }

// Removes the files of this user's processes that are no more.
void RemoveStale(int folder) {
  const int listed = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* entries = listed < 0 ? nullptr : fdopendir(listed);
  if (entries == nullptr) {
    if (listed >= 0) close(listed);
    return;
  }
  while (const dirent* entry = readdir(entries)) {
    if (!IsSpillName(entry->d_name)) continue;
    const int file = openat(folder, entry->d_name,
                            O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) continue;
    if (IsOurs(file) && !IsLocked(file)) unlinkat(folder, entry->d_name, 0);
    close(file);
  }
  closedir(entries);
}

// A new file under a name of its own, locked; -1 and errno where there is none.
int Create(int folder, std::string* name) {
  std::random_device random;
  for (int k = 0; k < kTries; ++k) {
    *name = kPrefix + std::to_string(getpid()) + "-" +
            std::to_string(random()) + kSuffix;
    const int file =
        openat(folder, name->c_str(),
               O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0 && errno == EEXIST) continue;
    if (file < 0) return -1;
    struct stat status;
    // Before the lock another process may have taken it for a stale one.
    if (!IsLocked(file) && fstat(file, &status) == 0 && status.st_nlink > 0) {
      return file;
    }
    close(file);
    errno = ENOLCK;
  }
  return -1;
}

}  // namespace

size_t SizeClass(size_t bytes) {
  size_t step = kPage;
  while (step * 8 < bytes) step *= 2;
  return std::max(kPage, (bytes + step - 1) / step * step);
}

Status SpillFile::Open(const std::string& folder,
                       std::unique_ptr<SpillFile>* file) {
  const int opened = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) {
    return Status::Invalid(
        "the folder '" + folder + "' of offloaded tensors cannot be opened: " +
        Text(errno) + "; make it, or give Offload another `folder`");
  }
  RemoveStale(opened);
  std::string name;
  const int made = Create(opened, &name);
  if (made < 0) {
    const int error = errno;
    close(opened);
    return Status::Invalid("no file for offloaded tensors can be made in '" +
                           folder + "': " + Text(error) +
                           "; give Offload a `folder` that can be written to");
  }
  file->reset(new SpillFile(opened, made, name, folder + "/" + name));
  return {};
}

SpillFile::SpillFile(int folder, int file, std::string name, std::string path)
    : folder_(folder),
      file_(file),
      name_(std::move(name)),
      path_(std::move(path)),
      owner_(getpid()) {}

SpillFile::~SpillFile() {
  Remove();
  close(file_);
  close(folder_);
}

void SpillFile::Remove() {
  if (getpid() == owner_) unlinkat(folder_, name_.c_str(), 0);
}

Slot SpillFile::Take(size_t bytes) {
  const size_t wanted = SizeClass(bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = free_.lower_bound(wanted);
  if (found != free_.end() && found->first <= 2 * wanted) {
    const Slot slot{found->second.back(), found->first};
    found->second.pop_back();
    if (found->second.empty()) free_.erase(found);
    return slot;
  }
  const Slot slot{end_, wanted};
  end_ += static_cast<int64_t>(wanted);
  return slot;
}

void SpillFile::Return(const Slot& slot) {
  if (slot.capacity == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  free_[slot.capacity].push_back(slot.offset);
}

int64_t SpillFile::bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return end_;
}

Status SpillFile::Failed(const char* what, int error,
                         const char* remedy) const {
  return Status::Invalid("the file '" + path_ +
                         "' of offloaded tensors cannot be " + what + ": " +
                         Text(error) + "; " + remedy);
}

Status SpillFile::Write(const Slot& slot, const void* data,
                        size_t bytes) const {
  const char* from = static_cast<const char*>(data);
  for (size_t done = 0; done < bytes;) {
    const ssize_t written = pwrite(file_, from + done, bytes - done,
                                   slot.offset + static_cast<int64_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      return Failed("written to", written < 0 ? errno : ENOSPC,
                    "make room there, give Offload another `folder`, or train "
                    "a smaller batch");
    }
    done += static_cast<size_t>(written);
  }
  return {};
}

Status SpillFile::Read(const Slot& slot, void* data, size_t bytes) const {
  char* to = static_cast<char*>(data);
  for (size_t done = 0; done < bytes;) {
    const ssize_t read = pread(file_, to + done, bytes - done,
                               slot.offset + static_cast<int64_t>(done));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) {
      return Failed("read", errno, "give Offload a `folder` on another disk");
    }
    if (read == 0) {
      return Status::Damaged("the file '" + path_ +
                             "' of offloaded tensors is shorter than what was "
                             "written; keep other programs from changing it");
    }
    done += static_cast<size_t>(read);
  }
  return {};
}

}  // namespace comptrain

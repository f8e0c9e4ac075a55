// A file that tensors wait in: slots by size class, given back and reused.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/codec/common/status.h"

namespace comptrain {

// A place in the file.
struct Slot {
  int64_t offset = 0;
  size_t capacity = 0;  // bytes; 0: no place
};

// One file of one process, for its user alone (0600), locked as long as the
// process lives and removed when that exits. What a killed process has left is
// unlocked, and removed by the next one that opens a file in the same folder.
// All methods but Open and Remove may be called by several threads at once.
class SpillFile {
 public:
  // folder: has to be there.
  static Status Open(const std::string& folder,
                     std::unique_ptr<SpillFile>* file);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Of at least so many bytes, and at most twice their size class.
  Slot Take(size_t bytes);
  void Return(const Slot& slot);
  // bytes: at most the slot's capacity.
  Status Write(const Slot& slot, const void* data, size_t bytes) const;
  Status Read(const Slot& slot, void* data, size_t bytes) const;
  // Takes its name out of the folder; in a forked child nothing.
  void Remove();

  const std::string& path() const { return path_; }
  int64_t bytes() const;  // up to the end of the last slot

 private:
  SpillFile(int folder, int file, std::string name, std::string path);
  Status Failed(const char* what, int error, const char* remedy) const;

  const int folder_, file_;  // descriptors
  const std::string name_, path_;
  const pid_t owner_;
  mutable std::mutex mutex_;
  int64_t end_ = 0;
  std::map<size_t, std::vector<int64_t>> free_;  // offsets by capacity
};

// The smallest size class of that many bytes: a multiple of 4 KiB, four to
// each doubling.
size_t SizeClass(size_t bytes);

}  // namespace comptrain

// A directory for one test, removed with all that is in it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

namespace kvcachefs {

class TestDirectory {
 public:
  enum class On { kDisk, kMemory };  // memory: for tests with many files; a sync there waits for no other user of the disk

  explicit TestDirectory(On where = On::kDisk) {
    const bool in_memory = where == On::kMemory && std::filesystem::is_directory("/dev/shm");
    const std::filesystem::path base = in_memory ? "/dev/shm" : std::filesystem::temp_directory_path();
    path_ = base / "kvcachefs-tools-test-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "mkdtemp " << path_;
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;
  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

}  // namespace kvcachefs

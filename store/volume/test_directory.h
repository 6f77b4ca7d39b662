// Helpers for tests of this room and of rooms above it that need a directory of their own.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "store/base/result.h"
#include "store/base/units.h"
#include "store/volume/volume.h"

namespace kvcachefs::test {

// A new directory, removed with its content at the end. Below $KVCACHEFS_TEST_DIR if set, else in the system's temporary directory.
class TestDirectory {
 public:
  TestDirectory() {
    const char* base = std::getenv("KVCACHEFS_TEST_DIR");
    std::string name = base != nullptr ? std::string(base) : std::filesystem::temp_directory_path().string();
    name += "/kvcachefs-test-XXXXXX";
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;
  ~TestDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }  // empty if it could not be made

 private:
  std::string path_;
};

// Memory that direct I/O accepts, filled with a pattern that depends on `seed`.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(size_t size, unsigned seed = 0)
      : size_(size), data_(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, align_up(size + 1, kBlockBytes)))) {
    std::byte* const bytes = data_.get();
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251 + seed * 7 + 1);
  }
  std::span<std::byte> span() const { return {data_.get(), size_}; }
  std::span<std::byte> span(size_t offset, size_t length) const { return span().subspan(offset, length); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  size_t size_;
  std::unique_ptr<std::byte, Free> data_;
};

// temp + write + sync + rename + directory sync: the file has the old or the new content after any crash.
inline Status write_file_atomically(Volume& volume, const std::string& path, std::span<const std::byte> content) {
  const std::string temporary = path + ".tmp";
  (void)volume.remove_file(temporary);  // left by a crash
  const auto write = [&]() -> Status {
    KVC_ASSIGN(const FilePtr file, volume.open(temporary, {.create_exclusive = true}));
    const std::span<const std::byte> pieces[] = {content};
    KVC_TRY(file->write(pieces, 0));
    KVC_TRY(file->sync_data());
    return volume.rename(temporary, path);
  };
  if (Status written = write(); !written) {
    (void)volume.remove_file(temporary);
    return written;
  }
  const size_t slash = path.rfind('/');
  return volume.sync_directory(slash == std::string::npos ? std::string() : path.substr(0, slash));
}

}  // namespace kvcachefs::test

// A directory under test: checked before anything is measured, written to only below a directory of this run's own,
// and left as it was found.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "store/base/result.h"

namespace kvcachefs {

class Target {
 public:
  // Fails when `directory` is missing, not a directory or not writable. `purpose` names the run's directory in it.
  static Result<Target> open(const std::string& directory, size_t index, const std::string& purpose);
  Target(Target&& other) noexcept;
  Target& operator=(Target&&) = delete;
  ~Target();  // removes what is left of the run

  const std::string& directory() const { return directory_; }  // as the user named it
  size_t index() const { return index_; }                      // column of the report
  // An empty directory below the run's own, with a slash at its end.
  Result<std::string> make_dir(const std::string& name) const;
  Status remove_dir(const std::string& path) const;
  // The same; an error names the directory, as several are measured in one run.
  Status blamed(Status status) const;

 private:
  Target(std::string directory, std::string work, size_t index)
      : directory_(std::move(directory)), work_(std::move(work)), index_(index) {}

  std::string directory_;
  std::string work_;
  size_t index_;
};

// All of --dir; at least one, no two the same.
Result<std::vector<Target>> open_targets(const std::vector<std::string>& directories, const std::string& purpose);

// Removes everything in a directory but not itself.
Status remove_contents(const std::string& directory);

// kNoSpace unless `bytes` and a little more are free where `directory` lies. `advice` says what to change.
Status check_space(const std::string& directory, uint64_t bytes, const std::string& advice);
// The same for `bytes` on every target; those on one file system share its space.
Status check_space(std::span<const Target> targets, uint64_t bytes, const std::string& advice);

}  // namespace kvcachefs

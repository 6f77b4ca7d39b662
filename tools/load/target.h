// A column of the report: the directory under test, or those of several nodes that are tested together. It is checked before
// any measurement, written to only below a directory made for this run, and left as it was found.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/base/result.h"

namespace kvcachefs {

// The targets named on the command line: each of `dirs` is a column by itself, each list of `nodes` is one column.
struct TargetNames {
  std::vector<std::string> dirs;
  std::vector<std::vector<std::string>> nodes;

  size_t columns() const { return dirs.size() + nodes.size(); }
  // Number of directories in a column of nodes, the same for all; 1 without such columns.
  size_t nodes_per_column() const { return nodes.empty() ? 1 : nodes.front().size(); }
};

// Parses the lists given by `--nodes`, each "DIR,DIR,...": two directories or more, the same number in each list.
Result<std::vector<std::vector<std::string>>> parse_nodes(const std::vector<std::string>& lists);
// The names of the columns, in their order: first the directories, then the lists as they were given.
std::vector<std::string> column_names(const TargetNames& names);

class Target {
 public:
  // One directory, or those of the nodes of one column. Fails if one is missing, not a directory or not writable, and
  // if two nodes are the same directory or the same mount. `purpose` is a part of the name of the run's directory, which has the same
  // name on all nodes: if they share a volume it is one directory.
  static Result<Target> open(const std::vector<std::string>& directories, size_t index, const std::string& purpose);
  Target(Target&& other) noexcept;
  Target& operator=(Target&&) = delete;
  ~Target();  // removes what is left of the run

  const std::string& name() const { return name_; }                       // as the user named it
  const std::string& directory() const { return directories_.front(); }  // of the first node, or the only one
  size_t index() const { return index_; }                                 // column of the report
  const std::vector<std::string>& directories() const { return directories_; }
  // Makes an empty directory below the run's own, on each node; returns the paths, each with a slash at its end.
  Result<std::vector<std::string>> make_dirs(const std::string& name) const;
  Status remove_dirs(const std::vector<std::string>& paths) const;
  // Returns the status with the column's name in the error, because several columns are measured in one run.
  Status blamed(Status status) const;
  // A sentence that tells whether the nodes are mounts of one volume; none if that is not known, or if there is one node.
  std::optional<std::string> shared_volume_note() const;
  // True if all directories are on mounts that evict by themselves.
  bool evicts() const;

 private:
  Target(std::vector<std::string> directories, size_t index);

  std::string name_;
  std::vector<std::string> directories_;
  std::vector<std::string> works_;  // the run's own directory in each, as far as made
  std::vector<std::string> volume_uuids_;  // of those that are mounts
  size_t index_;
};

// Opens all columns; at least one, no two the same.
Result<std::vector<Target>> open_targets(const TargetNames& names, const std::string& purpose);

// Removes everything in the directories, one on each node, but not the directories themselves.
Status remove_contents(const std::vector<std::string>& directories);

// Returns kNoSpace unless `bytes` and a little more are free where `directory` lies. `advice` says what the user can change.
Status check_space(const std::string& directory, uint64_t bytes, const std::string& advice);
// The same for `bytes` on every node of every target; nodes on one file system share its space.
Status check_space(std::span<const Target> targets, uint64_t bytes, const std::string& advice);

}  // namespace kvcachefs

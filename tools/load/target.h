// A column of the report: the directory under test, or those of several nodes that are tested together. Checked before
// anything is measured, written to only below a directory of this run's own, and left as it was found.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/base/result.h"

namespace kvcachefs {

// What the command line names: each of `dirs` is a column by itself, each list of `nodes` is one column.
struct TargetNames {
  std::vector<std::string> dirs;
  std::vector<std::vector<std::string>> nodes;

  size_t columns() const { return dirs.size() + nodes.size(); }
  // Directories of a column of nodes, which all have as many; 1 without such columns.
  size_t nodes_per_column() const { return nodes.empty() ? 1 : nodes.front().size(); }
};

// The lists that were given by `--nodes`, each "DIR,DIR,...": two directories or more, in each list as many.
Result<std::vector<std::vector<std::string>>> parse_nodes(const std::vector<std::string>& lists);
// The names of the columns, in their order: first the directories, then the lists as they were given.
std::vector<std::string> column_names(const TargetNames& names);

class Target {
 public:
  // One directory, or those of the nodes of one column. Fails when one is missing, not a directory or not writable, and
  // when two nodes are the same directory or the same mount. `purpose` names the run's directory, which has the same
  // name on all nodes: where they share a volume it is one directory.
  static Result<Target> open(const std::vector<std::string>& directories, size_t index, const std::string& purpose);
  Target(Target&& other) noexcept;
  Target& operator=(Target&&) = delete;
  ~Target();  // removes what is left of the run

  const std::string& name() const { return name_; }                       // as the user named it
  const std::string& directory() const { return directories_.front(); }  // of the first node, or the only one
  size_t index() const { return index_; }                                 // column of the report
  const std::vector<std::string>& directories() const { return directories_; }
  // An empty directory below the run's own, with a slash at its end; on each node.
  Result<std::vector<std::string>> make_dirs(const std::string& name) const;
  Status remove_dirs(const std::vector<std::string>& paths) const;
  // The same; an error names the column, as several are measured in one run.
  Status blamed(Status status) const;
  // Whether its nodes are mounts of one volume, as a sentence; nothing where that is not known, or there is one node.
  std::optional<std::string> shared_volume_note() const;
  // All of its directories are on mounts that make room by themselves.
  bool evicts() const;

 private:
  Target(std::vector<std::string> directories, size_t index);

  std::string name_;
  std::vector<std::string> directories_;
  std::vector<std::string> works_;  // the run's own directory in each of them, as far as made
  std::vector<std::string> volume_uuids_;  // of those that are mounts
  size_t index_;
};

// All columns; at least one, no two the same.
Result<std::vector<Target>> open_targets(const TargetNames& names, const std::string& purpose);

// Removes everything in the directories, one on each node, but not themselves.
Status remove_contents(const std::vector<std::string>& directories);

// kNoSpace unless `bytes` and a little more are free where `directory` lies. `advice` says what to change.
Status check_space(const std::string& directory, uint64_t bytes, const std::string& advice);
// The same for `bytes` on every node of every target; those on one file system share its space.
Status check_space(std::span<const Target> targets, uint64_t bytes, const std::string& advice);

}  // namespace kvcachefs

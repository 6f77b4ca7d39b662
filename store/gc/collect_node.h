// `kvcachefs gc`: does for a node whose daemon is gone what that would do if it were started once more, and takes it out of the volume if asked to.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "store/check/offline_node.h"

namespace kvcachefs {

struct GcRequest {
  OfflineRequest where;    // with the name of the node
  bool remove = false;     // the node leaves the volume
  // ... unless it has files, or has said something of others that they have not answered: then it is put in order, and stays.
  bool only_if_empty = false;
  std::function<bool()> ends;  // asked all the time: true ends the waiting, and nothing is removed; may be empty
  bool dry_run = false;    // nothing is changed but the lock file
  int64_t patience_ns = 60'000'000'000;  // with nodes that live and have not followed yet
  std::function<void(const std::string&)> tell;  // what it waits for, one line at a time; may be empty
};

struct GcReport {
  std::string root;
  bool was_there = false;  // the node; else what an earlier removal had left
  uint64_t files = 0, directories = 0, live_bytes = 0;  // that the node has; with `remove`, had
  std::vector<std::string> directory_paths;             // with dry_run, if it has no files, and few of these: the upper ones first
  uint64_t bytes_before = 0, bytes_after = 0;           // that its files take on the volume
  bool removed = false;                                  // with dry_run: nothing is in the way of it
  uint64_t left_open = 0;         // files that a process on this machine has open: they go with the last close
  std::string waits_for;          // why what is dead, or the node itself, could not be given back, or not all of it
  std::vector<std::string> notes;
};

// kBusy while the node runs, naming its host, or another command works on it; kNotFound: the volume has no such node. Can be killed at any
// moment, and called again. Blocks.
Result<GcReport> collect_node(const GcRequest& request);

}  // namespace kvcachefs

// `kvcachefs gc`: does for a node whose daemon is gone what that daemon would do if it were started once more; takes the node out on request.
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
  // ... unless it has files, or has made statements about others that they have not answered: then it is put in order, and stays.
  bool only_if_empty = false;
  std::function<bool()> ends;  // polled: true ends the waiting, and nothing is removed; may be empty
  bool dry_run = false;    // changes nothing but the lock file
  int64_t patience_ns = 60'000'000'000;  // how long to wait for living nodes that have not followed yet
  std::function<void(const std::string&)> tell;  // gets what it waits for, a line at a time; may be empty
};

struct GcReport {
  std::string root;
  bool was_there = false;  // the node was there; else leftovers of an earlier removal
  uint64_t files = 0, directories = 0, live_bytes = 0;  // of the node; with `remove`, before it was removed
  std::vector<std::string> directory_paths;             // with dry_run, if there are no files and few directories: upper ones first
  uint64_t bytes_before = 0, bytes_after = 0;           // taken by its files on the volume
  bool removed = false;                                  // with dry_run: nothing prevents it
  uint64_t left_open = 0;         // files that a process on this machine has open: they go with the last close
  std::string waits_for;          // why the dead space, or the node itself, could not be given back, or not all of it
  std::vector<std::string> notes;
};

// kBusy while the node runs (names its host), or another command works on it; kNotFound: the volume has no such node. May be killed at any
// moment, and called again. Blocks.
Result<GcReport> collect_node(const GcRequest& request);

}  // namespace kvcachefs

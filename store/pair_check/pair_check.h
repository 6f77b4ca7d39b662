// Checks whether a file system has the properties on which nodes that share a volume rely. Two processes on two machines run this at about the
// same time on the same directory. It reads and writes nothing of the volume but the directory ".kvcachefs-check-volume",
// which it removes at the end; the volume may be in use.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "store/volume/volume.h"

namespace kvcachefs {

struct PairCheckRequest {
  std::string host;                                       // how the other side calls this one; nothing is looked up by it
  int64_t wait_ns = 120'000'000'000;                      // how long to wait for the other side to come
  int64_t patience_ns = 15'000'000'000;                   // how long to wait for it from one step to the next
  int64_t stands_ns = 20'000'000'000;                     // files in which nothing new is said for so long were left by a process that was killed
  unsigned rounds = 32;                                   // of each property in each direction; the lesser number of both sides counts
  std::function<void(const std::string&)> tell = nullptr;  // progress, a line at a time
};

struct PairCheckReport {
  struct Property {
    std::string name;                   // "a completed write is seen"
    std::vector<std::string> failures;  // what either side saw, the first few of each kind; empty: the property holds
    std::string consequence;            // of the failures, and what to do
  };
  std::string root, filesystem;  // of this side
  std::string other_host;
  bool same_machine = false;  // both share one kernel's memory, so the result says nothing about two machines
  std::array<Property, 4> properties;
  bool holds() const;
};

// `root`: an existing directory. kBusy: the other side did not come, or two others run a check; kCanceled: the other side gave up, or stopped
// answering. Files left by a killed process are recognized, for they stand still, and are removed.
Result<PairCheckReport> check_volume(const std::string& root, const PairCheckRequest& request);
Result<PairCheckReport> check_volume(Volume& volume, const PairCheckRequest& request);

}  // namespace kvcachefs

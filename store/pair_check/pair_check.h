// Whether a file system keeps what nodes that share a volume rely on, found out by two processes, on two machines, which run this at
// about the same time on the same directory. Nothing else of the volume is read or written but the directory ".kvcachefs-check-volume",
// which is removed at the end; the volume may be in use.
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
  std::string host;                                       // how the other one calls this side; nothing is looked up by it
  int64_t wait_ns = 120'000'000'000;                      // for the other side to come
  int64_t patience_ns = 15'000'000'000;                   // with it, from one step to the next
  int64_t stands_ns = 20'000'000'000;                     // what says nothing new for so long was left by one that was killed
  unsigned rounds = 32;                                   // of each property and each direction; the less of what the two sides say
  std::function<void(const std::string&)> tell = nullptr;  // progress, a line at a time
};

struct PairCheckReport {
  struct Property {
    std::string name;                   // "a completed write is seen"
    std::vector<std::string> failures;  // what either side saw, the first few of each kind; empty: it holds
    std::string consequence;            // of failures, and what to do
  };
  std::string root, filesystem;  // of this side
  std::string other_host;
  bool same_machine = false;  // what its kernel keeps in memory is shared by both: this tells nothing of two machines
  std::array<Property, 4> properties;
  bool holds() const;
};

// `root`: an existing directory. kBusy: the other side did not come, or two others are at it; kCanceled: the other side gave up, or does not answer any more. What is
// left of one that was killed is found to stand still, and is removed.
Result<PairCheckReport> check_volume(const std::string& root, const PairCheckRequest& request);
Result<PairCheckReport> check_volume(Volume& volume, const PairCheckRequest& request);

}  // namespace kvcachefs

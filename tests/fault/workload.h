// What engines do to a cache directory, chosen by a seed: put by temp + rename (also renamed before the close), overwrite in
// place, rewrite, truncate, unlink, rename over another, fsync, drain; and time that passes, so that the index is committed
// and space is reclaimed. Tells a Reference what was asked for and what was acknowledged.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/fault/reference.h"
#include "tests/fault/rig.h"

namespace kvcachefs::testing {

class Workload {
 public:
  Workload(Rig& rig, Reference& reference, uint64_t seed);

  // Calls may fail: the names are looked at afterwards, and must show nothing that contradicts an acknowledgement.
  void expect_errors() { errors_expected_ = true; }
  // Runs so many operations, or until the disk stops. Wrong answers are in complaints().
  void run(size_t operations);
  void check_live();  // the running store shows the present states
  // After calls that failed: what the running store shows must be allowed, and is the present state from then on.
  void look_again();
  const std::vector<std::string>& complaints() const { return complaints_; }
  size_t failures() const { return failures_; }
  const std::vector<Code>& failure_codes() const { return codes_; }
  const std::string& middle_index() const { return middle_index_; }  // a copy taken half-way; empty: none
  void copy_index_at(size_t operation) { copy_at_ = operation; }

 private:
  using Step = void (Workload::*)();
  void put();
  void overwrite();
  void rewrite();
  void truncate();
  void remove();
  void rename_over();
  void fsync_one();
  void drain();
  void sync_directory();
  void pass_time();
  void let_work() { rig_.settle(static_cast<int>(random_() % 4)); }

  bool good(const Status& status, const std::string& what);
  void refused(const std::string& name);
  void acknowledge(const std::string& name);  // as the durability option promises for close, rename, unlink
  bool finish(const Rig::HandlePtr& handle, const std::string& name, const std::string& what);
  std::string some_name();              // that may exist or not
  std::string present_name();           // empty: there is none
  std::string body(size_t size);
  size_t some_size();
  bool one_in(unsigned n) { return random_() % n == 0; }

  Rig& rig_;
  Reference& reference_;
  Durability durability_ = Durability::kNone;
  std::mt19937_64 random_;
  bool errors_expected_ = false;
  size_t failures_ = 0;
  bool failed_ = false;  // since the last look
  unsigned temporary_ = 0;
  size_t copy_at_ = 0;
  std::string middle_index_;
  std::vector<std::string> complaints_;
  std::vector<Code> codes_;
};

}  // namespace kvcachefs::testing

// EIO and ENOSPC at any call that changes the volume, once or for a while: calls fail cleanly, nothing acknowledged is lost,
// and when the fault is gone everything works again.
#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/log.h"
#include "tests/fault/workload.h"

namespace kvcachefs::testing {
namespace injected_errors_test {

constexpr size_t kOperations = 40;
constexpr const char* kDurabilityNames[] = {"none", "close", "sync"};
constexpr uint64_t kForAWhile = 12;  // calls

bool long_run() {
  const char* text = std::getenv("KVCACHEFS_LONG");
  return text != nullptr && std::string_view(text) == "1";
}

// Counts the calls of all lives of a volume and fails some of them.
struct Faults {
  uint64_t calls = 0, first = 0, last = 0;  // fails first..last; 0: none
  int sys_errno = EIO;
  uint64_t injected = 0;
  bool of_data = false;      // one hit a write or a sync: somebody must hear of it
  uint64_t calls_of_workload = 0;

  Fault operator()(const VolumeCall& call) {
    if (!call.mutates()) return {};
    ++calls;
    if (calls < first || calls > last) return {};
    ++injected;
    of_data |= call.kind == VolumeCall::Kind::kWrite || call.kind == VolumeCall::Kind::kSync;
    Fault fault{.sys_errno = sys_errno};
    if (call.kind == VolumeCall::Kind::kWrite && calls % 2 == 0) fault.write_only_bytes = 512;
    return fault;
  }
};

class InjectedErrors : public ::testing::TestWithParam<Durability> {
 protected:
  static void SetUpTestSuite() { log::set_level(tracing() ? log::Level::kInfo : log::Level::kOff); }
};

// Returns how many calls a life without faults makes; with `faults` set, judges one with them.
void live_with(Durability durability, uint64_t seed, Faults& faults) {
  SCOPED_TRACE(fmt::format("seed {}, calls {} to {} fail with {}", seed, faults.first, faults.last, faults.sys_errno));
  Rig rig(small_options(durability));
  rig.set_hook([&faults](const VolumeCall& call) { return faults(call); });
  Status mounted = rig.mount();
  for (int attempt = 0; !mounted && attempt < 20; ++attempt) {
    ASSERT_GT(faults.injected, 0u) << mounted.error().message;
    mounted = rig.mount();
  }
  ASSERT_TRUE(mounted) << mounted.error().message;
  const uint64_t injected_before = faults.injected;
  faults.of_data = false;  // the mount has said it
  Reference reference;
  Workload workload(rig, reference, seed);
  workload.expect_errors();
  workload.run(kOperations);
  for (int attempt = 0; faults.injected > injected_before && faults.calls <= faults.last && attempt < 100; ++attempt)
    rig.pass_time(6'500'000'000);  // until the fault goes
  rig.pass_time(6'500'000'000);
  const bool surfaced = workload.failures() > 0 || rig.errors() > 0;
  faults.calls_of_workload = faults.calls;
  EXPECT_TRUE(surfaced || !faults.of_data) << "a failed write or sync that nobody heard of";
  workload.look_again();
  for (const std::string& complaint : workload.complaints()) ADD_FAILURE() << complaint;
  if (faults.injected == 0) {
    EXPECT_FALSE(surfaced) << "errors without a fault";
    EXPECT_GT(reference.acknowledgements(), 0u);
  }
  for (const Code code : workload.failure_codes())
    EXPECT_TRUE(code == Code::kIo || code == Code::kNoSpace) << "a fault of the volume is told as " << code_name(code);

  // The fault is gone: all that the mount shows can be made durable, and survives.
  faults.first = faults.last = 0;
  const Status drained = rig.drain();
  ASSERT_TRUE(drained) << "the fault is gone: " << drained.error().message;
  reference.acknowledge_all(Crash::kPower);
  workload.check_live();
  const Status closed = rig.unmount();
  ASSERT_TRUE(closed) << closed.error().message;
  Rig again(rig.options(), rig.disk().cut_power({.seed = seed, .keep_probability = 0.3}));
  reboot(again.disk());
  again.clock().advance_ns(rig.clock().realtime_ns() - again.clock().realtime_ns() + 1'000'000'000);
  ASSERT_TRUE(again.mount());
  auto tree = again.tree();
  ASSERT_TRUE(tree) << tree.error().message;
  for (const std::string& problem : reference.judge(*tree, Crash::kPower)) ADD_FAILURE() << "afterwards: " << problem;
  EXPECT_TRUE(again.unmount());
}

TEST_P(InjectedErrors, FailCleanlyAndLoseNothing) {
  if (const char* one = std::getenv("KVCACHEFS_FAULT_CALL")) {  // "SEED FIRST LAST ERRNO" of a failure
    std::istringstream in(one);
    Faults faults;
    uint64_t seed = 0;
    ASSERT_TRUE(in >> seed >> faults.first >> faults.last >> faults.sys_errno) << one;
    return live_with(GetParam(), seed, faults);
  }
  size_t tried = 0;
  const size_t seeds = long_run() ? 5 : 2, points = long_run() ? SIZE_MAX : 40;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    Faults none;
    live_with(GetParam(), seed, none);
    const uint64_t step = std::max<uint64_t>(1, none.calls_of_workload / points);
    for (uint64_t call = 1 + seed % step; call <= none.calls_of_workload && !HasFailure(); call += step, ++tried) {
      Faults faults;
      faults.first = call;
      faults.last = call + (call / step % 2 == 0 ? 0 : kForAWhile);
      faults.sys_errno = call / step % 4 < 2 ? EIO : ENOSPC;
      live_with(GetParam(), seed, faults);
      EXPECT_GT(faults.injected, 0u);
    }
  }
  std::cout << tried << " faults\n";
}

INSTANTIATE_TEST_SUITE_P(Durability, InjectedErrors, ::testing::Values(Durability::kNone, Durability::kClose, Durability::kSync),
                         [](const auto& each) { return kDurabilityNames[static_cast<size_t>(each.param)]; });

}  // namespace injected_errors_test
}  // namespace kvcachefs::testing

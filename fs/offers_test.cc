#include "fs/offers.h"

#include <gtest/gtest.h>

namespace kvcachefs {
namespace offers_test {

constexpr LibraryVersion kOld{3, 17}, kMayHang{3, 18}, kGood{3, 19};

TEST(RingChoice, EveryOutcomeIsToldAndWhatWasAskedForIsMissed) {
  struct Case {
    Switch wanted;
    char parameter;
    LibraryVersion library;
    bool use, missed;
    const char* says;
  };
  for (const Case& each : {Case{Switch::kOff, 'Y', kGood, false, false, "io_uring=off"},
                           Case{Switch::kAuto, 'Y', kGood, true, false, "in use"},
                           Case{Switch::kAuto, 'N', kGood, false, false, "fuse.enable_uring=N"},
                           Case{Switch::kAuto, '-', kGood, false, false, "kernel"},
                           Case{Switch::kAuto, 'Y', kMayHang, false, true, "may hang"},
                           Case{Switch::kAuto, 'Y', kOld, false, false, "libfuse"},
                           Case{Switch::kOn, 'Y', kGood, true, false, "in use"},
                           Case{Switch::kOn, 'Y', kMayHang, true, false, "in use"},
                           Case{Switch::kOn, 'N', kMayHang, false, true, "fuse.enable_uring=N"},
                           Case{Switch::kOn, '-', kGood, false, true, "kernel"},
                           Case{Switch::kOn, 'Y', kOld, false, true, "libfuse"}}) {
    const RingChoice choice = choose_ring(each.wanted, each.parameter, each.library);
    EXPECT_EQ(choice.use, each.use) << choice.state;
    EXPECT_EQ(choice.missed, each.missed) << choice.state;
    EXPECT_NE(choice.state.find(each.says), std::string::npos) << choice.state << " does not say " << each.says;
  }
}

TEST(MayPassThrough, NotWhereTheDaemonIsToSeeEveryByte) {
  MountOptions options;
  options.passthrough = Switch::kOff;
  EXPECT_FALSE(may_pass_through(options));
  options.passthrough = Switch::kAuto;
  options.store.verify = Verify::kAlways;
  EXPECT_FALSE(may_pass_through(options));
}

}  // namespace offers_test
}  // namespace kvcachefs

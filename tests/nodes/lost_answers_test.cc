// A server that was started again may do a second time what it did, and tell that of the second time.
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "store/journal/journal.h"
#include "store/volume/testing/sim_client.h"

namespace kvcachefs::testing {
namespace lost_answers_test {

TEST(NodesLostAnswers, AnEpochThatIsCoveredGoesWhateverIsAnswered) {
  const auto server = std::make_shared<SimServer>();
  const auto machine = std::make_shared<SimClient>(server, "m");
  for (const char* path : {"nodes/n/1/journal", "nodes/n/1/checkpoint", "nodes/n/2/journal"}) ASSERT_TRUE(machine->make_directories(path));
  machine->set_before([&](const VolumeCall& call) {
    if (call.kind == VolumeCall::Kind::kRemoveDirectory || call.kind == VolumeCall::Kind::kRemoveFile) machine->repeat_next();
  });
  FileIdentity identity;
  identity.node = "n";
  identity.epoch = 2;
  CheckpointInfo keep;
  keep.epoch = 2;
  keep.seq = 1;
  keep.header.covers = {2, 0, 0};
  const Status removed = remove_covered(*machine, identity, {2, 0, 0}, keep);
  EXPECT_TRUE(removed) << removed.error().message;
  EXPECT_FALSE(server->disk().find("nodes/n/1"));
}

}  // namespace lost_answers_test
}  // namespace kvcachefs::testing

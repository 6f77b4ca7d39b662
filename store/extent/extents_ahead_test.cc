// Several threads that sync: a caller that needs a file's sync waits for the call that has it in hand, and gets its error.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "store/extent/extents.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace extents_ahead_test {

struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> held;     // paths of which a sync began, in order
  std::vector<std::string> released;
  bool stop = true;
  void pass(const std::string& path) {
    std::unique_lock lock(mutex);
    if (!stop) return;
    held.push_back(path);
    changed.notify_all();
    changed.wait(lock, [&] { return !stop || std::find(released.begin(), released.end(), path) != released.end(); });
  }
  std::string wait_held(size_t count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return held.size() >= count; });
    return held[count - 1];
  }
  void release(const std::string& path) {
    const std::lock_guard lock(mutex);
    released.push_back(path);
    changed.notify_all();
  }
  void open() {
    const std::lock_guard lock(mutex);
    stop = false;
    changed.notify_all();
  }
};

class SyncAhead : public ::testing::Test {
 protected:
  Gate gate_;
  std::atomic<int> no_descriptors_ = 0;
  std::atomic<bool> fail_ = false;
  Extents extents_{make_fault_volume(make_sim_volume(),
                                     [&](const VolumeCall& call) {
                                       if (call.kind == VolumeCall::Kind::kCreate && no_descriptors_ > 0) {
                                         --no_descriptors_;
                                         return Fault{.sys_errno = EMFILE};
                                       }
                                       if (call.kind != VolumeCall::Kind::kSync) return Fault{};
                                       gate_.pass(call.path);
                                       return Fault{.sys_errno = fail_ ? EIO : 0};
                                     }),
                   FileIdentity{.volume_uuid = {}, .node = "test", .epoch = 1}, 8};

  // Nobody has it open any more.
  ExtentId make() {
    auto made = extents_.make(PlaceKind::kPacked);
    EXPECT_TRUE(made) << made.error().message;
    return made ? made->id : ExtentId{};
  }
};

TEST_F(SyncAhead, OfTwoThreadsIsWaitedFor) {
  const ExtentId a = make(), b = make();
  std::thread keeper([&] { static_cast<void>(extents_.sync_ahead()); });
  const std::string first = gate_.wait_held(1);  // the keeper is in its fdatasync
  no_descriptors_ = 1;
  std::thread lane([&] { make(); });  // out of descriptors: it syncs the other one
  const std::string second = gate_.wait_held(2);
  ASSERT_NE(first, second);
  const ExtentId id = first == extents_.path(a, PlaceKind::kPacked) ? a : b;
  auto asked = std::async(std::launch::async, [&] { return extents_.sync({id}).has_value(); });
  auto all = std::async(std::launch::async, [&] { return extents_.sync_all().has_value(); });
  EXPECT_EQ(asked.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout)
      << "sync() answered while the fdatasync of its file is still under way";
  gate_.release(second);
  lane.join();
  EXPECT_EQ(asked.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout) << "the other one's end is not its";
  EXPECT_EQ(all.wait_for(std::chrono::milliseconds(1)), std::future_status::timeout)
      << "sync_all() answered while an fdatasync is still under way";
  gate_.open();
  keeper.join();
  EXPECT_TRUE(asked.get());
  EXPECT_TRUE(all.get());
}

TEST_F(SyncAhead, ForADescriptorEndsWithTheFirstAndTheNextSyncTellsItsError) {
  for (const bool ahead : {false, true}) {
    gate_.open();
    const size_t lost_before = extents_.lost().size();
    for (int i = 0; i < 3; ++i) make();
    fail_ = true;
    no_descriptors_ = 1;
    make();
    fail_ = false;
    EXPECT_EQ(extents_.lost().size(), lost_before + 1) << "one is enough";
    EXPECT_FALSE(ahead ? extents_.sync_ahead() : extents_.sync_all()) << "nobody was told of it yet";
    EXPECT_TRUE(ahead ? extents_.sync_ahead() : extents_.sync_all()) << "once";
  }
}

}  // namespace extents_ahead_test
}  // namespace kvcachefs

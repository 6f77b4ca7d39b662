// Faults ordered by a hook, on a simulated volume and on a real one.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <thread>

#include "store/base/bytes.h"
#include "store/volume/fault_volume.h"
#include "store/volume/test_directory.h"

namespace kvcachefs {
namespace fault_volume_test {

using Kind = VolumeCall::Kind;
using test::AlignedBuffer;

// Records every call; makes the fault of the call with the given number.
struct Script {
  std::mutex mutex;
  std::vector<VolumeCall> calls;
  std::function<Fault(const VolumeCall&)> rule = [](const VolumeCall&) { return Fault{}; };

  FaultHook hook() {
    return [this](const VolumeCall& call) {
      const std::lock_guard lock(mutex);
      calls.push_back(call);
      return rule(call);
    };
  }
  std::vector<Kind> kinds() {
    const std::lock_guard lock(mutex);
    std::vector<Kind> found;
    for (const auto& call : calls) found.push_back(call.kind);
    return found;
  }
};

Status write(File& file, std::string_view text, uint64_t offset = 0) {
  const std::span<const std::byte> pieces[] = {as_bytes(text)};
  return file.write(pieces, offset);
}
std::string text_of(Volume& volume, const std::string& path) {
  return std::string(as_text(read_file(volume, path, kMiB).value()));
}

TEST(FaultVolume, SeesEveryCallInOrder) {
  Script script;
  const auto volume = make_fault_volume(make_sim_volume(), script.hook());
  ASSERT_TRUE(volume->make_directory("d"));
  {
    const FilePtr file = volume->open("d/f", {.create_exclusive = true}).value();
    ASSERT_TRUE(write(*file, "hello", 7));
    ASSERT_TRUE(file->sync_data());
    ASSERT_TRUE(file->truncate(9));
    ASSERT_TRUE(file->allocate(0, 100));
    ASSERT_TRUE(file->punch(0, 4096));
    std::byte byte{};
    ASSERT_TRUE(file->read({&byte, 1}, 8));
  }
  ASSERT_TRUE(volume->open("d/f", {}));
  ASSERT_TRUE(volume->rename("d/f", "d/g"));
  ASSERT_TRUE(volume->sync_directory("d"));
  ASSERT_TRUE(volume->list("d"));
  ASSERT_TRUE(volume->remove_file("d/g"));
  ASSERT_TRUE(volume->remove_directory("d"));
  ASSERT_TRUE(volume->lock("LOCK"));
  EXPECT_EQ(script.kinds(),
            (std::vector{Kind::kMakeDirectory, Kind::kCreate, Kind::kWrite, Kind::kSync, Kind::kTruncate,
                         Kind::kAllocate, Kind::kPunch, Kind::kRead, Kind::kOpen, Kind::kRename, Kind::kSyncDirectory,
                         Kind::kList, Kind::kRemoveFile, Kind::kRemoveDirectory, Kind::kLock}));
  uint64_t number = 0;
  for (const auto& call : script.calls)
    EXPECT_EQ(call.number, call.mutates() ? ++number : 0) << call_kind_name(call.kind);
  EXPECT_EQ(number, 11u);
  EXPECT_EQ(script.calls[2].path, "d/f");
  EXPECT_EQ(script.calls[2].offset, 7u);
  EXPECT_EQ(script.calls[2].length, 5u);
}

TEST(FaultVolume, AnyCallCanFailAndThenHasNotHappened) {
  Script script;
  const auto sim = make_sim_volume();
  const auto volume = make_fault_volume(sim, script.hook());
  const FilePtr file = volume->open("f", {.create_exclusive = true}).value();
  ASSERT_TRUE(write(*file, "before"));
  script.rule = [](const VolumeCall& call) { return Fault{.sys_errno = call.kind == Kind::kWrite ? ENOSPC : EIO}; };
  const auto failed = write(*file, "after!");
  EXPECT_EQ(failed.error().code, Code::kNoSpace);
  EXPECT_NE(failed.error().message.find("f: injected failure of write"), std::string::npos) << failed.error().message;
  EXPECT_EQ(file->sync_data().error().sys_errno, EIO);
  EXPECT_EQ(file->truncate(0).error().sys_errno, EIO);
  EXPECT_EQ(volume->open("f", {}).error().sys_errno, EIO);
  EXPECT_EQ(volume->open("g", {.create_exclusive = true}).error().sys_errno, EIO);
  EXPECT_EQ(volume->remove_file("f").error().sys_errno, EIO);
  EXPECT_EQ(volume->rename("f", "g").error().sys_errno, EIO);
  EXPECT_EQ(volume->make_directories("a/b").error().sys_errno, EIO);
  EXPECT_EQ(volume->sync_directory("").error().sys_errno, EIO);
  EXPECT_EQ(volume->lock("f").error().sys_errno, EIO);
  EXPECT_EQ(sim->all_files(), std::vector<std::string>{"f"});
  EXPECT_EQ(text_of(*sim, "f"), "before");
}

TEST(FaultVolume, TornWrites) {
  Script script;
  const auto sim = make_sim_volume();
  const auto volume = make_fault_volume(sim, script.hook());
  const FilePtr file = volume->open("f", {.create_exclusive = true}).value();
  const FilePtr direct = volume->open("direct", {.create_exclusive = true, .direct = true}).value();
  script.rule = [](const VolumeCall& call) {
    return Fault{.sys_errno = call.path == "f" ? ENOSPC : 0, .write_only_bytes = 5000};
  };
  std::string text(6000, 'x');
  EXPECT_EQ(write(*file, text).error().sys_errno, ENOSPC);
  EXPECT_EQ(sim->info("f")->size_bytes, 5000u);
  const AlignedBuffer data(3 * kBlockBytes, 1);
  const std::span<const std::byte> pieces[] = {data.span(0, kBlockBytes), data.span(kBlockBytes, 2 * kBlockBytes)};
  EXPECT_EQ(direct->write(pieces, 0).error().sys_errno, EIO);
  EXPECT_EQ(sim->info("direct")->size_bytes, kBlockBytes);  // rounded down
  script.rule = [](const VolumeCall&) { return Fault{.write_only_bytes = 0}; };
  EXPECT_FALSE(write(*file, "y"));
  EXPECT_EQ(text_of(*sim, "f"), std::string(5000, 'x'));
}

TEST(FaultVolume, DelaysTheCallNotTheClockOfOthers) {
  Script script;
  const auto volume = make_fault_volume(make_sim_volume(), script.hook());
  const FilePtr file = volume->open("f", {.create_exclusive = true}).value();
  script.rule = [](const VolumeCall&) { return Fault{.delay_ns = 5'000'000}; };
  const auto before = std::chrono::steady_clock::now();
  ASSERT_TRUE(write(*file, "x"));
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(5));  // at least: it cannot be early
}

class FaultEngineTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    auto opened = open_posix_volume(directory_.path(), {.io_uring = GetParam()});
    ASSERT_TRUE(opened) << opened.error().message;
    volume_ = make_fault_volume(*opened, script_.hook());
  }
  static IoRequest request(IoRequest::Kind kind, FilePtr file, std::span<std::byte> piece) {
    IoRequest made;
    made.kind = kind;
    made.file = std::move(file);
    made.pieces = {piece};
    return made;
  }
  Status run_one(IoRequest one) {
    std::vector<IoRequest> requests;
    requests.push_back(std::move(one));
    return run_all(*volume_, std::move(requests));
  }
  test::TestDirectory directory_;
  Script script_;
  std::shared_ptr<Volume> volume_;
};

TEST_P(FaultEngineTest, SubmittedRequestsFailOnTheEngine) {
  const FilePtr file = volume_->open("f", {.create_exclusive = true}).value();
  const AlignedBuffer data(1000, 1);
  ASSERT_TRUE(run_one(request(IoRequest::Kind::kWrite, file, data.span())));
  script_.rule = [](const VolumeCall&) { return Fault{.sys_errno = EIO}; };
  EXPECT_EQ(run_one(request(IoRequest::Kind::kWrite, file, data.span())).error().sys_errno, EIO);
  // With a lock held that `done` takes: it must not run inside submit.
  std::mutex mutex;
  std::atomic<bool> failed = false;
  std::vector<IoRequest> requests;
  requests.push_back(request(IoRequest::Kind::kRead, file, data.span()));
  requests.back().done = [&](Result<size_t> result) {
    const std::lock_guard lock(mutex);
    failed = !result.has_value();
  };
  {
    const std::lock_guard lock(mutex);
    volume_->submit(std::move(requests));
  }
  volume_->drain();
  EXPECT_TRUE(failed);
  script_.rule = [](const VolumeCall&) { return Fault{.write_only_bytes = 10}; };
  ASSERT_TRUE(file->info());
  const FilePtr other = volume_->open("g", {.create_exclusive = true}).value();
  EXPECT_EQ(run_one(request(IoRequest::Kind::kWrite, other, data.span())).error().sys_errno, EIO);
  EXPECT_EQ(other->info()->size_bytes, 10u);
}

TEST_P(FaultEngineTest, DelayedRequestsDoNotBlockTheSubmitterAndAreDrained) {
  const FilePtr file = volume_->open("f", {.create_exclusive = true}).value();
  const AlignedBuffer data(1000, 1);
  script_.rule = [](const VolumeCall& call) { return Fault{.delay_ns = call.offset == 0 ? 20'000'000 : 0}; };
  std::vector<int> order;
  std::mutex mutex;
  std::vector<IoRequest> requests;
  for (int i = 0; i < 2; ++i) {
    requests.push_back(request(IoRequest::Kind::kWrite, file, data.span()));
    requests.back().offset = static_cast<uint64_t>(i) * 1000;
    requests.back().done = [&, i](const Result<size_t>&) {
      const std::lock_guard lock(mutex);
      order.push_back(i);
    };
  }
  volume_->submit(std::move(requests));
  volume_->drain();
  EXPECT_EQ(order.size(), 2u);
  EXPECT_EQ(file->info()->size_bytes, 2000u);
  // Requests that are still delayed when the volume goes are done first.
  bool last = false;
  requests.clear();
  requests.push_back(request(IoRequest::Kind::kWrite, file, data.span()));
  requests.back().done = [&](Result<size_t> result) { last = result.has_value(); };
  script_.rule = [](const VolumeCall&) { return Fault{.delay_ns = 3'600'000'000'000}; };
  volume_->submit(std::move(requests));
  volume_.reset();
  EXPECT_TRUE(last);
}

INSTANTIATE_TEST_SUITE_P(Engines, FaultEngineTest, ::testing::Bool(),
                         [](const auto& instance) { return instance.param ? "Uring" : "Threads"; });

}  // namespace fault_volume_test
}  // namespace kvcachefs

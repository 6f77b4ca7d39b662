// Both engines under the same tests.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <latch>
#include <random>
#include <thread>

#include "store/base/bytes.h"
#include "store/volume/io_engine.h"
#include "store/volume/test_directory.h"
#include "store/volume/volume.h"

namespace kvcachefs {
namespace volume_engine_test {

using test::AlignedBuffer;
using test::TestDirectory;
using test::write_file_atomically;
using Kind = IoRequest::Kind;

struct EngineCase {
  const char* name;
  bool io_uring;
  bool direct;
  unsigned queue_depth;
  unsigned threads;
};

class VolumeEngineTest : public ::testing::TestWithParam<EngineCase> {
 protected:
  void SetUp() override {
    ASSERT_FALSE(directory_.path().empty());
    const EngineCase& param = GetParam();
    auto opened = open_posix_volume(
        directory_.path(), {.io_uring = param.io_uring, .queue_depth = param.queue_depth, .threads = param.threads});
    ASSERT_TRUE(opened) << opened.error().message;
    volume_ = *opened;
    if (param.io_uring && !volume_->features().io_uring) GTEST_SKIP() << "no io_uring here";
    EXPECT_EQ(volume_->features().io_uring, param.io_uring);
  }
  FilePtr create(const std::string& path) {
    auto file = volume_->open(path, {.create_exclusive = true, .direct = GetParam().direct});
    EXPECT_TRUE(file) << file.error().message;
    return file ? *file : nullptr;
  }
  static IoRequest request(Kind kind, FilePtr file, uint64_t offset, std::span<std::byte> piece, bool urgent = true) {
    IoRequest made;
    made.kind = kind;
    made.file = std::move(file);
    made.offset = offset;
    made.pieces = {piece};
    made.urgent = urgent;
    return made;
  }
  Status run_one(IoRequest one) {
    std::vector<IoRequest> requests;
    requests.push_back(std::move(one));
    return run_all(*volume_, std::move(requests));
  }

  TestDirectory directory_;
  std::shared_ptr<Volume> volume_;
};

TEST_P(VolumeEngineTest, ManyRequestsFromManyThreads) {
  constexpr size_t kThreads = 4;
  constexpr size_t kRequests = 150;  // well over the queue depth
  constexpr size_t kBytes = 2 * kBlockBytes;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      const FilePtr file = create("file" + std::to_string(t));
      const AlignedBuffer data(kRequests * kBytes, t + 1);
      const AlignedBuffer back(kRequests * kBytes);
      std::vector<IoRequest> writes;
      std::vector<IoRequest> reads;
      for (size_t i = 0; i < kRequests; ++i) {
        writes.push_back(request(Kind::kWrite, file, i * kBytes, data.span(i * kBytes, kBytes), i % 3 != 0));
        reads.push_back(request(Kind::kRead, file, i * kBytes, back.span(i * kBytes, kBytes), i % 2 != 0));
      }
      std::shuffle(writes.begin(), writes.end(), std::minstd_rand(t));
      const auto written = run_all(*volume_, std::move(writes));
      EXPECT_TRUE(written) << written.error().message;
      const auto read = run_all(*volume_, std::move(reads));
      EXPECT_TRUE(read) << read.error().message;
      EXPECT_TRUE(std::ranges::equal(data.span(), back.span()));
    });
  for (auto& thread : threads) thread.join();
}

TEST_P(VolumeEngineTest, LargeScatteredAndPastTheEnd) {
  constexpr size_t kBytes = 9 * kMiB;
  const FilePtr file = create("f");
  const AlignedBuffer data(kBytes, 9);
  IoRequest write = request(Kind::kWrite, file, kBlockBytes, {});
  for (size_t at = 0; at < kBytes; at += kBlockBytes) write.pieces.push_back(data.span(at, kBlockBytes));  // > IOV_MAX
  ASSERT_GT(write.pieces.size(), 2048u);
  ASSERT_TRUE(run_one(std::move(write)));
  const AlignedBuffer back(kBytes + 8 * kBlockBytes, 1);
  std::atomic<size_t> got = 0;
  IoRequest read = request(Kind::kRead, file, kBlockBytes, back.span(0, kMiB));
  read.pieces.push_back(back.span(kMiB, back.span().size() - kMiB));
  read.done = [&](Result<size_t> result) { got = result.value(); };
  std::vector<IoRequest> reads;
  reads.push_back(std::move(read));
  volume_->submit(std::move(reads));
  volume_->drain();
  EXPECT_EQ(got, kBytes);
  EXPECT_TRUE(std::ranges::equal(back.span(0, kBytes), data.span()));
}

TEST_P(VolumeEngineTest, EndsAtAnUnalignedEnd) {
  const FilePtr file = create("f");
  const AlignedBuffer data(3 * kBlockBytes, 4);
  ASSERT_TRUE(run_one(request(Kind::kWrite, file, 0, data.span())));
  ASSERT_TRUE(file->truncate(2 * kBlockBytes + 77));
  const AlignedBuffer back(5 * kBlockBytes);
  std::vector<IoRequest> reads;
  std::array<size_t, 3> got{};
  for (size_t i = 0; i < got.size(); ++i) {
    reads.push_back(request(Kind::kRead, file, i == 2 ? 4 * kBlockBytes : 0, back.span(i * kBlockBytes, kBlockBytes)));
    if (i == 1) reads.back().pieces.push_back(back.span(3 * kBlockBytes, 2 * kBlockBytes));
    reads.back().done = [&got, i](Result<size_t> result) { got[i] = result.value(); };
  }
  volume_->submit(std::move(reads));
  volume_->drain();
  EXPECT_EQ(got[0], kBlockBytes);
  EXPECT_EQ(got[1], 2 * kBlockBytes + 77);
  EXPECT_EQ(got[2], 0u);
}

TEST_P(VolumeEngineTest, EmptyRequestsAndErrors) {
  const FilePtr file = create("f");
  volume_->submit({});
  EXPECT_TRUE(run_all(*volume_, {}));
  EXPECT_TRUE(run_one(request(Kind::kRead, file, 0, {})));
  const AlignedBuffer data(kBlockBytes, 1);
  const FilePtr read_only = volume_->open("f", {.direct = GetParam().direct}).value();
  std::vector<IoRequest> mixed;
  mixed.push_back(request(Kind::kWrite, file, 0, data.span()));
  mixed.push_back(request(Kind::kWrite, read_only, 0, data.span()));
  const auto result = run_all(*volume_, std::move(mixed));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().sys_errno, EBADF);
  EXPECT_NE(result.error().message.find("f: write of 4096 bytes at 0"), std::string::npos) << result.error().message;
  EXPECT_EQ(file->info()->size_bytes, kBlockBytes);  // the other one ran to its end
  EXPECT_EQ(run_one(request(Kind::kWrite, file, ~uint64_t{0} - 4095, data.span())).error().code, Code::kTooBig);
  if (file->is_direct()) {
    EXPECT_EQ(run_one(request(Kind::kWrite, file, 100, data.span())).error().code, Code::kInvalid);
  }
}

TEST_P(VolumeEngineTest, DoneMaySubmitMore) {
  const FilePtr file = create("f");
  const AlignedBuffer data(kBlockBytes, 6);
  constexpr int kRounds = 200;
  std::atomic<int> rounds = 0;
  std::latch finished(1);
  std::function<void()> next = [&] {
    std::vector<IoRequest> requests;
    // Every other one is empty, so that it ends without the kernel.
    const size_t bytes = rounds % 2 == 0 ? kBlockBytes : 0;
    requests.push_back(request(Kind::kWrite, file, static_cast<uint64_t>(rounds) * kBlockBytes, data.span(0, bytes)));
    requests.back().done = [&](Result<size_t> result) {
      EXPECT_TRUE(result);
      if (++rounds < kRounds)
        next();
      else
        finished.count_down();
    };
    volume_->submit(std::move(requests));
  };
  next();
  finished.wait();
  volume_->drain();
  EXPECT_EQ(file->info()->size_bytes, (kRounds - 1) * kBlockBytes);
}

TEST_P(VolumeEngineTest, DestructionWaitsForRequests) {
  const AlignedBuffer data(kBlockBytes, 6);
  std::atomic<size_t> finished = 0;
  std::vector<IoRequest> requests;
  const FilePtr file = create("f");
  for (uint64_t i = 0; i < 100; ++i) {
    requests.push_back(request(Kind::kWrite, file, i * kBlockBytes, data.span(), i % 2 == 0));
    requests.back().done = [&](Result<size_t> result) { finished += result.has_value() ? 1 : 0; };
  }
  volume_->submit(std::move(requests));
  volume_.reset();
  EXPECT_EQ(finished, 100u);
}

TEST_P(VolumeEngineTest, BackgroundFinishesUnderDemand) {
  const FilePtr file = create("f");
  const AlignedBuffer data(kBlockBytes, 6);
  ASSERT_TRUE(run_one(request(Kind::kWrite, file, 0, data.span())));
  std::atomic<bool> background_done = false;
  // So many readers that each ask again at once keep more than a few urgent requests in flight all the time.
  constexpr size_t kReaders = 8;
  const AlignedBuffer background(kBlockBytes);
  const AlignedBuffer demand(kReaders * kBlockBytes);
  std::latch readers_done(kReaders);
  std::function<void(size_t)> ask = [&](size_t reader) {
    std::vector<IoRequest> requests;
    requests.push_back(request(Kind::kRead, file, 0, demand.span(reader * kBlockBytes, kBlockBytes)));
    requests.back().done = [&, reader](const Result<size_t>&) {
      background_done ? readers_done.count_down() : ask(reader);
    };
    volume_->submit(std::move(requests));
  };
  for (size_t reader = 0; reader < kReaders; ++reader) ask(reader);
  const auto status = run_one(request(Kind::kRead, file, 0, background.span(), false));
  background_done = true;
  EXPECT_TRUE(status);
  readers_done.wait();
  volume_->drain();  // `ask` is in use until the last `done` has returned
  EXPECT_TRUE(std::ranges::equal(background.span(), data.span()));
}

// Background reads beyond the limit of bytes: all are done, also where some fail before they start or are empty.
TEST_P(VolumeEngineTest, BackgroundReadsBeyondTheirBytes) {
  constexpr size_t kBytes = 4 * kBlockBytes;
  constexpr size_t kRequests = 300;
  constexpr uint64_t kLimit = 4 * kBytes;
  std::unique_ptr<IoEngine> engine;
  if (GetParam().io_uring)
    engine = make_uring_engine(GetParam().queue_depth, kLimit).value();
  else
    engine = make_posix_engine(GetParam().threads, kLimit).value();
  const FilePtr file = create("f");
  const AlignedBuffer data(kRequests * kBytes, 3), back(kRequests * kBytes);
  ASSERT_TRUE(run_one(request(Kind::kWrite, file, 0, data.span())));
  std::atomic<size_t> whole = 0, empty = 0, refused = 0;
  std::vector<IoRequest> reads;
  for (size_t i = 0; i < kRequests; ++i) {
    IoRequest read = request(Kind::kRead, file, i * kBytes, back.span(i * kBytes, kBytes), false);
    if (i % 5 == 1) read.pieces.clear();
    if (i % 5 == 2) read.offset = ~uint64_t{0} - 1;  // of no file
    read.done = [&](Result<size_t> result) {
      if (!result) ++refused;
      else ++(*result == kBytes ? whole : empty);
    };
    reads.push_back(std::move(read));
  }
  engine->submit(std::move(reads));
  engine->drain();
  EXPECT_EQ(whole, kRequests * 3 / 5);
  EXPECT_EQ(empty, kRequests / 5);
  EXPECT_EQ(refused, kRequests / 5);
}

// Makes io_uring_setup fail on this thread and the threads it starts, as container runtimes do.
bool forbid_io_uring() {
  std::array<sock_filter, 4> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  sock_fprog filter = {.len = static_cast<unsigned short>(program.size()), .filter = program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(VolumeFallback, ThreadsWhereIoUringIsForbidden) {
  const TestDirectory directory;
  bool forbidden = false;
  std::thread confined([&] {
    forbidden = forbid_io_uring();
    const auto engine = make_uring_engine(8);
    ASSERT_FALSE(engine);
    EXPECT_EQ(engine.error().code, Code::kUnsupported);
    const auto volume = open_posix_volume(directory.path(), {.io_uring = true});
    ASSERT_TRUE(volume) << volume.error().message;
    EXPECT_FALSE((*volume)->features().io_uring);
    EXPECT_TRUE(write_file_atomically(**volume, "f", as_bytes("works")));
    std::vector<IoRequest> requests(1);
    std::array<std::byte, 5> back{};
    requests[0].file = (*volume)->open("f", {}).value();
    requests[0].pieces = {std::span(back)};
    EXPECT_TRUE(run_all(**volume, std::move(requests)));
    EXPECT_EQ(as_text(back), "works");
  });
  confined.join();
  EXPECT_TRUE(forbidden);
}

INSTANTIATE_TEST_SUITE_P(
    Engines, VolumeEngineTest,
    ::testing::Values(EngineCase{"Threads", false, false, 64, 4}, EngineCase{"ThreadsDirect", false, true, 64, 4},
                      EngineCase{"OneThread", false, false, 64, 1}, EngineCase{"Uring", true, false, 64, 4},
                      EngineCase{"UringDirect", true, true, 64, 4}, EngineCase{"UringShallow", true, true, 1, 4}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace volume_engine_test
}  // namespace kvcachefs

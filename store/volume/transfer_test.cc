// Short transfers, as kernels and servers make them.
#include "store/base/unique_fd.h"
#include "store/volume/transfer.h"

#include <fcntl.h>
#include <limits.h>

#include <gtest/gtest.h>

#include <array>
#include <cerrno>

#include "store/base/units.h"
#include "store/volume/test_directory.h"

namespace kvcachefs {
namespace transfer_test {

using Kind = IoRequest::Kind;
using test::AlignedBuffer;

class TransferTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fd_ = UniqueFd(::open((directory_.path() + "/f").c_str(), O_RDWR | O_CREAT, 0600));
    ASSERT_TRUE(fd_.valid());
    ASSERT_EQ(::ftruncate(fd_.get(), 100'000), 0);
  }
  Transfer make(Kind kind, bool direct, uint64_t offset) { return Transfer(kind, fd_.get(), path_, direct, offset); }

  test::TestDirectory directory_;
  UniqueFd fd_;
  const std::string path_ = "f";
  const AlignedBuffer memory_{64 * kKiB};
};

TEST_F(TransferTest, GoesOnWhereItStopped) {
  Transfer transfer = make(Kind::kWrite, false, 1000);
  transfer.add(memory_.span().data(), 300);
  transfer.add(memory_.span().data() + 4096, 500);
  ASSERT_TRUE(transfer.check());
  EXPECT_EQ(transfer.pending().size(), 2u);
  ASSERT_TRUE(transfer.advance(100));
  EXPECT_EQ(transfer.pending_offset(), 1100u);
  ASSERT_EQ(transfer.pending().size(), 2u);
  EXPECT_EQ(transfer.pending()[0].iov_base, memory_.span().data() + 100);
  EXPECT_EQ(transfer.pending()[0].iov_len, 200u);
  ASSERT_TRUE(transfer.advance(250));
  ASSERT_EQ(transfer.pending().size(), 1u);
  EXPECT_EQ(transfer.pending()[0].iov_base, memory_.span().data() + 4096 + 50);
  EXPECT_FALSE(transfer.complete());
  ASSERT_TRUE(transfer.advance(450));
  EXPECT_TRUE(transfer.complete());
  EXPECT_EQ(transfer.transferred(), 800u);
}

TEST_F(TransferTest, DirectOnesGoOnAtABlock) {
  Transfer transfer = make(Kind::kRead, true, kBlockBytes);
  transfer.add(memory_.span().data(), 4 * kBlockBytes);
  ASSERT_TRUE(transfer.check());
  ASSERT_TRUE(transfer.advance(kBlockBytes + 1000));  // not the end of the file
  EXPECT_FALSE(transfer.complete());
  EXPECT_EQ(transfer.transferred(), kBlockBytes + 1000);
  EXPECT_EQ(transfer.pending_offset(), 2 * kBlockBytes);
  EXPECT_EQ(transfer.pending()[0].iov_base, memory_.span().data() + kBlockBytes);
  ASSERT_TRUE(transfer.advance(3 * kBlockBytes));
  EXPECT_TRUE(transfer.complete());
  EXPECT_EQ(transfer.transferred(), 4 * kBlockBytes);
}

TEST_F(TransferTest, AReadEndsWithTheFile) {
  Transfer transfer = make(Kind::kRead, false, 99'000);
  transfer.add(memory_.span().data(), 5000);
  ASSERT_TRUE(transfer.advance(400));
  EXPECT_FALSE(transfer.complete());
  ASSERT_TRUE(transfer.advance(600));
  EXPECT_TRUE(transfer.complete());
  EXPECT_EQ(transfer.transferred(), 1000u);
}

TEST_F(TransferTest, NoProgressEndsAReadAndFailsAWrite) {
  Transfer read = make(Kind::kRead, true, 0);
  read.add(memory_.span().data(), 4 * kBlockBytes);
  ASSERT_TRUE(read.advance(1000));
  EXPECT_FALSE(read.complete());
  ASSERT_TRUE(read.advance(1000));  // the same block again, no further
  EXPECT_TRUE(read.complete());
  EXPECT_EQ(read.transferred(), 1000u);
  Transfer write = make(Kind::kWrite, false, 0);
  write.add(memory_.span().data(), 10);
  const auto stuck = write.advance(0);
  ASSERT_FALSE(stuck);
  EXPECT_EQ(stuck.error().sys_errno, EIO);
}

TEST_F(TransferTest, OneCallTakesIovMaxPieces) {
  Transfer transfer = make(Kind::kWrite, false, 0);
  constexpr size_t kPieces = IOV_MAX + 10;
  for (size_t i = 0; i < kPieces; ++i) transfer.add(memory_.span().data() + i, 2);
  EXPECT_EQ(transfer.pending().size(), size_t{IOV_MAX});
  ASSERT_TRUE(transfer.advance(2 * IOV_MAX));
  EXPECT_EQ(transfer.pending().size(), 10u);
  ASSERT_TRUE(transfer.advance(20));
  EXPECT_TRUE(transfer.complete());
}

TEST_F(TransferTest, ChecksBeforeItStarts) {
  EXPECT_EQ(Transfer(Kind::kRead, -1, path_, false, 0).check().error().code, Code::kInvalid);
  Transfer far = make(Kind::kRead, false, uint64_t{1} << 63);
  EXPECT_EQ(far.check().error().code, Code::kTooBig);
  Transfer crooked = make(Kind::kRead, true, 0);
  crooked.add(memory_.span().data() + 1, kBlockBytes);
  EXPECT_EQ(crooked.check().error().code, Code::kInvalid);
}

}  // namespace transfer_test
}  // namespace kvcachefs

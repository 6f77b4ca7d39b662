#include "store/base/log_writer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "store/base/log.h"

namespace kvcachefs::log {
namespace log_writer_test {

const std::chrono::system_clock::time_point kNow;
constexpr auto kLong = std::chrono::hours(1);

TEST(LogWriter, WritesAllInOrder) {
  std::vector<std::string> written;
  Writer writer(1000, [&](const Writer::Line& line) { written.push_back(line.text); });
  ASSERT_TRUE(writer.start());
  std::vector<std::string> all;
  for (int i = 0; i < 500; ++i) {
    all.push_back(std::to_string(i));
    writer.add(kNow, 0, all.back());
  }
  EXPECT_TRUE(writer.flush(kLong));
  EXPECT_EQ(written, all);
}

TEST(Log, APipeThatNobodyReadsIsNoLogFile) {
  const std::string path = testing::TempDir() + "/log-" + std::to_string(::getpid()) + ".fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const Status status = log::to_file(path, 1 << 20, 1);  // opening it would wait for a reader
  ::unlink(path.c_str());
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("a pipe that nobody reads"), std::string::npos) << status.error().message;
}

TEST(LogWriter, ItsEndWritesWhatWaits) {
  std::vector<std::string> written;
  {
    Writer writer(10, [&](const Writer::Line& line) { written.push_back(line.text); });
    ASSERT_TRUE(writer.start());
    writer.add(kNow, 0, "a");
    writer.add(kNow, 0, "b");
  }
  EXPECT_EQ(written, (std::vector<std::string>{"a", "b"}));
}

// The log takes nothing for a while: no caller waits, the newest lines stay, and the first of these tells how many went.
TEST(LogWriter, BeyondItsBoundTheOldestGo) {
  constexpr size_t kMost = 4;
  std::promise<void> begun, goes_on;
  std::vector<std::pair<std::string, uint64_t>> written;
  Writer writer(kMost, [&](const Writer::Line& line) {
    if (line.text == "stalls") {
      begun.set_value();
      goes_on.get_future().wait();
    }
    written.emplace_back(line.text, line.dropped);
  });
  ASSERT_TRUE(writer.start());
  writer.add(kNow, 0, "stalls");
  begun.get_future().wait();
  for (int i = 0; i < 10; ++i) writer.add(kNow, 0, std::to_string(i));
  EXPECT_FALSE(writer.flush(std::chrono::milliseconds(1)));
  goes_on.set_value();
  EXPECT_TRUE(writer.flush(kLong));
  EXPECT_EQ(written, (std::vector<std::pair<std::string, uint64_t>>{{"stalls", 0}, {"6", 6}, {"7", 0}, {"8", 0}, {"9", 0}}));
}

}  // namespace log_writer_test
}  // namespace kvcachefs::log

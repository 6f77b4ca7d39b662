#include "fs/control_texts.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvcachefs {
namespace control_texts_test {

TEST(ControlTexts, EachOpenFileHasItsOwnMoment) {
  ControlTexts texts;
  const uint64_t first = texts.open("first"), second = texts.open("second");
  EXPECT_NE(first, second);
  EXPECT_EQ(texts.read(first, 0, 100), "first");
  EXPECT_EQ(texts.read(second, 3, 2), "on");
  EXPECT_EQ(texts.read(second, 6, 10), "");
  EXPECT_EQ(texts.read(second, SIZE_MAX, 10), "");
  texts.close(first);
  EXPECT_EQ(texts.read(first, 0, 100), std::nullopt);
  texts.close(first);
  EXPECT_EQ(texts.read(second, 0, 100), "second");
  texts.close(second);
  EXPECT_EQ(texts.bytes(), 0u);
}

TEST(ControlTexts, TheOldestGoWhereThereAreTooMany) {
  constexpr size_t kMost = 100'000, kEach = 30'000;
  ControlTexts texts(kMost);
  std::vector<uint64_t> files;
  for (int i = 0; i < 1000; ++i) {
    files.push_back(texts.open(std::string(kEach, static_cast<char>('a' + i % 26))));
    EXPECT_LE(texts.bytes(), kMost);
    EXPECT_TRUE(texts.read(files.back(), 0, 1)) << "who opens one now can read it";
  }
  EXPECT_EQ(texts.read(files.front(), 0, 1), std::nullopt);
  texts.renew(files.front(), "anew");
  EXPECT_EQ(texts.read(files.front(), 0, 10), "anew");
  texts.renew(files.front(), "once more");
  EXPECT_EQ(texts.read(files.front(), 0, 10), "anew") << "of one moment";
  for (const uint64_t file : files) texts.close(file);
  EXPECT_EQ(texts.bytes(), 0u);
}

TEST(ControlTexts, OneThatIsLargerThanAllMayBeIsKeptAlone) {
  ControlTexts texts(1000);
  const uint64_t small = texts.open("small"), large = texts.open(std::string(5000, 'x'));
  EXPECT_EQ(texts.read(small, 0, 1), std::nullopt);
  EXPECT_EQ(texts.read(large, 4999, 10), "x");
  EXPECT_TRUE(texts.read(texts.open("next"), 0, 1));
  EXPECT_EQ(texts.read(large, 0, 1), std::nullopt);
}

}  // namespace control_texts_test
}  // namespace kvcachefs

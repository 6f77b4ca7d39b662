#include "fs/errno_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "store/base/log.h"

namespace kvcachefs {
namespace errno_map_test {

bool is_logged(const std::string& text) {
  const auto lines = log::recent();
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) { return line.contains(text); });
}

TEST(ErrnoMap, TheReasonForAnIoErrorIsLogged) {
  for (const Code code : {Code::kIo, Code::kCorrupt, Code::kVersion, Code::kCanceled}) {
    const std::string why = "object 7: the reason named " + std::string(code_name(code));
    EXPECT_EQ(errno_to_answer({code, 0, why}), EIO);
    EXPECT_TRUE(is_logged(why)) << why;
  }
}

TEST(ErrnoMap, AnErrnoThatTellsItsReasonIsNotLogged) {
  EXPECT_EQ(errno_to_answer({Code::kNoSpace, 0, "object 8 does not fit"}), ENOSPC);
  EXPECT_EQ(errno_to_answer({Code::kNotFound, 0, "object 8 is absent"}), ENOENT);
  EXPECT_FALSE(is_logged("object 8"));
}

}  // namespace errno_map_test
}  // namespace kvcachefs

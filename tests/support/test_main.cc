// main() of the programs that hold several tests of a room (kvcachefs_add_test). `PROGRAM --test=NAME:FILE,FILE,...` runs the cases
// that these source files define, and puts GoogleTest's report into NAME.xml where GTEST_OUTPUT names a directory. Without that
// option it runs all cases.
#include <algorithm>
#include <cstdio>
#include <ranges>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace {

constexpr std::string_view kOption = "--test=";

struct Chosen {
  std::string name;
  std::vector<std::string> files;
};

Chosen parse(std::string_view value) {
  const size_t colon = value.find(':');
  Chosen chosen{.name = std::string(value.substr(0, colon)), .files = {}};
  if (colon != value.npos)
    for (const auto file : std::views::split(value.substr(colon + 1), ',')) chosen.files.emplace_back(file.begin(), file.end());
  return chosen;
}

bool contains(const std::vector<std::string>& all, const std::string& one) { return std::ranges::find(all, one) != all.end(); }
std::string file_name(std::string_view path) { return std::string(path.substr(path.rfind('/') + 1)); }

// GoogleTest's filter for the cases of these files; each of them has some, or it is said which has none and the result is empty.
std::string filter_for(const std::vector<std::string>& files) {
  std::string filter;
  std::vector<std::string> found;
  const auto& tests = *testing::UnitTest::GetInstance();
  for (int i = 0; i < tests.total_test_suite_count(); ++i) {
    const auto& suite = *tests.GetTestSuite(i);
    for (int k = 0; k < suite.total_test_count(); ++k) {
      const auto& test = *suite.GetTestInfo(k);
      const std::string file = file_name(test.file());
      if (!contains(files, file)) continue;
      found.push_back(file);
      filter += std::string(suite.name()) + '.' + test.name() + ':';
    }
  }
  for (const std::string& file : files)
    if (!contains(found, file)) {
      std::fprintf(stderr, "no case of %s is in this program: build it anew, and look at the CMakeLists.txt of its room\n", file.c_str());
      return {};
    }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  Chosen chosen;
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]).starts_with(kOption)) chosen = parse(std::string_view(argv[i]).substr(kOption.size()));
  const std::string output = GTEST_FLAG_GET(output);
  if (!chosen.name.empty() && output.ends_with('/')) GTEST_FLAG_SET(output, output + chosen.name + ".xml");
  testing::InitGoogleTest(&argc, argv);
  if (!chosen.name.empty()) {
    const std::string filter = filter_for(chosen.files);
    if (filter.empty()) return 2;
    GTEST_FLAG_SET(filter, filter);
  }
  return RUN_ALL_TESTS();
}

#include "tools/replay/trace.h"

#include <fstream>

#include <gtest/gtest.h>
#include <zlib.h>

#include "tools/load/test_directory.h"

namespace kvcachefs {
namespace trace_test {

constexpr const char* kRequest = R"({"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]})";
constexpr const char* kSession = R"({"id":"a","block_size":64,"hash_id_scope":"local","requests":[)"
                                 R"({"t":1.5,"type":"s","in":130,"out":3,"hash_ids":[1,2,3]},)"
                                 R"({"t":10.0,"type":"subagent","requests":[{"t":2.0,"in":64,"hash_ids":[9]}]}]})";

Result<Trace> parse(const std::vector<std::string>& lines) {
  TraceParser parser;
  for (const std::string& line : lines) KVC_TRY(parser.add_line(line));
  return std::move(parser).finish();
}

TEST(Trace, RequestLines) {
  const auto trace =
      parse({kRequest, R"({"timestamp": 0, "input_length": 1, "hash_ids": [1], "unknown": {"x": []}})", ""});
  ASSERT_TRUE(trace) << trace.error().message;
  EXPECT_EQ(trace->block_tokens, 512u);
  ASSERT_EQ(trace->requests.size(), 2u);
  EXPECT_EQ(trace->requests[0].input_tokens, 1u) << "sorted by arrival";
  EXPECT_EQ(trace->requests[1].arrival_s, 3.0);
  EXPECT_EQ(trace->requests[1].blocks, (std::vector<uint64_t>{1, 2}));
}

TEST(Trace, SessionLinesWithNestedRequests) {
  const auto trace = parse({kSession, kSession});
  ASSERT_TRUE(trace) << trace.error().message;
  EXPECT_EQ(trace->block_tokens, 64u);
  ASSERT_EQ(trace->requests.size(), 4u);
  EXPECT_EQ(trace->requests[0].blocks.size(), 3u);
  EXPECT_NE(trace->requests[0].blocks, trace->requests[1].blocks) << "ids are local to a session";
  EXPECT_EQ(trace->requests[3].arrival_s, 12.0);
}

TEST(Trace, GlobalScopeSharesIdsBetweenSessions) {
  const std::string session =
      R"({"block_size":64,"hash_id_scope":"global","requests":[{"t":0,"in":64,"hash_ids":[7]}]})";
  const auto trace = parse({session, session});
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->requests[0].blocks, trace->requests[1].blocks);
}

TEST(Trace, MalformedLinesSayWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"timestamp": 1, "input_len)", "JSON"},
      {"[]", "object"},
      {R"({"x": 1})", "neither"},
      {R"({"timestamp": 1, "input_length": 5})", "hash_ids"},
      {R"({"timestamp": 1, "input_length": 5, "hash_ids": 3})", "array"},
      {R"({"timestamp": 1, "input_length": 5, "hash_ids": [1, "a"]})", "[1]"},
      {R"({"timestamp": 1, "input_length": -5, "hash_ids": []})", "input_length"},
      {R"({"timestamp": "now", "input_length": 5, "hash_ids": []})", "timestamp"},
      {R"({"timestamp": -1, "input_length": 5, "hash_ids": []})", "timestamp"},
      {R"({"requests": []})", "block_size"},
      {R"({"block_size": 0, "requests": []})", "block"},
      {R"({"block_size": 64, "requests": {}})", "array"},
      {R"({"block_size": 64, "requests": [{"in": 1, "hash_ids": []}]})", "\"t\""},
  };
  for (const auto& [line, expected] : cases) {
    TraceParser parser;
    const Status added = parser.add_line(line);
    ASSERT_FALSE(added) << line;
    EXPECT_NE(added.error().message.find(expected), std::string::npos) << line << " -> " << added.error().message;
  }
}

TEST(Trace, DeepNestingIsRefused) {
  std::string line = R"({"block_size":64,"requests":[)";
  for (int i = 0; i < 40; ++i) line += R"({"t":0,"requests":[)";
  for (int i = 0; i < 40; ++i) line += "]}";
  TraceParser parser;
  EXPECT_FALSE(parser.add_line(line + "]}"));
}

TEST(Trace, MixedBlockSizesAreRefused) { EXPECT_FALSE(parse({kRequest, kSession})); }

TEST(Trace, NothingIsNoTrace) { EXPECT_FALSE(parse({""})); }

class TraceFile : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }
  void write_gzip(const std::string& name, const std::string& text) const {
    gzFile file = ::gzopen(path(name).c_str(), "wb");
    ASSERT_NE(file, nullptr);
    ::gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    ::gzclose(file);
  }
  TestDirectory directory_;
};

TEST_F(TraceFile, PlainAndGzipAreTheSame) {
  const std::string text = std::string(kRequest) + "\n" + kRequest + "\n";
  write("plain", text);
  write_gzip("packed", text);
  for (const char* name : {"plain", "packed"}) {
    const auto trace = read_trace(path(name));
    ASSERT_TRUE(trace) << trace.error().message;
    EXPECT_EQ(trace->requests.size(), 2u);
  }
}

TEST_F(TraceFile, TheLineNumberIsNamed) {
  write("bad", std::string(kRequest) + "\n" + kRequest + "\n" + "{\"timestamp\": 7, \"inp");
  const auto trace = read_trace(path("bad"));
  ASSERT_FALSE(trace);
  EXPECT_NE(trace.error().message.find("bad:3"), std::string::npos) << trace.error().message;
  EXPECT_EQ(trace.error().code, Code::kInvalid);
}

TEST_F(TraceFile, ALineOfZeroBytesIsNotSkipped) {
  const std::string good = std::string(kRequest) + "\n";
  for (const std::string& line : {std::string(1, '\0') + "\n", std::string(40'000, '\0') + "\n", std::string(5, '\0')}) {
    write("torn", good + line + (line.ends_with('\n') ? good : ""));
    const auto trace = read_trace(path("torn"));
    ASSERT_FALSE(trace);
    EXPECT_NE(trace.error().message.find("torn:2"), std::string::npos) << trace.error().message;
  }
}

TEST_F(TraceFile, TruncatedGzipIsToldWithItsLine) {
  std::string text;
  for (int i = 0; i < 20000; ++i)
    text += R"({"timestamp": )" + std::to_string(i * 7919 % 100003) + R"(, "input_length": 5, "hash_ids": [)" +
            std::to_string(i) + "]}\n";
  write_gzip("cut", text);
  std::filesystem::resize_file(path("cut"), std::filesystem::file_size(path("cut")) / 2);
  const auto trace = read_trace(path("cut"));
  ASSERT_FALSE(trace);
  EXPECT_NE(trace.error().message.find("truncated"), std::string::npos) << trace.error().message;
  EXPECT_NE(trace.error().message.find("line"), std::string::npos) << trace.error().message;
}

TEST_F(TraceFile, LongLinesAreWhole) {
  std::string line = R"({"timestamp": 1, "input_length": 9000000, "hash_ids": [0)";
  for (int i = 1; i < 20000; ++i) line += "," + std::to_string(i);
  write("long", line + "]}");
  const auto trace = read_trace(path("long"));
  ASSERT_TRUE(trace) << trace.error().message;
  EXPECT_EQ(trace->requests[0].blocks.size(), 20000u);
}

TEST_F(TraceFile, MissingAndEmptyFilesAreNamed) {
  EXPECT_NE(read_trace(path("none")).error().message.find("none"), std::string::npos);
  write("empty", "");
  EXPECT_NE(read_trace(path("empty")).error().message.find("empty"), std::string::npos);
  EXPECT_FALSE(read_trace(directory_.path()));
}

}  // namespace trace_test
}  // namespace kvcachefs

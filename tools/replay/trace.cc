#include "tools/replay/trace.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/load/payload.h"
#include "tools/replay/line_reader.h"

namespace kvcachefs {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kRequestTraceBlockTokens = 512;
constexpr uint64_t kMaxBlockTokens = 1 << 20;
constexpr int kMaxNesting = 16;

std::unexpected<Error> malformed(const std::string& what) { return fail(Code::kInvalid, what); }

Result<double> number_field(const Json& object, const char* name) {
  const auto field = object.find(name);
  if (field == object.end()) return malformed(fmt::format("field \"{}\" is missing", name));
  if (!field->is_number()) return malformed(fmt::format("field \"{}\" is not a number", name));
  const double value = field->get<double>();
  if (!std::isfinite(value) || value < 0) return malformed(fmt::format("field \"{}\" is negative or not finite", name));
  return value;
}

Result<uint64_t> count_field(const Json& object, const char* name) {
  const auto field = object.find(name);
  if (field == object.end()) return malformed(fmt::format("field \"{}\" is missing", name));
  if (!field->is_number_unsigned()) return malformed(fmt::format("field \"{}\" is not a whole number >= 0", name));
  return field->get<uint64_t>();
}

// `scope` makes the ids of one session different from those of all others.
Result<std::vector<uint64_t>> hash_ids(const Json& object, uint64_t scope) {
  const auto field = object.find("hash_ids");
  if (field == object.end()) return malformed("field \"hash_ids\" is missing");
  if (!field->is_array()) return malformed("field \"hash_ids\" is not an array");
  std::vector<uint64_t> ids;
  ids.reserve(field->size());
  for (const Json& id : *field) {
    if (!id.is_number_integer()) return malformed(fmt::format("\"hash_ids\"[{}] is not a whole number", ids.size()));
    ids.push_back(scope == 0 ? id.get<uint64_t>() : mix64(scope ^ mix64(id.get<uint64_t>())));
  }
  return ids;
}

Status add_session_requests(const Json& list, uint64_t scope, double start_s, int depth,
                            std::vector<TraceRequest>& out);

// A request, or a sub-agent that holds requests of its own, or both.
Status add_session_request(const Json& entry, uint64_t scope, double start_s, int depth,
                           std::vector<TraceRequest>& out) {
  if (!entry.is_object()) return malformed("not an object");
  KVC_ASSIGN(const double t, number_field(entry, "t"));
  const auto nested = entry.find("requests");
  if (nested == entry.end() || entry.contains("hash_ids")) {
    TraceRequest request;
    request.arrival_s = start_s + t;
    KVC_ASSIGN(request.input_tokens, count_field(entry, "in"));
    KVC_ASSIGN(request.blocks, hash_ids(entry, scope));
    out.push_back(std::move(request));
  }
  if (nested == entry.end()) return {};
  return add_session_requests(*nested, scope, start_s + t, depth + 1, out);
}

Status add_session_requests(const Json& list, uint64_t scope, double start_s, int depth,
                            std::vector<TraceRequest>& out) {
  if (!list.is_array()) return malformed("field \"requests\" is not an array");
  if (depth > kMaxNesting) return malformed("\"requests\" are nested too deep");
  for (size_t i = 0; i < list.size(); ++i) {
    Status added = add_session_request(list[i], scope, start_s, depth, out);
    if (!added) return std::unexpected(std::move(added).error().at(fmt::format("\"requests\"[{}]", i)));
  }
  return {};
}

Result<TraceRequest> parse_request(const Json& object) {
  TraceRequest request;
  KVC_ASSIGN(const double timestamp_ms, number_field(object, "timestamp"));
  request.arrival_s = timestamp_ms / 1e3;
  KVC_ASSIGN(request.input_tokens, count_field(object, "input_length"));
  KVC_ASSIGN(request.blocks, hash_ids(object, 0));
  return request;
}

}  // namespace

Status TraceParser::set_block_tokens(uint64_t tokens) {
  if (tokens == 0 || tokens > kMaxBlockTokens) return malformed(fmt::format("a block of {} tokens", tokens));
  if (trace_.block_tokens != 0 && trace_.block_tokens != tokens) {
    return malformed(fmt::format("blocks of {} tokens after blocks of {}", tokens, trace_.block_tokens));
  }
  trace_.block_tokens = tokens;
  return {};
}

Status TraceParser::add_line(std::string_view line) {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) return {};
  const Json document = Json::parse(line, nullptr, false);
  if (document.is_discarded()) return malformed("not valid JSON (cut short?)");
  if (!document.is_object()) return malformed("not a JSON object");
  if (const auto requests = document.find("requests"); requests != document.end()) {
    KVC_ASSIGN(const uint64_t block_tokens, count_field(document, "block_size"));
    KVC_TRY(set_block_tokens(block_tokens));
    const bool global = document.value("/hash_id_scope"_json_pointer, Json()) == "global";
    const size_t before = trace_.requests.size();
    ++sessions_;
    KVC_TRY(add_session_requests(*requests, global ? 0 : sessions_, 0, 0, trace_.requests));
    for (TraceRequest& request : std::span(trace_.requests).subspan(before)) request.session = sessions_;
    return {};
  }
  if (!document.contains("timestamp")) {
    return malformed("neither a request (\"timestamp\", \"hash_ids\") nor a session (\"requests\")");
  }
  KVC_TRY(set_block_tokens(kRequestTraceBlockTokens));
  KVC_ASSIGN(TraceRequest request, parse_request(document));
  trace_.requests.push_back(std::move(request));
  return {};
}

Result<Trace> TraceParser::finish() && {
  if (trace_.requests.empty()) return malformed("no requests in it");
  std::ranges::stable_sort(trace_.requests, {}, &TraceRequest::arrival_s);
  return std::move(trace_);
}

Result<Trace> read_trace(const std::string& path) {
  KVC_ASSIGN(LineReader reader, LineReader::open(path));
  TraceParser parser;
  std::string line;
  for (;;) {
    KVC_ASSIGN(const bool more, reader.next(line));
    if (!more) break;
    Status added = parser.add_line(line);
    if (!added) return std::unexpected(std::move(added).error().at(reader.place()));
  }
  auto trace = std::move(parser).finish();
  if (!trace) return std::unexpected(std::move(trace).error().at(path));
  return trace;
}

}  // namespace kvcachefs

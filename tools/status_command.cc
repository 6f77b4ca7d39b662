// `kvcachefs status`: prints the status of a mount, as JSON or for people.
#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tools/commands.h"
#include "tools/mount_table.h"

namespace kvcachefs {

namespace {

using Json = nlohmann::ordered_json;

struct StatusArguments {
  std::string path;
  bool json = false;
};

std::string human_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string percent_text(const Json& ratio) {
  return ratio.is_number() ? fmt::format("{:.3g} %", 100 * ratio.get<double>()) : "-";
}

std::string duration_text(double seconds) {
  if (seconds < 120) return fmt::format("{:.3g} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 172'800) return fmt::format("{:.0f} h", seconds / 3600);
  return fmt::format("{:.0f} days", seconds / 86'400);
}

void line(const std::string& name, const std::string& text) { fmt::print("{:<13} {}\n", name, text); }

// Tells whether the cache is large enough. A daemon of another version may report fewer fields; the summary is then shorter.
class CacheSummary {
 public:
  explicit CacheSummary(const Json& status) : status_(status) {}

  void print() const {
    const Json& limit = at("capacity", "limit_bytes");
    const Json& used = at("capacity", "physical_bytes");
    const Json& coldest = at("evictions", "coldest_age_s");
    if (limit.is_number() && used.is_number() && limit > 0) {
      std::string text = fmt::format("{} of {} used ({:.0f} %)", human_bytes(used), human_bytes(limit),
                                     100 * used.get<double>() / limit.get<double>());
      if (coldest.is_number()) text += fmt::format("; the coldest of what may be evicted was used {} ago", duration_text(coldest));
      line("cache", text);
    }
    line("hits", spans("hit", "of the probes"));
    line("misses", spans("miss_evicted", "had been evicted before,"));
    if (const std::string text = verdict(); !text.empty()) line("large enough", text);
    fmt::print("\n");
  }

 private:
  const Json& at(const char* group, const char* field) const {
    static const Json kNone;
    const auto found = status_.find(group);
    if (found == status_.end() || !found->is_object()) return kNone;
    const auto value = found->find(field);
    return value == found->end() ? kNone : *value;
  }
  std::string spans(const std::string& field, const char* of) const {
    const auto percent = [&](const char* span) { return percent_text(at("probes", (field + span).c_str())); };
    return fmt::format("{} {} in the last minute, {} in the last hour, {} in the last day", percent("_1min_ratio"), of, percent("_1h_ratio"),
                       percent("_1d_ratio"));
  }

  // Misses of chunks that were evicted would be hits of a larger cache.
  std::string verdict() const {
    constexpr double kFew = 0.01;
    const Json& evicted = at("evictions", "bytes");
    if (!evicted.is_number()) return {};
    if (const Json& refused = at("errors", "no_space"); refused.is_number() && refused > 0)
      return fmt::format("no: {} calls found no space since the mount", refused.get<uint64_t>());
    if (const Json& evict = at("options", "evict"); evict == "off") return "not known: with evict=off nothing makes room";
    if (evicted == 0) return "yes: nothing was evicted since the mount";
    if (const Json& broken = at("evictions", "leases_broken"); broken.is_number() && broken > 0)
      return fmt::format("no: since the mount {} chunks went although they had been probed or opened within lease_ms", broken.get<uint64_t>());
    const Json& hits = at("probes", "hit_1d_ratio");
    const Json& share = at("probes", "miss_evicted_1d_ratio");
    if (!hits.is_number()) return "not known: nothing was probed for in the last day";
    const double more = (1 - hits.get<double>()) * (share.is_number() ? share.get<double>() : 0);
    return fmt::format("{}: a larger one would have hit {:.2g} % more of the probes of the last day", more < kFew ? "yes" : "no",
                       100 * more);
  }

  const Json& status_;
};

std::string value_text(const std::string& name, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_null()) return "-";
  if (name.ends_with("_ratio")) return percent_text(value);
  const bool bytes = name == "bytes" || name.ends_with("_bytes") || name.starts_with("bytes_");
  if (bytes && value.is_number_unsigned()) return human_bytes(value.get<uint64_t>());
  return value.dump();
}

// "limit 1.0 GiB, used 3.1 MiB": the fields of one group on one line, without the unit in the name.
std::string group_text(const Json& group) {
  std::string text;
  for (const auto& [field, value] : group.items()) {
    const std::string shown = value_text(field, value);
    if (shown.empty()) continue;
    std::string name = field.ends_with("_bytes") ? field.substr(0, field.size() - 6) : field;
    std::replace(name.begin(), name.end(), '_', ' ');
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, shown);
  }
  return text;
}

// Prints whether the cache is large enough, and each group of the status on a line (one per item if a group has several). Leaves out the
// options, which `.kvcachefs/options` lists.
void print_for_people(const Json& status) {
  CacheSummary(status).print();
  for (const auto& [name, value] : status.items()) {
    if (name == "options") continue;
    if (!value.is_array()) {
      line(name, value.is_object() ? group_text(value) : value_text(name, value));
      continue;
    }
    if (value.empty()) line(name, "none");
    for (const Json& each : value) line(name, group_text(each));
  }
}

Status print_status(const StatusArguments& arguments) {
  MountEntry mount;
  if (arguments.path.empty()) {
    KVC_ASSIGN(mount, only_mount());
  } else {
    KVC_ASSIGN(const std::string resolved, resolve_path(arguments.path));
    KVC_ASSIGN(mount, enclosing_mount(resolved));
  }
  auto text = read_control_file(mount.mountpoint, "status");
  if (!text)
    return std::unexpected(std::move(text).error().at("the mount on " + mount.mountpoint + " does not answer"));
  if (arguments.json) {
    std::fwrite(text->data(), 1, text->size(), stdout);
    return {};
  }
  const Json status = Json::parse(*text, nullptr, false);
  if (!status.is_object()) return fail(Code::kCorrupt, mount.mountpoint + "/.kvcachefs/status is not a JSON object");
  print_for_people(status);
  return {};
}

int run_status(const StatusArguments& arguments) {
  Status status = print_status(arguments);
  if (status) return kExitOk;
  std::fprintf(stderr, "kvcachefs status: %s\n", status.error().message.c_str());
  return kExitFailed;
}

}  // namespace

Subcommand add_status_command(CLI::App& parent) {
  auto arguments = std::make_shared<StatusArguments>();
  CLI::App* app = parent.add_subcommand("status", "Tell how a mount is doing");
  app->add_flag("--json", arguments->json, "The whole status as JSON");
  app->add_option("PATH", arguments->path, "Anything in the mount; may be left out when only one is mounted");
  return {app, [arguments] { return run_status(*arguments); }};
}

}  // namespace kvcachefs

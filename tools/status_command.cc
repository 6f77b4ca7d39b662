// `kvcachefs status`: what a mount tells of itself, as JSON or for people.
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

struct Arguments {
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

std::string value_text(const std::string& name, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
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

// Every group of the status on a line, except the options, which `.kvcachefs/options` lists.
void print_for_people(const Json& status) {
  for (const auto& [name, value] : status.items()) {
    if (name == "options") continue;
    fmt::print("{:<12}{}\n", name, value.is_object() ? group_text(value) : value_text(name, value));
  }
}

Status print_status(const Arguments& arguments) {
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

int run(const Arguments& arguments) {
  Status status = print_status(arguments);
  if (status) return kExitOk;
  std::fprintf(stderr, "kvcachefs status: %s\n", status.error().message.c_str());
  return kExitFailed;
}

}  // namespace

Subcommand add_status_command(CLI::App& parent) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* app = parent.add_subcommand("status", "Tell how a mount is doing");
  app->add_flag("--json", arguments->json, "The whole status as JSON");
  app->add_option("PATH", arguments->path, "Anything in the mount; may be left out when only one is mounted");
  return {app, [arguments] { return run(*arguments); }};
}

}  // namespace kvcachefs

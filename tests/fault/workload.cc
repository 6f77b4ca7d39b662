#include "tests/fault/workload.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace kvcachefs::testing {

namespace {
constexpr unsigned kNames = 8;
constexpr size_t kLiveCheckEvery = 9;
constexpr int64_t kPastIndexIntervalNs = 6'500'000'000;
}  // namespace

Workload::Workload(Rig& rig, Reference& reference, uint64_t seed) : rig_(rig), reference_(reference), random_(seed) {
  temporary_ = static_cast<unsigned>(reference.names().size());  // names that no life before used
}

void Workload::run(size_t operations) {
  static constexpr std::pair<const char*, Step> kSteps[] = {
      {"put", &Workload::put},
      {"put", &Workload::put},
      {"put", &Workload::put},
      {"put", &Workload::put},
      {"put", &Workload::put},
      {"overwrite", &Workload::overwrite},
      {"overwrite", &Workload::overwrite},
      {"rewrite", &Workload::rewrite},
      {"truncate", &Workload::truncate},
      {"unlink", &Workload::remove},
      {"unlink", &Workload::remove},
      {"rename over", &Workload::rename_over},
      {"fsync", &Workload::fsync_one},
      {"fsync", &Workload::fsync_one},
      {"drain", &Workload::drain},
      {"fsync of the directory", &Workload::sync_directory},
      {"time passes", &Workload::pass_time},
      {"time passes", &Workload::pass_time},
      {"background work", &Workload::let_work},
      {"background work", &Workload::let_work},
  };
  durability_ = rig_.store().options().durability;
  if (auto made = rig_.make_directory("d"); !made && made.error().code != Code::kExists) good(made, "mkdir d");
  for (size_t operation = 1; operation <= operations && !rig_.stopped(); ++operation) {
    const auto& [name, step] = kSteps[random_() % std::size(kSteps)];
    trace("{} {}", operation, name);
    (this->*step)();
    if (rig_.stopped()) return;
    if (failed_) look_again();
    if (operation == copy_at_) middle_index_ = rig_.copy_index();
    if (operation % kLiveCheckEvery == 0) check_live();
  }
}

// --- what is left to do after each call ---

bool Workload::good(const Status& status, const std::string& what) {
  trace("  {}: {}", what, status ? "good" : status.error().message);
  if (status) return true;
  if (rig_.stopped()) return false;
  failed_ = true;
  ++failures_;
  codes_.push_back(status.error().code);
  if (!errors_expected_ || status.error().code == Code::kCanceled) complaints_.push_back(what + ": " + status.error().message);
  return false;
}

void Workload::acknowledge(const std::string& name) {
  if (durability_ == Durability::kClose) reference_.acknowledge(name, Crash::kProcess);
  if (durability_ == Durability::kSync) reference_.acknowledge(name, Crash::kPower);
}

bool Workload::finish(const Rig::HandlePtr& handle, const std::string& name, const std::string& what) {
  if (one_in(4)) {
    if (!good(rig_.fsync(handle), what + ": fsync " + name)) return false;
    reference_.acknowledge(name, Crash::kPower);
  }
  if (!good(rig_.flush(handle), what + ": close " + name)) return false;
  acknowledge(name);
  return true;
}

// What did not fit leaves a file empty that has no version on the volume, or that its writer made or truncated to nothing.
void Workload::refused(const std::string& name) {
  if (codes_.empty() || codes_.back() != Code::kNoSpace) return;
  reference_.change(name, Content(std::string()));
}

void Workload::look_again() {
  failed_ = false;
  auto tree = rig_.tree();
  if (!tree) {
    if (!rig_.stopped()) complaints_.push_back("reading back after an error: " + tree.error().message);
    return;
  }
  for (std::string& problem : reference_.judge(*tree, Crash::kProcess)) complaints_.push_back("after an error: " + problem);
  for (const std::string& name : reference_.names()) {
    const auto found = tree->find(name);
    reference_.found(name, found == tree->end() ? Content() : Content(found->second));
  }
}

void Workload::check_live() {
  auto tree = rig_.tree();
  if (!tree) {
    if (!rig_.stopped()) complaints_.push_back("reading everything back: " + tree.error().message);
    return;
  }
  for (std::string& problem : reference_.judge(*tree, std::nullopt)) complaints_.push_back("running: " + problem);
}

// --- choices ---

std::string Workload::some_name() {
  const unsigned number = static_cast<unsigned>(random_() % kNames);
  return fmt::format("{}n{}", number % 2 == 0 ? "" : "d/", number);
}

std::string Workload::present_name() {
  const auto names = reference_.present_names();
  return names.empty() ? "" : names[random_() % names.size()];
}

size_t Workload::some_size() {
  switch (random_() % 8) {
    case 0: return random_() % 2 == 0 ? 0 : random_() % 300;  // inline
    case 1: return 300 + random_() % 3'000;
    case 2:
    case 3: return 4096 * (1 + random_() % 8);
    case 4:
    case 5: return 10'000 + random_() % 80'000;
    case 6: return 262'144 + random_() % 100'000;  // more than one unit
    default: return 530'000 + random_() % 80'000;  // solo
  }
}

std::string Workload::body(size_t size) {
  std::string bytes(size, 0);
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    const uint64_t value = random_();
    std::memcpy(bytes.data() + at, &value, std::min(sizeof value, size - at));
  }
  return bytes;
}

// --- operations ---

void Workload::put() {
  const std::string target = some_name();
  const std::string temporary = fmt::format("{}t{}", one_in(2) ? "d/" : "", temporary_++);
  // Sometimes what the target holds already: equal bodies are kept once.
  std::string content = one_in(6) && reference_.now(target) ? *reference_.now(target) : body(some_size());
  auto handle = rig_.create(temporary);
  if (!handle) {
    good(std::unexpected(handle.error()), "create " + temporary);
    return;
  }
  for (size_t at = 0; at < content.size(); at += 200'000)
    if (!good(rig_.write(*handle, at, content.substr(at, 200'000)), "write " + temporary)) return refused(temporary);
  reference_.change(temporary, content);
  const bool rename_first = one_in(5);
  if (!rename_first) {
    if (!finish(*handle, temporary, "put")) return;
    handle->reset();
    if (one_in(4)) let_work();
    if (one_in(12)) return;  // nobody renames it
  }
  reference_.move(temporary, target);
  if (!good(rig_.rename(temporary, target), "rename " + temporary + " to " + target)) return;
  acknowledge(temporary);
  acknowledge(target);
  if (rename_first) finish(*handle, target, "put after rename");
}

void Workload::overwrite() {
  const std::string name = present_name();
  if (name.empty()) return;
  std::string content = *reference_.now(name);
  auto handle = rig_.open(name, {.read = true, .write = true});
  if (!handle) {
    good(std::unexpected(handle.error()), "open " + name);
    return;
  }
  for (int piece = one_in(2) ? 2 : 1; piece > 0; --piece) {
    const size_t offset = random_() % (content.size() + 5'000);
    const std::string bytes = body(1 + random_() % 30'000);
    if (!good(rig_.write(*handle, offset, bytes), "overwrite " + name)) return refused(name);
    content.resize(std::max(content.size(), offset + bytes.size()));
    std::memcpy(content.data() + offset, bytes.data(), bytes.size());
    if (one_in(3)) let_work();
  }
  reference_.change(name, content);
  finish(*handle, name, "overwrite");
}

void Workload::rewrite() {
  const std::string name = present_name();
  if (name.empty()) return;
  auto handle = rig_.open(name, {.read = false, .write = true, .truncate = true});
  if (!handle) {
    good(std::unexpected(handle.error()), "open to rewrite " + name);
    return;
  }
  const std::string content = body(some_size());
  if (!content.empty() && !good(rig_.write(*handle, 0, content), "rewrite " + name)) return refused(name);
  reference_.change(name, content);
  finish(*handle, name, "rewrite");
}

void Workload::truncate() {
  const std::string name = present_name();
  if (name.empty()) return;
  std::string content = *reference_.now(name);
  content.resize(random_() % (content.size() + 3'000));
  reference_.change(name, content);
  good(rig_.truncate(name, content.size()), "truncate " + name);
}

void Workload::remove() {
  const std::string name = present_name();
  if (name.empty()) return;
  reference_.change(name, std::nullopt);
  if (good(rig_.unlink(name), "unlink " + name)) acknowledge(name);
}

void Workload::rename_over() {
  const std::string from = present_name(), to = some_name();
  if (from.empty() || from == to) return;
  reference_.move(from, to);
  if (!good(rig_.rename(from, to), "rename " + from + " over " + to)) return;
  acknowledge(from);
  acknowledge(to);
}

void Workload::fsync_one() {
  const std::string name = present_name();
  if (name.empty()) return;
  auto handle = rig_.open(name, {});
  if (!handle) {
    good(std::unexpected(handle.error()), "open to fsync " + name);
    return;
  }
  if (good(rig_.fsync(*handle), "fsync " + name)) reference_.acknowledge(name, Crash::kPower);
}

void Workload::drain() {
  if (good(rig_.drain(), "drain")) reference_.acknowledge_all(Crash::kPower);
}

// Names: what was unlinked stays so. (Under the option none a rename whose body is not synced is not promised.)
void Workload::sync_directory() {
  if (!good(rig_.sync_directory(), "fsync of the directory")) return;
  for (const std::string& name : reference_.names())
    if (reference_.unlinked(name)) reference_.acknowledge(name, Crash::kPower);
}

void Workload::pass_time() { rig_.pass_time(kPastIndexIntervalNs); }

}  // namespace kvcachefs::testing

#include "tests/model/random_client.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/clock.h"
#include "tests/model/random_client_wait.h"

namespace kvcachefs::testing {

RandomClient::RandomClient(uint64_t seed, const Setting& setting)
    : seed_(seed), setting_(setting), thread_id_(static_cast<uint32_t>(gettid())), random_(seed), store_(setting.options) {}

RandomClient::~RandomClient() {
  for (OpenFile& file : open_) store_->release(file.handle);
}

const std::vector<RandomClient::Weighted>& RandomClient::operations() {
  using Self = RandomClient;
  static const std::vector<Weighted> all{
      {8, &Self::create_file},  {8, &Self::publish},          {3, &Self::make_directory},   {1, &Self::make_node},
      {1, &Self::make_symlink}, {3, &Self::link},             {8, &Self::unlink},           {2, &Self::remove_directory},
      {10, &Self::rename},      {6, &Self::look_up},          {4, &Self::list_some},        {6, &Self::change_attributes},
      {5, &Self::change_xattr}, {10, &Self::open_file},       {9, &Self::close_file},       {24, &Self::write},
      {1, &Self::write_big},    {20, &Self::read},            {7, &Self::truncate},         {5, &Self::allocate},
      {4, &Self::seek},         {3, &Self::flush},            {2, &Self::fsync},            {20, &Self::pump_some},
      {2, &Self::drain},        {3, &Self::drop_caches},      {1, &Self::set_memory},       {2, &Self::check_figures},
      {1, &Self::remount},      {1, &Self::crash_after_drain}};
  return all;
}

bool RandomClient::step() {
  static const int kTotal = [] {
    int total = 0;
    for (const Weighted& each : operations()) total += each.weight;
    return total;
  }();
  ++steps_;
  start_ns_ = now();
  auto pick = static_cast<int>(below(static_cast<uint64_t>(kTotal)));
  for (const Weighted& each : operations()) {
    pick -= each.weight;
    if (pick >= 0) continue;
    (this->*each.operation)();
    break;
  }
  return !failed_ && !::testing::Test::HasFailure();
}

// --- reporting ---

void RandomClient::note(std::string text) {
  constexpr size_t kKept = 60;
  log_.push_back(fmt::format("{}: {}", steps_, std::move(text)));
  if (log_.size() > kKept) log_.pop_front();
}

void RandomClient::differ(const std::string& what) {
  failed_ = true;
  std::string text = fmt::format("seed {} step {}: {}\nthe last calls:\n", seed_, steps_, what);
  for (const std::string& line : log_) text += "  " + line + "\n";
  ADD_FAILURE() << text << "again: KVCACHEFS_SEED=" << seed_ << " store_model_test";
}

bool RandomClient::same_code(Code seen, Code expected) {
  if (seen == expected) return true;
  auto text = [](Code code) { return code == Reference::kGood ? std::string("success") : std::string(code_name(code)); };
  differ(fmt::format("answered {}, expected {}", text(seen), text(expected)));
  return false;
}

bool RandomClient::allowed(Code seen, Code expected) {
  if (setting_.tight && seen == Code::kNoSpace && expected == Reference::kGood) {
    note("  (no space)");
    return false;
  }
  return same_code(seen, expected) && expected == Reference::kGood;
}

// --- choosing ---

int64_t RandomClient::now() const { return system_clock().realtime_ns(); }

std::string RandomClient::random_name() {
  if (one_in(200)) return std::string(255, 'n');
  if (one_in(200)) return std::string(256, 'n');
  if (one_in(100)) return std::string("\xff\x01 \n'") + std::to_string(below(3));
  return "name" + std::to_string(below(setting_.names));
}

std::string RandomClient::random_bytes(size_t size) {
  std::string bytes(size, 0);
  uint64_t value = random_();
  for (size_t at = 0; at < size; at += 8) {
    value = value * 6364136223846793005u + 1442695040888963407u;
    const uint64_t mixed = value ^ (value >> 29);
    std::memcpy(bytes.data() + at, &mixed, std::min<size_t>(8, size - at));
  }
  return bytes;
}

size_t RandomClient::random_size() {
  switch (below(6)) {
    case 0: return below(100);
    case 1: return below(10'000);
    case 2: return 4096 * below(32);
    case 3: return 256 * kKiB * below(4) + below(3) - (below(2) == 0 ? 0 : 1) + 1;
    case 4: return below(setting_.largest_file_bytes / 8);
    default: return below(kLargestRequestBytes);
  }
}

uint64_t RandomClient::random_offset(uint64_t size) {
  switch (below(5)) {
    case 0: return 0;
    case 1: return size;
    case 2: return std::min(setting_.largest_file_bytes / 2, align_down(below(size + 1), 4096));
    case 3: return std::min(setting_.largest_file_bytes / 2, below(size + 500'000));
    default: return std::min(setting_.largest_file_bytes / 2, below(size + 1));
  }
}

EntityPtr RandomClient::random_directory() {
  auto all = reference_.directories();
  return one_in(3) ? all.front() : all[below(all.size())];
}

EntityPtr RandomClient::random_file() {
  auto all = reference_.reachable();
  std::erase_if(all, [](const EntityPtr& entity) { return !entity->is_regular(); });
  return all.empty() ? nullptr : all[below(all.size())];
}

RandomClient::OpenFile* RandomClient::random_open(bool for_writing) {
  std::vector<OpenFile*> fit;
  for (OpenFile& file : open_)
    if (for_writing ? file.request.write : file.request.read) fit.push_back(&file);
  return fit.empty() ? nullptr : fit[below(fit.size())];
}

// --- comparing ---

void RandomClient::adopt(const EntityPtr& entity, const Stat& stat) {
  if (!seen_ids_.insert(stat.id).second) differ(fmt::format("id {} was used before", stat.id.value));
  entity->id = stat.id;
  compare_stat(*entity, stat);
}

void RandomClient::compare_stat(Entity& entity, const Stat& stat) {
  auto same = [&](const char* what, auto seen, auto expected) {
    if (static_cast<uint64_t>(seen) != static_cast<uint64_t>(expected))
      differ(fmt::format("object {}: {} is {}, expected {}", entity.id.value, what, seen, expected));
  };
  same("id", stat.id.value, entity.id.value);
  if (entity.id != kRootId || entity.uid != 0) {
    same("uid", stat.uid, entity.uid);
    same("gid", stat.gid, entity.gid);
  }
  same("mode", stat.mode, entity.mode);
  same("nlink", stat.nlink, entity.nlink);
  same("rdev", stat.rdev, entity.rdev);
  same("size", stat.size_bytes, entity.size_bytes());
  if (!entity.is_directory() && stat.blocks_512 > align_up(std::max(stat.size_bytes, entity.allocated_to), 4096) / 512 &&
      stat.size_bytes <= setting_.options.raw_above_bytes)
    differ(fmt::format("object {}: {} blocks for {} bytes", entity.id.value, stat.blocks_512, stat.size_bytes));
  auto time = [&](const char* what, StampRange& range, int64_t seen) {
    const StampRange before = range;
    if (!range.agrees(seen) || seen > now())
      differ(fmt::format("object {}: {} is {}, expected {} to {} (now {})", entity.id.value, what, seen, before.low,
                         before.high, now()));
  };
  if (!entity.atime_is_of_open) time("atime", entity.atime, stat.atime_ns);
  time("mtime", entity.mtime, stat.mtime_ns);
  time("ctime", entity.ctime, stat.ctime_ns);
  time("btime", entity.btime, stat.btime_ns);
}

void RandomClient::compare_bytes(const EntityPtr& entity, uint64_t offset, const std::string& seen,
                                 const std::string& expected) {
  if (seen == expected) return;
  size_t at = 0;
  while (at < std::min(seen.size(), expected.size()) && seen[at] == expected[at]) ++at;
  size_t wrong = 0, zeros = 0;
  for (size_t i = at; i < std::min(seen.size(), expected.size()); ++i) {
    wrong += seen[i] != expected[i];
    zeros += seen[i] != expected[i] && seen[i] == 0;
  }
  differ(fmt::format("object {} (size {}): {} bytes at {}, expected {}; the first difference is at {}, {} differ, {} of them zeros",
                     entity->id.value, entity->bytes.size(), seen.size(), offset, expected.size(), offset + at, wrong, zeros));
}

}  // namespace kvcachefs::testing

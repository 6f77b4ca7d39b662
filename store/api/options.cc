#include "store/api/options.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include <fmt/format.h>

#include "store/base/node_name.h"

namespace kvcachefs {

Result<uint64_t> parse_option_number(std::string_view name, std::string_view value, uint64_t least, uint64_t most) {
  uint64_t number = 0;
  auto [end, ec] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (ec != std::errc() || end != value.data() + value.size() || number < least || number > most)
    return fail(Code::kInvalid, fmt::format("option {}={}: expected a number from {} to {}", name, value, least, most));
  return number;
}

namespace {

Result<uint64_t> size_in(std::string_view name, std::string_view value, uint64_t least, uint64_t most, std::string_view or_else = {}) {
  auto size = parse_size(value);
  if (!size || *size < least || *size > most)
    return fail(Code::kInvalid, fmt::format("option {}={}: expected a size from {} to {} (like 512M or 4G){}{}{}", name, value,
                                            format_size(least), format_size(most), or_else, size ? "" : "; ", size ? "" : size.error().message));
  return *size;
}

constexpr uint64_t kLargest = uint64_t{1} << 60;

struct OptionEntry {
  std::string_view name;
  bool live;
  Status (*set)(StoreOptions&, std::string_view name, std::string_view value);
  std::string (*get)(const StoreOptions&);
  std::string_view help;
};

template <uint64_t StoreOptions::* Field, uint64_t kLeast, uint64_t kMost>
Status set_size(StoreOptions& options, std::string_view name, std::string_view value) {
  KVC_ASSIGN(options.*Field, size_in(name, value, kLeast, kMost));
  return {};
}
template <uint64_t StoreOptions::* Field>
std::string get_size(const StoreOptions& options) {
  return format_size(options.*Field);
}
template <uint64_t StoreOptions::* Field, uint64_t kLeast, uint64_t kMost>
Status set_number(StoreOptions& options, std::string_view name, std::string_view value) {
  KVC_ASSIGN(options.*Field, parse_option_number(name, value, kLeast, kMost));
  return {};
}
template <uint64_t StoreOptions::* Field>
std::string get_number(const StoreOptions& options) {
  return fmt::format("{}", options.*Field);
}

// Parses a size, or a part of the backing file system ("90%").
template <uint64_t StoreOptions::* Bytes, uint32_t StoreOptions::* Percent, uint64_t kLeast>
Status set_size_or_percent(StoreOptions& options, std::string_view name, std::string_view value) {
  if (value.ends_with('%')) {
    auto percent = parse_option_number(name, value.substr(0, value.size() - 1), 1, 100);
    if (!percent) return fail(Code::kInvalid, fmt::format("option {}={}: expected 1% to 100%, or a size like 500G", name, value));
    options.*Percent = static_cast<uint32_t>(*percent);
    options.*Bytes = 0;
    return {};
  }
  KVC_ASSIGN(options.*Bytes, size_in(name, value, kLeast, kLargest, " or a part of the file system (like 90%)"));
  options.*Percent = StoreOptions().*Percent;  // 0 means the default, whatever was set before
  return {};
}

Status set_durability(StoreOptions& options, std::string_view name, std::string_view value) {
  if (value == "none") options.durability = Durability::kNone;
  else if (value == "close") options.durability = Durability::kClose;
  else if (value == "sync") options.durability = Durability::kSync;
  else return fail(Code::kInvalid, fmt::format("option {}={}: expected none, close or sync", name, value));
  return {};
}
std::string get_durability(const StoreOptions& options) {
  return options.durability == Durability::kNone ? "none" : options.durability == Durability::kClose ? "close" : "sync";
}

Status set_verify(StoreOptions& options, std::string_view name, std::string_view value) {
  if (value != "auto" && value != "always")
    return fail(Code::kInvalid, fmt::format("option {}={}: expected auto or always", name, value));
  options.verify = value == "auto" ? Verify::kAuto : Verify::kAlways;
  return {};
}

template <bool StoreOptions::* Switch>
Status set_switch(StoreOptions& options, std::string_view name, std::string_view value) {
  if (value != "on" && value != "off") return fail(Code::kInvalid, fmt::format("option {}={}: expected on or off", name, value));
  options.*Switch = value == "on";
  return {};
}
template <bool StoreOptions::* Switch>
std::string get_switch(const StoreOptions& options) { return options.*Switch ? "on" : "off"; }

Status set_statfs(StoreOptions& options, std::string_view name, std::string_view value) {
  if (value != "exact" && value != "headroom")
    return fail(Code::kInvalid, fmt::format("option {}={}: expected exact or headroom", name, value));
  options.statfs_headroom = value == "headroom";
  return {};
}

Status set_journal(StoreOptions& options, std::string_view name, std::string_view value) {
  if (value == "auto") options.journal = JournalOption::kAuto;
  else if (value == "packed") options.journal = JournalOption::kPacked;
  else if (value == "blocks") options.journal = JournalOption::kBlocks;
  else return fail(Code::kInvalid, fmt::format("option {}={}: expected auto, packed or blocks", name, value));
  return {};
}
std::string get_journal(const StoreOptions& options) {
  return options.journal == JournalOption::kAuto ? "auto" : options.journal == JournalOption::kPacked ? "packed" : "blocks";
}

Status set_policy(StoreOptions& options, std::string_view name, std::string_view value) {
  constexpr std::string_view kPolicies[] = {"prefix", "lru", "fifo-reinsert", "s3fifo"};  // those of store/evict
  if (std::find(std::begin(kPolicies), std::end(kPolicies), value) == std::end(kPolicies))
    return fail(Code::kInvalid, fmt::format("option {}={}: expected prefix, lru, fifo-reinsert or s3fifo", name, value));
  options.policy = value;
  return {};
}

Status set_index(StoreOptions& options, std::string_view name, std::string_view value) {
  if (value.empty() || value[0] != '/')
    return fail(Code::kInvalid, fmt::format("option {}={}: expected an absolute directory on a local file system", name, value));
  options.index_directory = value;
  return {};
}

Status set_node(StoreOptions& options, std::string_view name, std::string_view value) {
  if (!is_node_name(value)) return fail(Code::kInvalid, fmt::format("option {}={}: expected 1 to {} letters, digits, '-', '_', '.'", name, value, kMaxNodeNameBytes));
  options.node = value;
  return {};
}

constexpr OptionEntry kOptions[] = {
    {"capacity", true, set_size_or_percent<&StoreOptions::capacity_bytes, &StoreOptions::capacity_percent, 16 * kMiB>, get_size<&StoreOptions::capacity_bytes>,
     "most bytes of the volume to use; default 90% of its file system; from 16M"},
    {"keep_free", true, set_size_or_percent<&StoreOptions::keep_free_bytes, &StoreOptions::keep_free_percent, 0>, get_size<&StoreOptions::keep_free_bytes>,
     "never fill the backing file system past this; default 5% of it"},
    {"memory", true, set_size<&StoreOptions::memory_bytes, 16 * kMiB, kLargest>, get_size<&StoreOptions::memory_bytes>,
     "RAM for bodies; default a quarter of the machine's (or its cgroup's limit), at most 32G; from 16M"},
    {"durability", true, set_durability, get_durability,
     "none (default): answered when in RAM; close: written and journaled; sync: also synced"},
    {"verify", false, set_verify, [](const StoreOptions& o) -> std::string { return o.verify == Verify::kAuto ? "auto" : "always"; },
     "auto (default): known-good solo bodies may be passed through; always: every byte is checked, no passthrough"},
    {"prefetch", true, set_switch<&StoreOptions::prefetch>, get_switch<&StoreOptions::prefetch>,
     "on (default) or off: read ahead along chains learned from earlier writes and reads"},
    {"prefetch_ahead", true, set_size<&StoreOptions::prefetch_ahead_bytes, kMiB, 64 * kGiB>, get_size<&StoreOptions::prefetch_ahead_bytes>,
     "most bytes that one reader is read ahead of; default 256M; 1M to 64G"},
    {"pack_below", true, set_size<&StoreOptions::pack_below_bytes, 0, kGiB>, get_size<&StoreOptions::pack_below_bytes>,
     "bodies smaller than this share extents; default by the mount: 4M, or 32M on a network volume and where nothing is passed through"},
    {"memory_file_min", true, set_size<&StoreOptions::memory_file_min_bytes, 0, kGiB>, get_size<&StoreOptions::memory_file_min_bytes>,
     "bodies in RAM from this size on lie in files there, read by passthrough; default 4M; 0: none; to 1G"},
    {"inline_below", true, set_size<&StoreOptions::inline_below_bytes, 0, 64 * kKiB>, get_size<&StoreOptions::inline_below_bytes>,
     "bodies smaller than this are stored in journal and index; default 0 (none); to 64K"},
    {"extent_size", false, set_size<&StoreOptions::extent_bytes, kMiB, 4 * kGiB>, get_size<&StoreOptions::extent_bytes>,
     "a pack extent is closed at this size; default 256M; 1M to 4G"},
    {"raw_above", true, set_size<&StoreOptions::raw_above_bytes, kMiB, kLargest>, get_size<&StoreOptions::raw_above_bytes>,
     "files sized beyond this are 1:1 with a backing file, not checksummed; default 1G"},
    {"flush_interval_ms", true, set_number<&StoreOptions::flush_interval_ms, 1, 60'000>, get_number<&StoreOptions::flush_interval_ms>,
     "finished bodies go to the volume at least this often; default 200; 1 to 60000"},
    {"evict", true, set_switch<&StoreOptions::evict>, get_switch<&StoreOptions::evict>,
     "on (default): where capacity is used up, the chunks that are expected to be used least make room; off: ENOSPC"},
    {"lease_ms", true, set_number<&StoreOptions::lease_ms, 0, 600'000>, get_number<&StoreOptions::lease_ms>,
     "what was probed, opened, written or listed within it is not evicted; default 5000; 0 to 600000"},
    {"peer_poll_ms", true, set_number<&StoreOptions::peer_poll_ms, 20, 10'000>, get_number<&StoreOptions::peer_poll_ms>,
     "how often the journals of other nodes are read; default 250; 20 to 10000"},
    {"adopt_after", true, set_number<&StoreOptions::adopt_after_s, 0, 31'536'000>, get_number<&StoreOptions::adopt_after_s>,
     "seconds after which another node evicts and frees space for a node whose daemon is gone; default 600; 0: never; to 31536000"},
    {"policy", true, set_policy, [](const StoreOptions& o) { return o.policy; },
     "what is evicted first: prefix (default), lru, fifo-reinsert or s3fifo"},
    {"statfs", true, set_statfs, [](const StoreOptions& o) -> std::string { return o.statfs_headroom ? "headroom" : "exact"; },
     "what df shows: exact (default), or headroom: what eviction can give back above 70% of the capacity as available"},
    {"scrub", true, set_size<&StoreOptions::scrub_bytes_per_s, 0, 64 * kGiB>, get_size<&StoreOptions::scrub_bytes_per_s>,
     "bytes a second at which chunks are verified, once a week, while no client asks for anything; default 16M; 0: never"},
    {"journal", false, set_journal, get_journal,
     "auto (default): on a network volume blocks, else packed; blocks: each batch by one direct write, padded to 4K"},
    {"index", false, set_index, [](const StoreOptions& o) { return o.index_directory; },
     "directory of the index, on a local file system; default in the volume, or /var/lib/kvcachefs/... for a network volume"},
    {"create", false, set_switch<&StoreOptions::create>, get_switch<&StoreOptions::create>,
     "on (default): a missing or empty VOLUME is made a volume; off: the mount is refused there"},
    {"node", false, set_node, [](const StoreOptions& o) { return o.node; }, "name of this node's part of the volume; default the host name"},
};

const OptionEntry* find_option(std::string_view name) {
  for (const OptionEntry& entry : kOptions)
    if (entry.name == name) return &entry;
  return nullptr;
}

}  // namespace

Status set_store_option(StoreOptions& options, std::string_view name, std::string_view value) {
  const OptionEntry* entry = find_option(name);
  if (entry == nullptr) return fail(Code::kNotFound, fmt::format("unknown option '{}'", name));
  return entry->set(options, name, value);
}

bool store_option_is_live(std::string_view name) {
  const OptionEntry* entry = find_option(name);
  return entry != nullptr && entry->live;
}

std::vector<OptionText> store_options_text(const StoreOptions& options) {
  std::vector<OptionText> listed;
  for (const OptionEntry& entry : kOptions)
    listed.push_back({std::string(entry.name), entry.get(options), entry.live, std::string(entry.help)});
  return listed;
}

Status check_store_options(const StoreOptions& options) {
  if (options.inline_below_bytes > options.pack_below_bytes && options.pack_below_bytes > 0)
    return fail(Code::kInvalid, fmt::format("options inline_below={} and pack_below={}: inline_below must not be the larger",
                                            format_size(options.inline_below_bytes), format_size(options.pack_below_bytes)));
  return {};
}

}  // namespace kvcachefs

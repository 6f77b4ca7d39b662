#include "store/api/live_options.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <fmt/format.h>

namespace kvcachefs {

void resolve_defaults(StoreOptions& options, const OptionDefaults& defaults) {
  if (options.capacity_bytes == 0) options.capacity_bytes = defaults.backing_bytes / 100 * options.capacity_percent;
  if (options.keep_free_bytes == 0) options.keep_free_bytes = defaults.backing_bytes / 100 * options.keep_free_percent;
  if (options.memory_bytes == 0) options.memory_bytes = std::clamp(defaults.memory_bytes / 4, 16 * kMiB, 32 * kGiB);
  if (options.pack_below_bytes == 0)
    options.pack_below_bytes = defaults.network_volume || !options.passthrough ? 32 * kMiB : 4 * kMiB;
  options.pack_below_bytes = std::min(options.pack_below_bytes, options.extent_bytes - kBlockBytes);
}

LiveOptions::LiveOptions(StoreOptions options) : options_(std::move(options)) {}

Status LiveOptions::resolve(const OptionDefaults& defaults, const std::string& index_directory) {
  std::lock_guard lock(mutex_);
  capacity_is_relative_ = options_.capacity_bytes == 0;
  keep_free_is_relative_ = options_.keep_free_bytes == 0;
  resolve_defaults(options_, defaults);
  if (options_.index_directory.empty()) options_.index_directory = index_directory;
  KVC_TRY(check_store_options(options_));
  apply();
  return {};
}

void LiveOptions::subscribe(Subscriber apply) {
  std::lock_guard lock(mutex_);
  apply(options_);
  subscribers_.push_back(std::move(apply));
}

StoreOptions LiveOptions::current() const {
  std::lock_guard lock(mutex_);
  return options_;
}

Status LiveOptions::set(std::string_view name, std::string_view value, const OptionDefaults& defaults) {
  std::lock_guard lock(mutex_);
  StoreOptions changed = options_;
  KVC_TRY(set_store_option(changed, name, value));  // first: the advice below must not name a value that a mount refuses
  if (!store_option_is_live(name))
    return fail(Code::kInvalid, fmt::format("option '{}' cannot be changed while mounted; unmount and mount with -o {}={}", name,
                                            name, value));
  const bool capacity_is_relative = name == "capacity" ? changed.capacity_bytes == 0 : capacity_is_relative_;
  const bool keep_free_is_relative = name == "keep_free" ? changed.keep_free_bytes == 0 : keep_free_is_relative_;
  resolve_defaults(changed, defaults);
  KVC_TRY(check_store_options(changed));
  options_ = std::move(changed);
  capacity_is_relative_ = capacity_is_relative;
  keep_free_is_relative_ = keep_free_is_relative;
  apply();
  return {};
}

bool LiveOptions::follow(const OptionDefaults& defaults) {
  std::lock_guard lock(mutex_);
  if (!capacity_is_relative_ && !keep_free_is_relative_) return false;
  if (capacity_is_relative_) options_.capacity_bytes = 0;
  if (keep_free_is_relative_) options_.keep_free_bytes = 0;
  resolve_defaults(options_, defaults);
  apply();
  return true;
}

void LiveOptions::apply() {
  durability_ = options_.durability;
  shows_headroom_ = options_.statfs_headroom;
  pack_below_bytes_ = options_.pack_below_bytes;
  memory_file_min_bytes_ = options_.memory_file_min_bytes;
  inline_below_bytes_ = options_.inline_below_bytes;
  raw_above_bytes_ = options_.raw_above_bytes;
  flush_interval_ms_ = options_.flush_interval_ms;
  for (const Subscriber& subscriber : subscribers_) subscriber(options_);
}

}  // namespace kvcachefs

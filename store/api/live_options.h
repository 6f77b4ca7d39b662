// The options in force. Some are fixed once the store has started; the others (OptionText::live) can be changed while it runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "store/api/options.h"
#include "store/base/mutex.h"
#include "store/base/result.h"

namespace kvcachefs {

// The facts of the machine and the volume from which defaults follow.
struct OptionDefaults {
  uint64_t backing_bytes = 0;     // size of the backing file system
  uint64_t memory_bytes = 0;      // RAM of the machine, or the limit of the control group if that is less
  bool network_volume = false;
};

// Replaces each 0 that stands for "the default" by that default.
void resolve_defaults(StoreOptions& options, const OptionDefaults& defaults);

// Thread-safe. Owns the options. mutex_ comes before every other lock of the store, because the subscribers run under it.
class LiveOptions {
 public:
  using Subscriber = std::function<void(const StoreOptions&)>;

  explicit LiveOptions(StoreOptions options);

  // Fills in the defaults; `index_directory` if that option is empty. Called at the start, before there is any other thread.
  Status resolve(const OptionDefaults& defaults, const std::string& index_directory);
  // Calls `apply` at once, and after each change with the options then in force. `apply` must not call back into this class.
  void subscribe(Subscriber apply);

  StoreOptions current() const;
  // Changes a live option, given as text. After an error nothing has changed.
  Status set(std::string_view name, std::string_view value, const OptionDefaults& defaults);
  // The size of the backing file system changed: adjusts options that were given as a percentage. False: there are none.
  bool follow(const OptionDefaults& defaults);

  // For hot paths; these take no lock.
  bool durable_close() const { return durability_.load(std::memory_order_relaxed) != Durability::kNone; }
  bool durable_sync() const { return durability_.load(std::memory_order_relaxed) == Durability::kSync; }
  bool shows_headroom() const { return shows_headroom_.load(std::memory_order_relaxed); }
  uint64_t pack_below_bytes() const { return pack_below_bytes_.load(std::memory_order_relaxed); }
  uint64_t memory_file_min_bytes() const { return memory_file_min_bytes_.load(std::memory_order_relaxed); }
  uint64_t inline_below_bytes() const { return inline_below_bytes_.load(std::memory_order_relaxed); }
  uint64_t raw_above_bytes() const { return raw_above_bytes_.load(std::memory_order_relaxed); }
  uint64_t flush_interval_ms() const { return flush_interval_ms_.load(std::memory_order_relaxed); }

 private:
  void apply();  // mutex_ held

  mutable Mutex<LockRank::kOptions> mutex_;
  StoreOptions options_;
  bool capacity_is_relative_ = false, keep_free_is_relative_ = false;  // given as percentages, or left at the default
  std::vector<Subscriber> subscribers_;
  std::atomic<Durability> durability_{Durability::kNone};
  std::atomic<bool> shows_headroom_{false};
  std::atomic<uint64_t> pack_below_bytes_{0}, memory_file_min_bytes_{0}, inline_below_bytes_{0}, raw_above_bytes_{0},
      flush_interval_ms_{200};
};

}  // namespace kvcachefs

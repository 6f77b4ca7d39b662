#include "fs/name_invalidator.h"

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <linux/fuse.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <utility>

#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/thread.h"

namespace kvcachefs {

namespace {
constexpr int kRaiseEpoch = 8;  // FUSE_NOTIFY_INC_EPOCH, which older headers do not have
constexpr int64_t kKnownNs = 2'000'000'000;
constexpr std::chrono::seconds kForgottenAfter{10};  // longest caching of names on a shared volume: kSharedDirectoryTimeoutSeconds (driver.h)
}  // namespace

void NameInvalidator::start(fuse_session* session, NodesOf nodes_of) {
  session_ = session;
  nodes_of_ = std::move(nodes_of);
  auto started = start_thread("kvc-names", [this] { work(); });
  // Without the thread the kernel uses evicted names for up to a second.
  if (!started) return log::warn("no thread to tell the kernel of evicted names: {}", started.error().message);
  thread_ = *std::move(started);
}

void NameInvalidator::add(std::vector<GoneName> names) {
  const int64_t listed_ns = listed_ns_.load(std::memory_order_relaxed);
  const bool listed = listed_ns != INT64_MIN && system_clock().monotonic_ns() - listed_ns < kKnownNs;
  if (!listed) std::erase_if(names, [](const GoneName& name) { return !name.known; });
  if (names.empty()) return;
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || !thread_.joinable()) return;
    names_.insert(names_.end(), std::make_move_iterator(names.begin()), std::make_move_iterator(names.end()));
  }
  ready_.notify_one();
}

void NameInvalidator::forget_all(std::move_only_function<void()> then) {
  {
    std::lock_guard lock(mutex_);
    if (!stopping_ && thread_.joinable()) {
      asked_.push_back(std::move(then));
      return ready_.notify_one();
    }
  }
  then();
}

void NameInvalidator::note_listing() { listed_ns_.store(system_clock().monotonic_ns(), std::memory_order_relaxed); }

void NameInvalidator::raise_epoch() {
  const fuse_out_header header{.len = sizeof header, .error = kRaiseEpoch, .unique = 0};
  if (::write(fuse_session_fd(session_), &header, sizeof header) >= 0 || (errno != EINVAL && errno != ENOSYS)) return;
  has_epochs_ = false;
  log::debug("the kernel has no epochs: evicted names stay known for a second");
}

void NameInvalidator::work() {
  while (true) {
    std::vector<GoneName> names;
    std::vector<std::move_only_function<void()>> asked;
    {
      std::unique_lock lock(mutex_);
      ready_.wait(lock, [&] { return stopping_ || !names_.empty() || !asked_.empty(); });
      if (stopping_) break;
      names.swap(names_);
      asked.swap(asked_);
    }
    if (has_epochs_) raise_epoch();
    if (!has_epochs_ && !asked.empty()) {
      std::unique_lock lock(mutex_);
      ready_.wait_for(lock, kForgottenAfter, [&] { return stopping_; });
    }
    for (auto& then : asked) then();
    for (const GoneName& name : names)
      for (const uint64_t node : nodes_of_(name.id)) fuse_lowlevel_notify_inval_inode(session_, node, -1, 0);
  }
  std::vector<std::move_only_function<void()>> asked;
  {
    std::lock_guard lock(mutex_);
    asked.swap(asked_);
  }
  for (auto& then : asked) then();
}

void NameInvalidator::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_one();
  if (thread_.joinable()) thread_.join();
}

}  // namespace kvcachefs

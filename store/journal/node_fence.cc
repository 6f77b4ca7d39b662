#include "store/journal/node_fence.h"

#include <algorithm>
#include <ctime>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/journal/removed_nodes.h"

namespace kvcachefs {

int64_t boottime_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

NodeFence::NodeFence(std::shared_ptr<Volume> volume, FileIdentity own, int64_t limit_ns, Now now)
    : volume_(std::move(volume)), own_(std::move(own)), limit_ns_(limit_ns), now_(std::move(now)), heard_ns_(now_()), looked_ns_(heard_ns_.load()) {}

void NodeFence::heard_of() {
  if (!is_due()) heard_ns_.store(now_(), std::memory_order_relaxed);
}

Status NodeFence::check() {
  if (is_lost()) return lost_error();
  return is_due() ? look() : Status();
}

Status NodeFence::check_now_and_then() {
  if (is_lost()) return lost_error();
  return is_due() || now_() - looked_ns_.load(std::memory_order_relaxed) >= limit_ns_ / 3 ? look() : Status();
}

// Uses listings: a client of a network file system would remember that a name was absent.
Status NodeFence::look() {
  const int64_t begun_ns = now_();
  KVC_ASSIGN(const auto epochs, list_epochs(*volume_, own_.node));
  KVC_ASSIGN(const uint32_t removed, last_removed_epoch(*volume_, own_.node));
  const uint32_t last = std::max(removed, epochs.empty() ? 0 : epochs.back());
  if (last > own_.epoch || (epochs.empty() && removed >= own_.epoch)) return lost(last);
  heard_ns_.store(begun_ns, std::memory_order_relaxed);
  looked_ns_.store(begun_ns, std::memory_order_relaxed);
  return {};
}

std::unexpected<Error> NodeFence::lost(uint32_t epoch) {
  if (lost_.exchange(true)) return lost_error();
  log::error("{} (epoch {}, this one's is {}). Nothing is published any more, and this daemon ends: what it had accepted and not written yet is lost. "
             "Mount the volume again, with another -o node= if another daemon serves this node now",
             lost_error().error().message, epoch, own_.epoch);
  std::function<void()> then;
  {
    const std::lock_guard lock(mutex_);
    then = std::exchange(then_, nullptr);
  }
  if (then) then();
  return lost_error();
}

std::unexpected<Error> NodeFence::lost_error() const {
  return fail(Code::kIo, fmt::format("volume {}: node '{}' was taken over or removed while this daemon was away", volume_->root(), own_.node));
}

void NodeFence::on_lost(std::function<void()> then) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_lost()) {
      then_ = std::move(then);
      return;
    }
  }
  then();
}

}  // namespace kvcachefs

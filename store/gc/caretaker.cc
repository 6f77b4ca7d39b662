#include "store/gc/caretaker.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/base/node_name.h"
#include "store/base/thread.h"
#include "store/base/units.h"
#include "store/gc/node_wanted.h"
#include "store/volume/volume.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kMemoryBytes = 32 * kMiB;  // nothing is cached
constexpr std::chrono::milliseconds kStep(200);
constexpr int64_t kReadPeersMs = 120'000;

// The options of this daemon count for what it does for others, too.
StoreOptions options_for(const std::string& node, const StoreOptions& own, const std::string& own_node) {
  StoreOptions options = own;
  options.node = node;
  options.memory_bytes = kMemoryBytes;
  options.durability = Durability::kNone;
  options.prefetch = false;
  options.scrub_bytes_per_s = 0;
  options.passthrough = false;
  options.memory_file_min_bytes = 0;
  options.index_directory.clear();
  options.background = true;
  options.care = Care::kTend;
  options.tended_by = own_node;
  return options;
}

// Where nodes are tended in turn, by all who live: the greater first. The same on each of them.
size_t rank_of(const std::string& by, const std::string& node) { return std::hash<std::string>()(by + "\n" + node); }

std::string indexes_of_tended(const StoreStatus& own) { return own.index_directory + "-tended"; }

}  // namespace

// One node's part, while it is open here.
class Caretaker::Turn {
 public:
  Turn(Caretaker& owner, std::string node) : owner_(owner), node_(std::move(node)) {}
  Status open(const StoreStatus& own);
  void run();
  Status close();

  bool gave_way() const { return gave_way_; }
  bool was_in_vain() const { return in_vain_; }  // what the node has is younger than what others evict
  uint64_t returned_bytes() const { return returned_bytes_; }
  const StoreStatus::Evicted& evicted() const { return evicted_; }
  uint32_t epoch() const { return epoch_; }

 private:
  bool goes_on();
  bool wait() { return owner_.wakeup_.wait_for(kStep), goes_on(); }
  void read_peers();
  void note_evicted(const StoreStatus& here);
  int64_t now_ms() const { return owner_.now_ms(); }

  Caretaker& owner_;
  const std::string node_;
  std::shared_ptr<Volume> volume_;
  std::unique_ptr<Store> store_;
  std::atomic<bool> lost_{false};
  bool gave_way_ = false, in_vain_ = false;
  int64_t asked_ms_ = 0;
  uint32_t epoch_ = 0;
  uint64_t before_bytes_ = 0, returned_bytes_ = 0, known_objects_ = 0;
  StoreStatus::Evicted evicted_;
};

Status Caretaker::Turn::open(const StoreStatus& own) {
  KVC_ASSIGN(volume_, open_posix_volume(own.volume_root, {}));
  StoreOptions options = options_for(node_, owner_.store_.options(), own.node);
  // On a network volume an index on this machine; else where the node has it by default.
  if (own.network_volume) options.index_directory = indexes_of_tended(own) + "/" + node_;
  KVC_ASSIGN(store_, open_store(volume_, options, owner_.clock_,
                                fmt::format("pid={} host={}{}node={}", getpid(), node_name_of_host(), kTendedHolder, own.node)));
  store_->set_node_lost([this] { lost_ = true; });
  const StoreStatus begun = store_->status();
  epoch_ = begun.epoch;
  before_bytes_ = begun.physical_bytes;
  return prepare_wanted(*volume_, node_);
}

// Once a second it is looked whether the node's daemon wants it.
bool Caretaker::Turn::goes_on() {
  constexpr int64_t kAskedMs = 1'000;
  if (owner_.stopping_ || lost_ || gave_way_) return false;
  if (now_ms() - asked_ms_ < kAskedMs) return true;
  asked_ms_ = now_ms();
  gave_way_ = is_node_wanted(*volume_, node_);
  return !gave_way_;
}

// What they said of this node's files is answered as it is read.
void Caretaker::Turn::read_peers() {
  const auto answer = std::make_shared<std::promise<Status>>();
  auto read = answer->get_future();
  store_->refresh([answer](Status status) { answer->set_value(std::move(status)); });
  const int64_t until_ms = now_ms() + kReadPeersMs;
  while (read.wait_for(std::chrono::seconds(0)) != std::future_status::ready && now_ms() < until_ms)
    if (!wait()) return;
}

void Caretaker::Turn::run() {
  read_peers();
  const Times& times = owner_.times_;
  const int64_t begun_ms = now_ms();
  int64_t went_ms = begun_ms;
  std::optional<int64_t> short_ms = owner_.short_ms_, over_ms;
  while (goes_on()) {
    const StoreStatus here = store_->status(), own = owner_.store_.status();
    const int64_t now = now_ms();
    const bool evicted = here.eviction_bytes != evicted_.bytes;
    const bool filled = std::exchange(known_objects_, here.eviction_known_objects) < here.eviction_known_objects;
    if (evicted || filled) went_ms = now;
    if (evicted) note_evicted(here);
    if (own.capacity_is_short) short_ms = now;
    const bool is_short = short_ms && now - *short_ms < times.short_lately_ms;
    const bool is_idle = now - went_ms >= times.idle_ms;
    in_vain_ = is_short && is_idle && evicted_.bytes == 0;
    // Then what is dead is waited for.
    if (now - begun_ms < times.settled_ms || (is_short && !is_idle)) over_ms.reset();
    else if (!over_ms) over_ms = now;
    const bool gave_back = here.held_for_peers_bytes == 0 && here.reclaimable_bytes == 0;
    if (over_ms && (gave_back || now - *over_ms >= times.give_back_ms)) return;
    wait();
  }
}

void Caretaker::Turn::note_evicted(const StoreStatus& here) {
  const std::lock_guard lock(owner_.mutex_);
  owner_.status_.evicted_objects += here.eviction_objects - std::exchange(evicted_.objects, here.eviction_objects);
  owner_.status_.evicted_bytes += here.eviction_bytes - std::exchange(evicted_.bytes, here.eviction_bytes);
}

Status Caretaker::Turn::close() {
  const StoreStatus last = store_->status();
  note_evicted(last);
  const uint64_t left = last.physical_bytes;
  Status closed = store_->close();
  store_.reset();
  returned_bytes_ = before_bytes_ - std::min(before_bytes_, left);
  return closed;
}

Caretaker::Caretaker(Store& store, Clock& clock, Times times) : store_(store), clock_(clock), times_(times) {}

void Caretaker::start() {
  thread_ = start_thread("kvc-caretaker", [this] { run(); });
}

void Caretaker::stop() {
  stopping_ = true;
  wakeup_.wake();
  if (thread_.joinable()) thread_.join();
}

CaretakerStatus Caretaker::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

// They are made anew from the node's checkpoint, and kept only between turns that follow each other.
void Caretaker::remove_indexes() {
  const StoreStatus own = store_.status();
  std::error_code ignored;
  if (own.network_volume) std::filesystem::remove_all(indexes_of_tended(own), ignored);
}

void Caretaker::run() {
  remove_indexes();  // after a crash
  while (!stopping_) {
    wakeup_.wait_for(std::chrono::milliseconds(times_.look_ms));
    const StoreOptions options = store_.options();
    if (stopping_ || options.adopt_after_s == 0 || options.read_only) continue;
    const StoreStatus status = store_.status();
    if (status.peers.empty()) continue;
    if (const auto node = choose(status, options)) tend(*node, status);
  }
}

// A turn here made it seem to live meanwhile.
int64_t Caretaker::gone_for_ms(const StoreStatus::Peer& peer) const {
  const auto known = nodes_.find(peer.node);
  if (known == nodes_.end() || known->second.own_epoch != peer.epoch) return peer.stands_ms;
  return std::max(peer.stands_ms, now_ms() - known->second.gone_since_ms);
}

// The one that is gone for longest, of those for which something is to be done.
std::optional<std::string> Caretaker::choose(const StoreStatus& status, const StoreOptions& options) {
  const int64_t now = now_ms();
  if (status.capacity_is_short) short_ms_ = now;
  const bool is_short = options.evict && short_ms_ && now - *short_ms_ < times_.short_lately_ms;
  const int64_t after_ms = std::max<int64_t>(static_cast<int64_t>(options.adopt_after_s) * 1'000, status.network_volume ? times_.stood_ms : 0);
  std::erase_if(nodes_, [&](const auto& each) { return std::ranges::find(status.peers, each.first, &StoreStatus::Peer::node) == status.peers.end(); });
  const StoreStatus::Peer* chosen = nullptr;
  for (const StoreStatus::Peer& peer : status.peers) {
    if (peer.state != "silent" && peer.state != "absent") continue;
    if (const auto known = nodes_.find(peer.node); known != nodes_.end() && now < known->second.try_after_ms) continue;
    const bool is_needed = (is_short && peer.physical_bytes > 0) || peer.is_unanswered;
    const auto earlier = std::ranges::count_if(status.peers, [&](const StoreStatus::Peer& other) {
      return other.state == "live" && rank_of(other.node, peer.node) > rank_of(status.node, peer.node);
    });
    const int64_t gone_ms = gone_for_ms(peer);
    if (!is_needed || gone_ms < after_ms + earlier * times_.turn_of_each_ms) continue;
    if (chosen == nullptr || gone_ms > gone_for_ms(*chosen)) chosen = &peer;
  }
  if (chosen == nullptr) return std::nullopt;
  return chosen->node;
}

void Caretaker::tend(const std::string& name, const StoreStatus& status) {
  const auto peer = std::ranges::find(status.peers, name, &StoreStatus::Peer::node);
  Node& node = nodes_[name];
  const int64_t gone_since_ms = now_ms() - gone_for_ms(*peer);
  const auto note_problem = [&](const Status& result) {
    node.pause_ms = std::clamp(2 * node.pause_ms, times_.in_vain_ms, times_.in_vain_most_ms);
    const std::lock_guard lock(mutex_);
    status_.problem = result ? std::string() : fmt::format("node {}: {}", name, result.error().message);
  };
  Turn turn(*this, name);
  if (Status opened = turn.open(status); !opened) {
    const bool is_busy = opened.error().code == Code::kBusy;  // its daemon is there, but stands still; or another node was first
    if (!is_busy) {
      log::warn("node {}, whose daemon is gone, cannot be tended: {}", name, opened.error().message);
      note_problem(opened);
    }
    node.try_after_ms = now_ms() + (is_busy ? times_.in_vain_ms : node.pause_ms);
    return;
  }
  log::info("node {} does not run since {} s: it is tended here, as {}", name, (now_ms() - gone_since_ms) / 1'000,
            peer->is_unanswered ? "others removed files of it" : "the capacity is short");
  {
    const std::lock_guard lock(mutex_);
    status_.tends = name;
    ++status_.turns;
  }
  turn.run();
  const Status closed = turn.close();
  if (!closed) log::warn("node {}, tended here: {}", name, closed.error().message);
  log::info("node {} was tended: {} objects, {} evicted; {} came back{}", name, turn.evicted().objects, format_size(turn.evicted().bytes),
            format_size(turn.returned_bytes()), turn.gave_way() ? "; its daemon begins" : "");
  const bool goes_on = closed && !turn.was_in_vain() && !turn.gave_way() && !stopping_;
  if (!goes_on) remove_indexes();
  node.own_epoch = turn.epoch();
  node.gone_since_ms = gone_since_ms;
  if (closed && !turn.was_in_vain()) node.pause_ms = 0;
  else note_problem(closed);
  node.try_after_ms = now_ms() + std::max(node.pause_ms, times_.again_ms);
  const std::lock_guard lock(mutex_);
  status_.tends.clear();
  if (closed) status_.problem.clear();
  status_.returned_bytes += turn.returned_bytes();
}

}  // namespace kvcachefs

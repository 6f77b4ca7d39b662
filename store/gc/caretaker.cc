#include "store/gc/caretaker.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <mutex>
#include <ranges>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "store/base/bytes.h"
#include "store/base/checksum.h"
#include "store/base/log.h"
#include "store/base/node_name.h"
#include "store/base/thread.h"
#include "store/base/units.h"
#include "store/gc/collect_node.h"
#include "store/gc/node_wanted.h"
#include "store/peers/idle_part.h"
#include "store/volume/lock_probe.h"
#include "store/volume/volume.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kTurnMemoryBytes = 32 * kMiB;  // nothing is cached
constexpr int64_t kReadPeersMs = 300'000;

// This daemon's options apply to what it does for others, too. Nothing is evicted before it is known what others use of the node.
StoreOptions options_for(const std::string& node, const StoreOptions& own, const std::string& own_node) {
  StoreOptions options = own;
  options.node = node;
  options.memory_bytes = kTurnMemoryBytes;
  options.durability = Durability::kNone;
  options.evict = false;
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

int64_t adopt_after_ms(const StoreOptions& options) { return static_cast<int64_t>(options.adopt_after_s) * 1'000; }

std::string holder(const std::string& own_node) { return fmt::format("pid={} host={}{}node={}", getpid(), node_name_of_host(), kTendedHolder, own_node); }

const StoreStatus::Peer* find_peer(const StoreStatus& status, const std::string& node) {
  const auto found = std::ranges::find(status.peers, node, &StoreStatus::Peer::node);
  return found == status.peers.end() ? nullptr : &*found;
}

}  // namespace

uint64_t rank_of(const std::string& by, const std::string& node) { return checksum(as_bytes(by + "\n" + node)); }

// One node's part, while it is open here.
class Caretaker::Turn {
 public:
  Turn(Caretaker& owner, std::string node) : owner_(owner), node_(std::move(node)) {}
  // `index_directory` empty: where the node has it by default.
  Status open(const StoreStatus& own, const std::string& index_directory);
  void run(bool is_short);
  Status close();

  bool gave_way() const { return gave_way_; }
  bool did_anything() const { return evicted_.bytes > 0 || returned_bytes_ > 0 || answered_; }
  uint64_t returned_bytes() const { return returned_bytes_; }
  const StoreStatus::Evicted& evicted() const { return evicted_; }
  uint32_t epoch() const { return epoch_; }

 private:
  bool goes_on();
  bool read_peers();
  void note_evicted(const StoreStatus& here);
  int64_t now_ms() const { return owner_.now_ms(); }

  Caretaker& owner_;
  const std::string node_;
  std::atomic<bool> lost_{false};  // outlives the store, which sets it
  std::unique_ptr<Store> store_;
  bool was_unanswered_ = false, gave_way_ = false, answered_ = false;
  uint32_t epoch_ = 0;
  uint64_t before_bytes_ = 0, returned_bytes_ = 0, known_objects_ = 0;
  StoreStatus::Evicted evicted_;
};

Status Caretaker::Turn::open(const StoreStatus& own, const std::string& index_directory) {
  KVC_ASSIGN(auto volume, open_posix_volume(own.volume_root, {}));
  StoreOptions options = options_for(node_, owner_.store_.options(), own.node);
  options.index_directory = index_directory;
  KVC_ASSIGN(store_, open_store(std::move(volume), options, owner_.clock_,
                                holder(own.node)));
  store_->set_node_lost([this] { lost_ = true; });
  const StoreStatus begun = store_->status();
  epoch_ = begun.epoch;
  before_bytes_ = begun.physical_bytes;
  const StoreStatus::Peer* const peer = find_peer(own, node_);
  was_unanswered_ = peer != nullptr && peer->is_unanswered;
  if (Status made = prepare_wanted(*owner_.volume_, node_); !made) log::warn("node {}: {}", node_, made.error().message);
  return {};
}

// Waits for a second, or for the end; then checks whether the node's daemon wants the node.
bool Caretaker::Turn::goes_on() {
  if (!owner_.stopping_) owner_.wakeup_.wait_for(std::chrono::milliseconds(owner_.times_.step_ms));
  if (owner_.stopping_ || lost_) return false;
  gave_way_ = is_node_wanted(*owner_.volume_, node_);
  return !gave_way_;
}

// Statements of peers about this node's files are answered as they are read. False: not all were read.
bool Caretaker::Turn::read_peers() {
  const auto answer = std::make_shared<std::promise<Status>>();
  auto read = answer->get_future();
  store_->refresh([answer](Status status) { answer->set_value(std::move(status)); });
  const int64_t until_ms = now_ms() + kReadPeersMs;
  while (read.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    if (now_ms() >= until_ms || !goes_on()) return false;
  return read.get().has_value();
}

void Caretaker::Turn::run(bool is_short) {
  const bool has_read = read_peers();
  const Times& times = owner_.times_;
  const int64_t begun_ms = now_ms();
  int64_t went_ms = begun_ms;
  std::optional<int64_t> short_ms, over_ms;
  if (is_short) short_ms = begun_ms;
  bool evicts = false;
  while (goes_on()) {
    const auto own = owner_.own_status();
    const StoreOptions options = owner_.store_.options();
    if (!own || options.adopt_after_s == 0) return;
    const StoreStatus here = store_->status();
    const int64_t now = now_ms();
    if (here.eviction_bytes != evicted_.bytes || std::exchange(known_objects_, here.eviction_known_objects) < here.eviction_known_objects) went_ms = now;
    note_evicted(here);
    if (own->capacity_is_short && options.evict) short_ms = now;
    const bool wants_room = has_read && short_ms && now - *short_ms < times.short_lately_ms;
    // This is a new life of the node, so others tell once more what they use of it.
    if (wants_room && !evicts && now - begun_ms >= times.uses_ms) {
      evicts = store_->set_option("evict", "on").has_value();
      went_ms = now;
    }
    if (evicts && !options.evict) evicts = !store_->set_option("evict", "off").has_value();
    const bool is_needed = wants_room && now - went_ms < times.idle_ms;
    const bool makes_way = now - begun_ms >= times.most_ms;  // for other nodes that wait for their turn
    if (now - begun_ms < times.settled_ms || (is_needed && !makes_way)) over_ms.reset();
    else if (!over_ms) over_ms = now;
    const bool gave_back = here.held_for_peers_bytes == 0 && here.reclaimable_bytes == 0;
    const StoreStatus::Peer* const peer = find_peer(*own, node_);
    answered_ = was_unanswered_ && peer != nullptr && !peer->is_unanswered;
    if (over_ms && (gave_back || now - *over_ms >= times.give_back_ms)) return;
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
  Status closed = store_->close();
  store_.reset();
  returned_bytes_ = before_bytes_ - std::min(before_bytes_, last.physical_bytes);
  return closed;
}

Caretaker::Caretaker(Store& store, Clock& clock, Times times) : store_(store), clock_(clock), times_(times) {}

void Caretaker::start() {
  auto started = start_thread("kvc-caretaker", [this] { run(); });
  if (started) {
    thread_ = std::move(*started);
    return;
  }
  log::warn("nodes whose daemons are gone are not tended here: {}", started.error().message);
  tell_problem(std::move(started.error().message));
}

void Caretaker::end_soon() {
  stopping_ = true;
  wakeup_.wake();
  const std::lock_guard lock(own_mutex_);
  own_is_gone_ = true;
}

void Caretaker::stop() {
  end_soon();
  if (thread_.joinable()) thread_.join();
}

CaretakerStatus Caretaker::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void Caretaker::tell_problem(std::string problem) {
  const std::lock_guard lock(mutex_);
  status_.problem = std::move(problem);
}

std::optional<StoreStatus> Caretaker::own_status() {
  const std::lock_guard lock(own_mutex_);
  if (own_is_gone_) return std::nullopt;
  return store_.status();
}

void Caretaker::run() {
  if (const auto own = own_status()) indexes_ = own->index_directory + "~tended";  // no node has such a name, so it is no other daemon's
  else return;
  remove_index();  // of a daemon that was killed
  while (!stopping_) {
    wakeup_.wait_for(std::chrono::milliseconds(times_.look_ms));
    const StoreOptions options = store_.options();
    if (stopping_ || options.adopt_after_s == 0 || options.read_only) continue;
    const auto own = own_status();
    // Where locks end at the machine, a free lock proves nothing.
    if (!own || own->peers.empty() || own->locks_are_local) continue;
    if (!volume_) {
      auto opened = open_posix_volume(own->volume_root, {});
      tell_problem(opened ? std::string() : opened.error().message);
      if (!opened) continue;
      volume_ = std::move(*opened);
    }
    give_back_idle_parts(*own, options);
    if (const auto node = choose(*own, options)) tend(*node, *own);
    else if (const auto leaves = choose_to_leave(*own, options)) take_out_if_empty(*leaves, *own);
    else if (!index_of_.empty() && now_ms() - tended_ms_ >= times_.index_ms) remove_index();
  }
  remove_index();
}

// --- which node ---

bool Caretaker::was_short_lately() const { return short_ms_ && now_ms() - *short_ms_ < times_.short_lately_ms; }

// A turn here made the node seem to live meanwhile: that time counts as gone.
int64_t Caretaker::gone_for_ms(const StoreStatus::Peer& peer) const {
  const auto known = nodes_.find(peer.node);
  if (known == nodes_.end() || known->second.own_epoch != peer.epoch) return peer.stands_ms;
  return std::max(peer.stands_ms, now_ms() - known->second.gone_since_ms);
}

// The living nodes try in turn.
bool Caretaker::is_gone_for(const StoreStatus& status, const StoreStatus::Peer& peer, int64_t after_ms) const {
  if (peer.state != "silent" && peer.state != "absent" && peer.state != "held") return false;
  const auto earlier = std::ranges::count_if(status.peers, [&](const StoreStatus::Peer& other) {
    return other.state == "live" && rank_of(other.node, peer.node) > rank_of(status.node, peer.node);
  });
  return gone_for_ms(peer) >= std::max(after_ms, status.network_volume ? times_.stood_ms : 0) + earlier * times_.turn_of_each_ms;
}

// Of the nodes that need a turn, the one for which nothing was tried for longest.
std::optional<std::string> Caretaker::choose(const StoreStatus& status, const StoreOptions& options) {
  const int64_t now = now_ms();
  if (status.capacity_is_short) short_ms_ = now;
  const bool is_short = options.evict && was_short_lately();
  std::erase_if(nodes_, [&](const auto& each) { return find_peer(status, each.first) == nullptr; });
  const auto urgency = [&](const StoreStatus::Peer& peer) {  // smaller is sooner
    const auto known = nodes_.find(peer.node);
    return std::tuple(known == nodes_.end() ? INT64_MIN : known->second.tried_ms, -gone_for_ms(peer));
  };
  const StoreStatus::Peer* chosen = nullptr;
  for (const StoreStatus::Peer& peer : status.peers) {
    if (const auto known = nodes_.find(peer.node); known != nodes_.end() && now < known->second.try_after_ms) continue;
    const bool is_needed = (is_short && peer.objects > 0) || peer.is_unanswered || peer.state == "held";
    if (!is_needed || !is_gone_for(status, peer, adopt_after_ms(options))) continue;
    if (chosen == nullptr || urgency(peer) < urgency(*chosen)) chosen = &peer;
  }
  if (chosen == nullptr) return std::nullopt;
  return chosen->node;
}

std::optional<std::string> Caretaker::choose_to_leave(const StoreStatus& status, const StoreOptions& options) const {
  const int64_t after_ms = std::max(times_.leaves_ms, adopt_after_ms(options));
  for (const StoreStatus::Peer& peer : status.peers) {
    const auto known = nodes_.find(peer.node);
    const bool is_due = known == nodes_.end() || now_ms() >= std::max(known->second.look_for_files_ms, known->second.try_after_ms);
    if (is_due && peer.objects == 0 && peer.state != "held" && !peer.is_unanswered && is_gone_for(status, peer, after_ms)) return peer.node;
  }
  return std::nullopt;
}

// --- what is done for it ---

// On a network volume, and where the node has its index elsewhere, the index of a turn is beside this daemon's own. It is made from the node's
// checkpoint, and kept for a while for the next turn of the same node.
std::string Caretaker::index_for(const StoreStatus& status, const std::string& name) {
  std::error_code error;
  if (!status.network_volume && std::filesystem::exists(fmt::format("{}/nodes/{}/index", status.volume_root, name), error)) return {};
  if (index_of_ != name) remove_index();
  index_of_ = name;
  return indexes_ + "/" + name;
}

void Caretaker::remove_index() {
  std::error_code ignored;
  std::filesystem::remove_all(indexes_, ignored);
  index_of_.clear();
}

// Whether another process has the node: a daemon that stands still, another caretaker, a command; or its own daemon, which begins and was let in first.
bool Caretaker::is_taken(const std::string& name) {
  const auto nodes = volume_->list("nodes");
  const bool there = nodes && std::ranges::any_of(*nodes, [&](const DirectoryEntry& entry) { return entry.is_directory && entry.name == name; });
  return !there || is_locked(*volume_, "nodes/" + name + "/LOCK").value_or(true) || is_node_wanted(*volume_, name);
}

// This needs no turn, and no shortage: it is done once for each life of a node, in milliseconds.
void Caretaker::give_back_idle_parts(const StoreStatus& status, const StoreOptions& options) {
  for (const StoreStatus::Peer& peer : status.peers) {
    if (stopping_) return;
    if (!is_gone_for(status, peer, adopt_after_ms(options))) continue;
    Node& node = nodes_[peer.node];
    if (node.idle_epoch == peer.epoch || now_ms() < node.look_for_idle_ms) continue;
    node.look_for_idle_ms = now_ms() + times_.in_vain_ms;
    if (holds_for_nothing(*volume_, peer.node)) {
      if (is_taken(peer.node)) continue;
      const auto given = give_back_idle(*volume_, peer.node, holder(status.node));
      if (!given) {
        if (given.error().code != Code::kBusy) log::warn("node {}, whose daemon is gone, keeps what it holds for that: {}", peer.node, given.error().message);
        continue;
      }
      log::info("node {} does not run since {} s: {} that were held for its daemon came back", peer.node, gone_for_ms(peer) / 1'000, format_size(*given));
      const std::lock_guard lock(mutex_);
      status_.returned_bytes += *given;
    }
    node.idle_epoch = peer.epoch;
  }
}

void Caretaker::tend(const std::string& name, const StoreStatus& status) {
  const StoreStatus::Peer* const peer = find_peer(status, name);
  Node& node = nodes_[name];
  const int64_t gone_since_ms = now_ms() - gone_for_ms(*peer);
  const auto pause = [&](bool went_well) {
    node.pause_ms = went_well ? 0 : std::clamp(2 * node.pause_ms, times_.in_vain_ms, times_.in_vain_most_ms);
    node.tried_ms = now_ms();
    node.try_after_ms = node.tried_ms + std::max(node.pause_ms, times_.again_ms);
  };
  const auto tell = [&](std::string tends, const Status& result) {
    const std::lock_guard lock(mutex_);
    status_.turns += tends.empty() ? 0 : 1;
    status_.tends = std::move(tends);
    status_.problem = result ? std::string() : fmt::format("node {}: {}", name, result.error().message);
  };
  node.tried_ms = now_ms();
  node.try_after_ms = node.tried_ms + times_.in_vain_ms;
  if (is_taken(name)) return;
  Turn turn(*this, name);
  if (Status opened = turn.open(status, index_for(status, name)); !opened) {
    if (opened.error().code == Code::kBusy) return;
    log::warn("node {}, whose daemon is gone, cannot be tended: {}", name, opened.error().message);
    tell({}, opened);
    return pause(false);
  }
  log::info("node {} does not run since {} s: it is tended here, as {}", name, (now_ms() - gone_since_ms) / 1'000,
            peer->is_unanswered ? "others removed files of it" : peer->state == "held" ? "others wait for a checkpoint of it" : "the capacity is short");
  tell(name, {});
  turn.run(was_short_lately());
  const Status closed = turn.close();
  tended_ms_ = now_ms();
  if (!closed) log::warn("node {}, tended here: {}", name, closed.error().message);
  log::info("node {} was tended: {} objects, {} evicted; {} came back{}", name, turn.evicted().objects, format_size(turn.evicted().bytes),
            format_size(turn.returned_bytes()), turn.gave_way() ? "; its daemon begins" : "");
  node.own_epoch = turn.epoch();
  node.gone_since_ms = gone_since_ms;
  pause(closed && turn.did_anything());
  tell({}, closed);
  const std::lock_guard lock(mutex_);
  status_.returned_bytes += turn.returned_bytes();
}

// --- a node without files ---

// Looks under the node's lock both times: a node whose daemon has stored something in between stays.
void Caretaker::take_out_if_empty(const std::string& name, const StoreStatus& status) {
  Node& node = nodes_[name];
  const int64_t gone_min = gone_for_ms(*find_peer(status, name)) / 60'000;
  node.tried_ms = now_ms();
  node.look_for_files_ms = node.tried_ms + times_.leaves_ms;
  if (is_taken(name)) return;
  GcRequest request;
  request.where = {.volume = status.volume_root, .node = name, .index_directory = {}, .purpose = "gc"};
  request.remove = request.only_if_empty = true;
  request.patience_ns = 5'000'000'000;
  request.ends = [this, &name] { return stopping_ || is_node_wanted(*volume_, name); };
  request.dry_run = true;
  const auto survey = collect_node(request);
  if (!survey) return log::info("node {}, which may have no files: {}", name, survey.error().message);
  if (survey->files > 0 || survey->directory_paths.size() + 1 < survey->directories) return;  // which count the root
  for (const std::string& path : survey->directory_paths)
    if (Status kept = keep_directory(path); !kept) return log::info("node {} has no files, and stays for its directory {}: {}", name, path, kept.error().message);
  request.dry_run = false;
  const auto gone = collect_node(request);
  if (!gone) return log::warn("node {}, which has no files: {}", name, gone.error().message);
  if (!gone->removed) return;
  log::info("node {} does not run since {} min, and had no files: it was taken out of the volume", name, gone_min);
  const std::lock_guard lock(mutex_);
  ++status_.taken_out;
}

// A directory in which only that node has named anything would go with it, under programs that have looked at it already: this node names
// something there, for a moment.
Status Caretaker::keep_directory(const std::string& path) {
  constexpr std::string_view kName = ".kvcachefs-kept";
  const Caller nobody;
  const auto removed = std::make_shared<std::promise<Status>>();
  {
    const std::lock_guard lock(own_mutex_);
    if (own_is_gone_) return fail(Code::kCanceled, "the mount ends");
    ObjectId directory = kRootId;
    for (const auto part : std::views::split(path, '/')) {
      const auto there = store_.lookup(directory, std::string_view(part), nobody);
      if (!there && there.error().code == Code::kNotFound) return {};  // others have removed it
      KVC_TRY(there);
      directory = there->id;
    }
    const auto made = store_.make_node(directory, kName, S_IFREG | 0600, 0, nobody);
    if (!made && made.error().code != Code::kExists) return std::unexpected(made.error());
    store_.unlink(directory, kName, nobody, [removed](Status status) { removed->set_value(std::move(status)); });
  }
  auto answer = removed->get_future();
  while (answer.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready)
    if (stopping_) return fail(Code::kCanceled, "the mount ends");
  return answer.get();
}

}  // namespace kvcachefs

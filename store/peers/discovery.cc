#include "store/peers/discovery.h"

#include <set>
#include <utility>

#include <fmt/format.h>

#include "store/base/descriptors.h"
#include "store/base/log.h"
#include "store/base/node_name.h"
#include "store/journal/file_header.h"
#include "store/peers/slot_reader.h"

namespace kvcachefs {

namespace {
// Following a node takes five descriptors: four for its index, one for its journal. Where descriptors are few HEAD is opened for each look.
bool keeps_few_open(size_t nodes) {
  constexpr uint64_t kOthers = 128, kOfNode = 8;
  return descriptor_limit() < kOthers + kOfNode * nodes;
}
}  // namespace

Outlook Discovery::Node::outlook() const {
  Outlook outlook;
  outlook.epoch = epoch;
  if (!head) return outlook;
  outlook.written = head->journal_end;
  outlook.checkpoint = head->checkpoint;
  return outlook;
}

bool Discovery::Node::is_nearly_full() const {
  return head && head->capacity_bytes > 0 && head->physical_bytes >= head->capacity_bytes - head->capacity_bytes / 8;
}

Discovery::Discovery(std::shared_ptr<Volume> volume, FileIdentity own, const Clock& clock, std::map<std::string, uint32_t> ordinals, Limits limits)
    : volume_(std::move(volume)), own_(std::move(own)), clock_(clock), limits_(limits), ordinals_(std::move(ordinals)) {
  std::erase_if(ordinals_, [](const auto& each) { return each.second == 0 || each.second > kLastOrdinal; });
}

Result<std::set<std::string>> list_other_nodes(Volume& volume, const FileIdentity& own) {
  KVC_ASSIGN(const auto listed, volume.list("nodes"));
  std::set<std::string> names;
  for (const DirectoryEntry& entry : listed)
    if (entry.is_directory && entry.name != own.node && is_node_name(entry.name)) names.insert(entry.name);
  return names;
}

void Discovery::look(Listing listing) {
  const int64_t now_ns = clock_.monotonic_ns();
  // A look that comes a little early, after four times as long, counts.
  const int64_t every_ns = listing == Listing::kSeldom ? limits_.listed_every_ns * 7 / 2 : limits_.listed_every_ns;
  if (listing == Listing::kAll || !listed_ns_ || now_ns - *listed_ns_ >= every_ns) list_nodes(now_ns);
  for (auto& [name, node] : nodes_) look_at(name, node, watches_[name], listing);
}

void Discovery::list_nodes(int64_t now_ns) {
  const auto listed = list_other_nodes(*volume_, own_);
  if (!listed) {
    problem_ = listed.error().message;
    return;
  }
  problem_.clear();
  const std::set<std::string>& there = *listed;
  // Nodes that are gone keep their ordinal only: clients may know ids with it as long as this mount lasts.
  std::erase_if(nodes_, [&there](const auto& each) { return !there.contains(each.first); });
  std::erase_if(watches_, [&there](const auto& each) { return !there.contains(each.first); });
  if (!listed_ns_) std::erase_if(ordinals_, [&there](const auto& each) { return !there.contains(each.first); });
  listed_ns_ = now_ns;
  for (const std::string& name : there) {
    const auto [node, is_new] = nodes_.try_emplace(name);
    if (is_new) take_ordinal(name, node->second);
  }
}

void Discovery::take_ordinal(const std::string& name, Node& node) {
  if (const auto known = ordinals_.find(name); known != ordinals_.end()) {
    node.ordinal = known->second;
    return;
  }
  std::set<uint32_t> taken;
  for (const auto& [other, ordinal] : ordinals_) taken.insert(ordinal);
  for (uint32_t ordinal = 1; ordinal <= kLastOrdinal; ++ordinal) {
    if (taken.contains(ordinal)) continue;
    node.ordinal = ordinals_[name] = ordinal;
    return;
  }
  node.problem = fmt::format("the volume has more than {} nodes: this one is left out", kLastOrdinal);
  log::warn("node {}: {}", name, node.problem);
}

void Discovery::look_at(const std::string& name, Node& node, Watch& watch, Listing listing) {
  if (node.ordinal == 0) return;
  const int64_t before_ns = clock_.monotonic_ns();
  const Result<bool> moved = read(name, node, watch, listing, before_ns);
  const int64_t now_ns = clock_.monotonic_ns();
  // How long HEAD has stood is counted only while it can be read well.
  if (!moved || now_ns - before_ns > limits_.slow_read_ns) {
    node.stands_since_ns.reset();
  } else if (*moved || !node.stands_since_ns) {
    node.stands_since_ns = now_ns;
  }
  if (keeps_few_open(nodes_.size())) watch.head.reset();
  if (!moved) {
    watch.head.reset();
    node.problem = moved.error().message;
  } else if (node.head) {
    node.problem.clear();
  }
  if (moved.value_or(false)) node.moved_ns = now_ns;
  node.presence = presence(node, moved.value_or(false), now_ns);
}

// A node whose HEAD was never seen to move is not known to live.
Discovery::Presence Discovery::presence(const Node& node, bool moved, int64_t now_ns) const {
  if (moved) return Presence::kLive;
  const Presence before = node.presence;
  if (before == Presence::kAbsent) return before;
  if (!node.stands_since_ns) return Presence::kSilent;
  const int64_t stands_ns = now_ns - *node.stands_since_ns;
  if (stands_ns >= limits_.absent_ns) return Presence::kAbsent;
  return stands_ns >= limits_.still_ns ? Presence::kSilent : before;
}

// Returns whether there was a sign of life.
Result<bool> Discovery::read(const std::string& name, Node& node, Watch& watch, Listing listing, int64_t now_ns) {
  // After a restart of its daemon the old HEAD stands still, so the epochs are listed again.
  const bool is_still = !node.head || !node.stands_since_ns || now_ns - *node.stands_since_ns >= limits_.still_ns;
  const bool is_due = !watch.epochs_listed_ns || now_ns - *watch.epochs_listed_ns >= limits_.still_ns;
  bool again = false;
  if (listing == Listing::kAll || (is_still && is_due)) {
    KVC_ASSIGN(again, list_its_epochs(name, node, watch));
    watch.epochs_listed_ns = now_ns;
  }
  KVC_ASSIGN(const bool moved, read_head(name, node, watch));
  return moved || again;
}

// Returns whether the node has begun an epoch beyond the one known.
Result<bool> Discovery::list_its_epochs(const std::string& name, Node& node, Watch& watch) {
  KVC_ASSIGN(const auto epochs, list_epochs(*volume_, name));
  const uint32_t highest = epochs.empty() ? 0 : epochs.back();
  const uint32_t before = node.epoch;
  if (highest == before) return false;
  node.epoch = highest;
  node.head.reset();
  watch.head.reset();
  return before != 0 && highest > before;
}

// Returns whether this HEAD differs from the last one read.
Result<bool> Discovery::read_head(const std::string& name, Node& node, Watch& watch) {
  if (node.epoch == 0) return false;
  FileIdentity identity = own_;
  identity.node = name;
  identity.epoch = node.epoch;
  if (!watch.head) {
    KVC_ASSIGN(watch.head, open_slots(*volume_, identity, kHeadFileName));
    if (!watch.head) {
      node.problem = epoch_directory(name, node.epoch) + " has no HEAD";
      return false;
    }
  }
  KVC_ASSIGN(Head head, kvcachefs::read_head(*watch.head, identity, buffer_));
  const bool moved = node.head && (head.counter != node.head->counter || head.instance != node.head->instance);
  if (moved && head.journal_end != node.head->journal_end) node.wrote_ns = clock_.monotonic_ns();
  node.head = std::move(head);
  return moved;
}

}  // namespace kvcachefs

#include "store/peers/statements.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace kvcachefs {
namespace {

// The first key after a position.
StatementKey behind(JournalPosition position) { return {position, std::numeric_limits<uint32_t>::max()}; }

ObjectId object_of(const Statements::What& what) {
  if (const auto* removed = std::get_if<UnnameRecord>(&what)) return removed->child;
  return std::get<AttributesRecord>(what).id;
}

}  // namespace

Status Statements::load(const Index& index) {
  nodes_.clear();
  seen_.clear();
  StatementKey next;
  return index.scan_peer_records([&](Record&& record) {
    if (const auto* seen = std::get_if<SeenRecord>(&record)) seen_[seen->node] = seen->position;
    if (const auto* statement = std::get_if<StatementRecord>(&record)) {
      if (statement->said != next.said) next = {statement->said, 0};  // one batch may hold several
      take(*statement, next);
      ++next.number;
    }
    return true;
  });
}

void Statements::apply(const Batch& batch, JournalPosition after) {
  StatementKey next{after, 0};
  for (const Record& record : batch.records) {
    if (const auto* seen = std::get_if<SeenRecord>(&record)) seen_[seen->node] = seen->position;
    if (const auto* statement = std::get_if<StatementRecord>(&record); statement != nullptr && is_answered(*statement)) {
      take(*statement, next);
      ++next.number;
    }
  }
}

void Statements::take(const StatementRecord& record, const StatementKey& key) {
  if (!is_answered(record)) return;  // it changes no name
  What what;
  if (const auto* removed = std::get_if<UnnameRecord>(&record.what)) what = *removed;
  if (const auto* changed = std::get_if<AttributesRecord>(&record.what)) what = *changed;
  OfNode& node = nodes_[record.node];
  node.by_object.emplace(object_of(what), key);
  node.said.insert_or_assign(key, std::move(what));
}

JournalPosition Statements::seen(std::string_view node) const {
  const auto found = seen_.find(node);
  return found == seen_.end() ? JournalPosition{} : found->second;
}

const Statements::OfNode* Statements::of(std::string_view node) const {
  const auto found = nodes_.find(node);
  return found == nodes_.end() ? nullptr : &found->second;
}

bool Statements::speaks_of(std::string_view node, JournalPosition answered) const {
  const OfNode* const its = of(node);
  return its != nullptr && !its->said.empty() && its->said.rbegin()->first.said > answered;
}

bool Statements::has_answered(std::string_view node, JournalPosition answered) const {
  const OfNode* const its = of(node);
  return its != nullptr && !its->said.empty() && its->said.begin()->first.said <= answered;
}

std::vector<StatementKey> Statements::removals(std::string_view node, JournalPosition answered, ObjectId parent, std::string_view name,
                                               ObjectId child) const {
  std::vector<StatementKey> keys;
  const OfNode* const its = of(node);
  if (its == nullptr) return keys;
  const auto [first, last] = its->by_object.equal_range(child);
  for (auto each = first; each != last; ++each) {
    if (each->second.said <= answered) continue;
    const auto* removed = std::get_if<UnnameRecord>(&its->said.at(each->second));
    if (removed != nullptr && removed->parent == parent && removed->name == name) keys.push_back(each->second);
  }
  std::ranges::sort(keys);
  return keys;
}

const Attributes* Statements::attributes(std::string_view node, JournalPosition answered, ObjectId id) const {
  const OfNode* const its = of(node);
  if (its == nullptr) return nullptr;
  const Attributes* last_given = nullptr;
  StatementKey last_key;
  const auto [first, last] = its->by_object.equal_range(id);
  for (auto each = first; each != last; ++each) {
    if (each->second.said <= answered || (last_given != nullptr && each->second < last_key)) continue;
    const auto* changed = std::get_if<AttributesRecord>(&its->said.at(each->second));
    if (changed == nullptr) continue;
    last_given = &changed->attributes;
    last_key = each->second;
  }
  return last_given;
}

void Statements::for_each(std::string_view node, JournalPosition answered,
                          const std::function<bool(const StatementKey&, const What&)>& visit) const {
  const OfNode* const its = of(node);
  if (its == nullptr) return;
  for (auto each = its->said.upper_bound(behind(answered)); each != its->said.end(); ++each)
    if (!visit(each->first, each->second)) return;
}

void Statements::forget(std::string_view node, JournalPosition answered) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return;
  OfNode& its = found->second;
  const auto end = its.said.upper_bound(behind(answered));
  for (auto each = its.said.begin(); each != end; ++each) {
    const auto [first, last] = its.by_object.equal_range(object_of(each->second));
    for (auto key = first; key != last; ++key)
      if (key->second == each->first) {
        its.by_object.erase(key);
        break;
      }
  }
  its.said.erase(its.said.begin(), end);
  if (its.said.empty()) nodes_.erase(found);
}

size_t Statements::count() const {
  size_t count = 0;
  for (const auto& [node, its] : nodes_) count += its.said.size();
  return count;
}

}  // namespace kvcachefs

// For tests of this room: a node's part in memory, by the same rules as the index (apply_batch); every version of it can be kept.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/index/batch_applier.h"
#include "store/index/testing/fake_index.h"
#include "store/peers/part.h"

namespace kvcachefs {

class MemoryPart final : public RowSource {
 public:
  Status apply(const Batch& batch, JournalPosition after) {
    auto effect = apply_batch(batch, after, *this, totals_);
    if (!effect) return std::unexpected(std::move(effect).error());
    totals_ = effect->totals;
    for (auto& [id, row] : effect->rows.objects) {
      if (row) objects[id] = row;
      else objects.erase(id);
    }
    for (const auto& [key, row] : effect->rows.names.rows()) {
      if (row.empty()) names.erase(key);
      else names[key] = row;
    }
    return {};
  }
  Result<std::shared_ptr<const ObjectRow>> read_object(ObjectId id) const override {
    const auto found = objects.find(id);
    return found == objects.end() ? nullptr : found->second;
  }
  Result<bool> has_object(ObjectId id) const override { return objects.contains(id); }
  Result<NameRow> read_names(NameKey key) const override {
    const auto found = names.find(key);
    return found == names.end() ? NameRow{} : found->second;
  }
  Result<ExtentUsage> read_extent(ExtentId) const override { return ExtentUsage{}; }
  Result<bool> has_names(ObjectId directory, const NameRows::Rows& above) const override {
    std::map<NameKey, bool> there;
    for (auto at = names.lower_bound({directory, 0}); at != names.end() && at->first.parent == directory; ++at) there[at->first] = true;
    for (auto at = above.lower_bound({directory, 0}); at != above.end() && at->first.parent == directory; ++at)
      there[at->first] = !at->second.empty();
    for (const auto& [key, named] : there)
      if (named) return true;
    return false;
  }
  EpochHighs read_epoch(uint32_t) const override { return {}; }

  const IndexTotals& totals() const { return totals_; }

  std::map<ObjectId, std::shared_ptr<const ObjectRow>> objects;
  NameRows::Rows names;

 private:
  IndexTotals totals_;
};

// Reads from `state`, as it is at the time of the read.
class MemoryPartIndex final : public FakeIndex {
 public:
  const MemoryPart* state = nullptr;

  IndexTotals totals() const override { return state->totals(); }
  Result<std::optional<NameEntry>> find_name(ObjectId parent, std::string_view name) const override {
    const auto row = state->names.find({parent, name_cookie(name)});
    if (row == state->names.end()) return std::nullopt;
    for (const NameEntry& entry : row->second)
      if (entry.name == name) return entry;
    return std::nullopt;
  }
  Result<std::optional<ObjectRecord>> find_object(ObjectId id) const override {
    const auto row = state->objects.find(id);
    if (row == state->objects.end()) return std::nullopt;
    ObjectRecord record = row->second->object;
    record.nlink = row->second->nlink();
    return record;
  }
  Result<std::vector<NameEntry>> list(ObjectId parent, uint64_t after, size_t limit) const override {
    std::vector<NameEntry> page;
    for (auto at = state->names.upper_bound({parent, after}); at != state->names.end() && at->first.parent == parent; ++at) {
      page.insert(page.end(), at->second.begin(), at->second.end());
      if (page.size() >= limit) break;
    }
    return page;
  }
};

// A node as a view reads it; its statements are applied as its batches come.
struct MemoryPeer {
  std::shared_ptr<MemoryPartIndex> index = std::make_shared<MemoryPartIndex>();
  std::shared_ptr<Statements> statements = std::make_shared<Statements>();
  Part part(uint32_t ordinal, const std::string& node) const { return {ordinal, node, index, statements}; }
};

}  // namespace kvcachefs

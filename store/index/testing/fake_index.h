// An index for unit tests of the rooms above that look up objects, names, extents, totals and leftovers. A test sets these by hand;
// all other calls answer kUnsupported, or nothing.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/index/index.h"

namespace kvcachefs {

class FakeIndex : public Index {
 public:
  std::map<ExtentId, ExtentUsage> extents;  // found by find_extent()
  std::map<ExtentId, ExtentUsage> committed_extents;  // found by scan_extents()
  IndexTotals totals_told;
  std::optional<Leftovers> leftovers_told;
  JournalPosition position_told;
  ScrubMark scrub_told;

  std::map<ObjectId, ObjectRecord> objects;
  std::map<std::pair<ObjectId, uint64_t>, NameEntry> names;  // by directory and cookie

  void put_object(ObjectRecord record) { objects[record.id] = std::move(record); }
  void put_name(ObjectId parent, const std::string& name, ObjectId child, uint32_t type_bits) {
    names[{parent, name_cookie(name)}] = {name, child, type_bits, name_cookie(name)};
  }
  void put_extent(ExtentId id, ExtentUsage usage) { extents[id] = committed_extents[id] = usage; }

  Result<std::optional<ExtentUsage>> find_extent(ExtentId id) const override {
    auto found = extents.find(id);
    return found == extents.end() ? std::nullopt : std::optional(found->second);
  }
  Status scan_extents(const std::function<bool(ExtentId, const ExtentUsage&)>& row) const override {
    for (const auto& [id, usage] : committed_extents)
      if (!row(id, usage)) break;
    return {};
  }
  IndexTotals totals() const override { return totals_told; }
  std::optional<Leftovers> leftovers() const override { return leftovers_told; }
  void set_leftovers(Leftovers leftovers) override { leftovers_told = std::move(leftovers); }

  bool was_closed_cleanly() const override { return true; }
  bool replaced_another() const override { return false; }
  JournalPosition position() const override { return position_told; }
  Stamp stamp() const override { return {}; }
  uint64_t highest_number(uint32_t) const override { return 0; }
  uint64_t highest_extent(uint32_t) const override { return 0; }
  Result<std::optional<NameEntry>> find_name(ObjectId parent, std::string_view name) const override {
    auto found = names.find({parent, name_cookie(name)});
    return found == names.end() ? std::nullopt : std::optional(found->second);
  }
  Result<std::optional<ObjectRecord>> find_object(ObjectId id) const override {
    auto found = objects.find(id);
    return found == objects.end() ? std::nullopt : std::optional(found->second);
  }
  Result<std::optional<ObjectRecord>> find_object_summary(ObjectId id) const override { return find_object(id); }
  Result<std::vector<NameEntry>> list(ObjectId parent, uint64_t after, size_t limit) const override {
    std::vector<NameEntry> page;
    for (auto each = names.upper_bound({parent, after}); each != names.end() && each->first.first == parent && page.size() < limit; ++each)
      page.push_back(each->second);
    return page;
  }
  Result<bool> is_empty(ObjectId) const override { return unsupported(); }
  Result<std::optional<SuccessorsRecord>> find_successors(ObjectId) const override { return unsupported(); }
  void limit_kept(uint64_t) override {}
  void keep_in_memory() const override {}
  void let_go_of_mapped() const override {}
  void set_let_go_wanted(std::function<void()>) override {}
  uint64_t unused_bytes() const override { return 0; }
  bool give_back_unused() override { return false; }
  bool damaged() const override { return false; }
  void give_up_commits() override {}
  Result<std::unique_ptr<Index>> begin_rebuild() override { return unsupported(); }
  Status finish_rebuild(std::unique_ptr<Index>) override { return unsupported(); }
  Result<std::vector<FreedPlace>> apply(const Batch&, JournalPosition) override { return unsupported(); }
  void freeze() override {}
  Status commit() override { return unsupported(); }
  uint64_t overlay_rows() const override { return 0; }
  uint64_t growth_bytes() const override { return 0; }
  Status begin_load() override { return unsupported(); }
  Status load(Record&&) override { return unsupported(); }
  Status finish_load(JournalPosition, Stamp) override { return unsupported(); }
  Status scan_objects(const std::function<bool(ObjectRecord&&)>&) const override { return unsupported(); }
  Status scan_names(const std::function<bool(NameRecord&&)>&) const override { return unsupported(); }
  Status scan_successors(const std::function<bool(SuccessorsRecord&&)>&) const override { return unsupported(); }
  Status scan_peer_records(const std::function<bool(Record&&)>&) const override { return unsupported(); }
  Status forget_statements(std::string_view, JournalPosition) override { return unsupported(); }
  Result<std::vector<ObjectId>> scan_nameless() const override { return unsupported(); }
  Status close_clean() override { return unsupported(); }
  ScrubMark scrub_mark() const override { return scrub_told; }
  void set_scrub_mark(const ScrubMark& mark) override { scrub_told = mark; }
  Result<std::vector<ObjectId>> objects_after(ObjectId after, size_t limit) const override {
    std::vector<ObjectId> ids;
    for (auto each = objects.upper_bound(after); each != objects.end() && ids.size() < limit; ++each) ids.push_back(each->first);
    return ids;
  }

 private:
  static std::unexpected<Error> unsupported() { return fail(Code::kUnsupported, "the fake index does not know this call"); }
};

}  // namespace kvcachefs

#include "store/index/index_test_util.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <variant>

#include <fmt/format.h>

#include "store/base/units.h"
#include "store/index/checkpoint_rows.h"

namespace kvcachefs {

// For gtest's messages and for comparisons; the index itself needs neither.
static bool operator==(const IndexTotals& a, const IndexTotals& b) {
  const auto all = [](const IndexTotals& t) {
    return std::tie(t.objects, t.directories, t.inline_bodies, t.packed_bodies, t.solo_bodies, t.raw_bodies,
                    t.quarantined, t.live_bytes, t.logical_bytes);
  };
  return all(a) == all(b);
}
static bool operator==(const ExtentUsage& a, const ExtentUsage& b) {
  return std::tie(a.kind, a.live_bytes, a.bodies, a.object) == std::tie(b.kind, b.live_bytes, b.bodies, b.object);
}
static void PrintTo(const IndexTotals& t, std::ostream* out) {
  *out << fmt::format("objects {} directories {} inline {} packed {} solo {} raw {} quarantined {} live {} logical {}",
                      t.objects, t.directories, t.inline_bodies, t.packed_bodies, t.solo_bodies, t.raw_bodies,
                      t.quarantined, t.live_bytes, t.logical_bytes);
}

namespace index_test {

namespace {

bool on_volume(const Place& place) { return place.kind > PlaceKind::kInline; }

}  // namespace

ScratchDirectory::ScratchDirectory(Where where) {
  const char* given = std::getenv("TMPDIR");
  std::string base = given != nullptr && *given == '/' ? given : "/tmp";
  if (where == kInMemory && access("/dev/shm", W_OK) == 0) base = "/dev/shm";
  path_ = base + "/kvcachefs-index-XXXXXX";
  if (mkdtemp(path_.data()) == nullptr) std::abort();
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

IndexIdentity identity() {
  IndexIdentity identity;
  identity.volume_uuid.fill(std::byte{7});
  identity.node = "node-a";
  return identity;
}

std::unique_ptr<Index> open_index(const std::string& directory, Index::Found expected, std::string* why) {
  Index::Found found{};
  std::string reason;
  auto index = Index::open(directory, identity(), &found, &reason);
  if (why != nullptr) *why = reason;
  if (!index) {
    ADD_FAILURE() << index.error().message;
    return nullptr;
  }
  EXPECT_EQ(found, expected) << reason;
  return std::move(*index);
}

Place packed(uint64_t extent, uint64_t block, uint64_t length) {
  return Place{PlaceKind::kPacked, {1, extent}, block * kBlockBytes, length};
}

namespace {
// Gives the body the bytes and checksums that its place requires.
void make_servable(ObjectRecord& object) {
  Body& body = object.body;
  if (body.place.kind == PlaceKind::kInline) {
    body.inline_bytes = Bytes(5, std::byte{42});
    body.size_bytes = 5;
  } else if (on_volume(body.place) && body.place.kind != PlaceKind::kRaw && body.checksums.empty()) {
    body.checksums = {object.id.value};
  }
}
}  // namespace

ObjectRecord make_file(ObjectId id, Place place, uint64_t size_bytes) {
  ObjectRecord file;
  file.id = id;
  file.attributes.mode = S_IFREG | 0640;
  file.attributes.uid = 1000;
  file.attributes.btime_ns = file.attributes.mtime_ns = file.attributes.ctime_ns = 1'700'000'000'000'000'000;
  file.attributes.atime_ns = file.attributes.btime_ns + static_cast<int64_t>(id.number());
  file.body.size_bytes = size_bytes;
  file.body.version = 1;
  file.body.place = place;
  if (on_volume(place) && place.kind != PlaceKind::kRaw) file.body.checksums = {id.value * 0x9e3779b97f4a7c15ULL};
  return file;
}

ObjectRecord make_directory(ObjectId id) {
  ObjectRecord directory;
  directory.id = id;
  directory.attributes.mode = S_IFDIR | 0755;
  return directory;
}

bool Model::is_directory(ObjectId id) const {
  const auto found = objects.find(id);
  return found != objects.end() && S_ISDIR(found->second.attributes.mode);
}

size_t Model::names_of(ObjectId child) const {
  return static_cast<size_t>(std::ranges::count_if(names, [&](const auto& entry) { return entry.second == child; }));
}

bool Model::has_children(ObjectId directory) const {
  const auto at = names.lower_bound({directory, ""});
  return at != names.end() && at->first.first == directory;
}

uint32_t Model::nlink(ObjectId id) const {
  const auto links = static_cast<uint32_t>(names_of(id));
  if (!is_directory(id)) return links;
  if (links == 0 && id != kRootId) return 0;
  uint32_t count = 2;
  for (auto at = names.lower_bound({id, ""}); at != names.end() && at->first.first == id; ++at) {
    if (is_directory(at->second)) ++count;
  }
  return count;
}

std::set<std::pair<ExtentId, uint64_t>> Model::places() const {
  std::set<std::pair<ExtentId, uint64_t>> all;
  for (const auto& [id, object] : objects) {
    if (on_volume(object.body.place)) all.emplace(object.body.place.extent, object.body.place.offset);
  }
  return all;
}

void Model::name(const NameRecord& record, std::set<ObjectId>& losers) {
  if (!objects.contains(record.child) || !objects.contains(record.parent)) return;
  const auto [at, added] = names.try_emplace({record.parent, record.name}, record.child);
  if (added) return;
  losers.insert(at->second);
  at->second = record.child;
}

std::set<std::pair<ExtentId, uint64_t>> Model::apply(const Batch& batch) {
  auto seen = places();
  std::set<ObjectId> losers;
  const auto see = [&seen](const Place& place) {
    if (on_volume(place)) seen.emplace(place.extent, place.offset);
  };
  for (const Record& record : batch.records) {
    if (const auto* put = std::get_if<PutRecord>(&record)) {
      objects[put->object.id] = put->object;
      see(put->object.body.place);
    } else if (const auto* attributes = std::get_if<AttributesRecord>(&record)) {
      if (objects.contains(attributes->id)) objects[attributes->id].attributes = attributes->attributes;
    } else if (const auto* named = std::get_if<NameRecord>(&record)) {
      name(*named, losers);
    } else if (const auto* unnamed = std::get_if<UnnameRecord>(&record)) {
      losers.insert(unnamed->child);
      const auto at = names.find({unnamed->parent, unnamed->name});
      if (at != names.end() && at->second == unnamed->child) names.erase(at);
    } else if (const auto* move = std::get_if<MoveRecord>(&record)) {
      see(move->place);
      const auto at = objects.find(move->id);
      if (at != objects.end() && at->second.body.version == move->version) at->second.body.place = move->place;
    } else if (const auto* touch = std::get_if<TouchRecord>(&record)) {
      for (const auto& [id, atime_ns] : touch->atimes_ns) {
        if (objects.contains(id)) objects[id].attributes.atime_ns = atime_ns;
      }
    } else if (const auto* chain = std::get_if<SuccessorsRecord>(&record)) {
      if (objects.contains(chain->id)) successors[chain->id] = *chain;
    }
  }
  for (const ObjectId id : losers) {
    if (id == kRootId || names_of(id) > 0 || has_children(id)) continue;
    objects.erase(id);
    successors.erase(id);
  }
  for (const auto& held : places()) seen.erase(held);
  return seen;
}

IndexTotals Model::totals() const {
  IndexTotals totals;
  for (const auto& [id, object] : objects) {
    (is_directory(id) ? totals.directories : totals.objects) += 1;
    const Place& place = object.body.place;
    totals.inline_bodies += place.kind == PlaceKind::kInline;
    totals.packed_bodies += place.kind == PlaceKind::kPacked;
    totals.solo_bodies += place.kind == PlaceKind::kSolo;
    totals.raw_bodies += place.kind == PlaceKind::kRaw;
    totals.quarantined += object.body.quarantined;
    if (on_volume(place)) totals.live_bytes += (place.length + 4095) / 4096 * 4096;
    if (S_ISREG(object.attributes.mode)) totals.logical_bytes += object.body.size_bytes;
  }
  return totals;
}

std::map<ExtentId, ExtentUsage> Model::extents() const {
  std::map<ExtentId, ExtentUsage> all;
  for (const auto& [id, object] : objects) {
    const Place& place = object.body.place;
    if (!on_volume(place)) continue;
    ExtentUsage& usage = all[place.extent];
    usage.kind = place.kind;
    usage.live_bytes += (place.length + 4095) / 4096 * 4096;
    usage.bodies += 1;
    if (place.kind != PlaceKind::kPacked) usage.object = id;
  }
  return all;
}

std::string BatchMaker::some_name() {
  const uint64_t which = below(60);  // few distinct names, so that they are taken, replaced and missed often
  if (which < 30) return fmt::format("{:016x}{:016x}.bin", which * 0x9e3779b97f4a7c15ULL, which);
  if (which < 40) return std::string(which, static_cast<char>(200 + which));
  return fmt::format("n{}", which);
}

Place BatchMaker::new_place() {
  const uint64_t length = 1 + below(20000);
  switch (below(5)) {
    case 0: return Place{PlaceKind::kSolo, {2, 1000 + ++next_block_}, 0, length};
    case 1: return Place{PlaceKind::kRaw, {3, 5000 + ++next_block_}, 0, length};
    case 2: return Place{PlaceKind::kInline, {}, 0, 5};
    default: return Place{PlaceKind::kPacked, {1, below(6)}, (next_block_ += 5) * kBlockBytes, length};
  }
}

ObjectId BatchMaker::some_object(const Model& model, bool file_only) {
  for (int i = 0; i < 20 && !model.objects.empty(); ++i) {
    auto at = model.objects.begin();
    std::advance(at, below(model.objects.size()));
    if (!file_only || S_ISREG(at->second.attributes.mode)) return at->first;
  }
  return kRootId;
}

ObjectId BatchMaker::some_directory(const Model& model) {
  for (int i = 0; i < 20; ++i) {
    const ObjectId id = some_object(model, false);
    if (model.is_directory(id)) return id;
  }
  return kRootId;
}

std::pair<std::pair<ObjectId, std::string>, ObjectId> BatchMaker::some_entry(const Model& model) {
  if (model.names.empty()) return {{kRootId, "none"}, ObjectId{999}};
  auto at = model.names.begin();
  std::advance(at, below(model.names.size()));
  return *at;
}

void BatchMaker::add_new(const Model& model, std::vector<Record>& records) {
  const ObjectId id = new_id();
  const uint64_t kind = below(10);
  ObjectRecord object = kind == 0 ? make_directory(id) : make_file(id, new_place(), below(100000));
  make_servable(object);
  if (kind == 1) object.attributes.xattrs = {{"user.a", std::string(below(300), 'x')}};
  if (kind == 2) {
    object.attributes.mode = S_IFLNK | 0777;
    object.body = Body{};
    object.body.inline_bytes = Bytes(3, std::byte{'t'});
  }
  records.emplace_back(PutRecord{object});
  if (kind != 3) records.emplace_back(NameRecord{some_directory(model), some_name(), id});
}

// With equal bytes, a new object takes the place of the one it replaces.
void BatchMaker::add_takeover(const Model& model, std::vector<Record>& records) {
  const auto [where, old] = some_entry(model);
  const auto found = model.objects.find(old);
  if (found == model.objects.end() || !S_ISREG(found->second.attributes.mode) || model.names_of(old) != 1) return;
  ObjectRecord heir = found->second;
  heir.id = new_id();
  records.emplace_back(PutRecord{heir});
  records.emplace_back(NameRecord{where.first, where.second, heir.id});
}

void BatchMaker::add_change(const Model& model, std::vector<Record>& records) {
  const ObjectId id = some_object(model, true);
  if (id == kRootId) return;
  ObjectRecord object = model.objects.at(id);
  switch (below(5)) {
    case 0:
      object.attributes.mode = S_IFREG | 0600;
      object.attributes.mtime_ns += 77;
      records.emplace_back(AttributesRecord{id, object.attributes});
      break;
    case 1:
      if (object.body.checksums.empty()) break;  // there is nothing to move
      records.emplace_back(MoveRecord{id, object.body.version - static_cast<uint32_t>(below(2)),
                                      Place{PlaceKind::kPacked, {1, 9}, (next_block_ += 9) * kBlockBytes, 4096}});
      break;
    case 2: records.emplace_back(TouchRecord{{{id, static_cast<int64_t>(below(1000))}, {ObjectId{31}, 5}}}); break;
    case 3:
      records.emplace_back(SuccessorsRecord{id, some_object(model, true), {{some_object(model, true), 3}}});
      break;
    default:  // a new version, sometimes at the same place, sometimes quarantined
      object.body.version += 1;
      if (below(3) > 0) object.body.place = new_place();
      make_servable(object);
      object.body.quarantined = below(4) == 0;
      records.emplace_back(PutRecord{object});
  }
}

void BatchMaker::add_odd_operation(const Model& model, std::vector<Record>& records) {
  const auto [where, child] = some_entry(model);
  switch (below(6)) {
    case 0: records.emplace_back(NameRecord{some_directory(model), some_name(), ObjectId{77}}); break;
    case 1: records.emplace_back(UnnameRecord{where.first, where.second, some_object(model, false)}); break;
    case 2: records.emplace_back(AttributesRecord{ObjectId{78}, {}}); break;
    case 3: records.emplace_back(MoveRecord{ObjectId{79}, 1, packed(4, ++next_block_)}); break;
    case 4: records.emplace_back(UnnameRecord{ObjectId{}, "", some_object(model, true)}); break;
    default: records.emplace_back(NameRecord{ObjectId{80}, some_name(), child}); break;
  }
}

void BatchMaker::add_operation(const Model& model, std::vector<Record>& records) {
  const auto [where, child] = some_entry(model);
  switch (below(12)) {
    case 0:  // remove; also directories that still have names
      records.emplace_back(UnnameRecord{where.first, where.second, child});
      break;
    case 1:  // rename, of directories too
      records.emplace_back(UnnameRecord{where.first, where.second, child});
      records.emplace_back(NameRecord{some_directory(model), some_name(), child});
      break;
    case 2:  // the same in the other order
      records.emplace_back(NameRecord{some_directory(model), where.second + "2", child});
      records.emplace_back(UnnameRecord{where.first, where.second, child});
      break;
    case 3:  // hard link
      if (!model.is_directory(child)) records.emplace_back(NameRecord{some_directory(model), some_name(), child});
      break;
    case 4:
    case 5: add_odd_operation(model, records); break;
    case 6:
    case 7:
    case 8: add_change(model, records); break;
    default: add_new(model, records); break;
  }
}

Batch BatchMaker::make(const Model& model) {
  Batch batch;
  batch.stamp = Stamp{++stamp_};
  if (!model.objects.contains(kRootId)) batch.records.emplace_back(PutRecord{make_directory(kRootId)});
  if (below(8) == 0) {
    add_takeover(model, batch.records);  // alone: no place is shared beyond a batch
  } else {
    for (uint64_t i = 0, count = 1 + below(6); i < count; ++i) add_operation(model, batch.records);
  }
  if (below(10) == 0) batch.records.emplace_back(SyncedRecord{});
  return batch;
}

namespace {

void expect_same_object(const Index& index, const Model& model, ObjectId id) {
  const auto found = index.find_object(id);
  ASSERT_TRUE(found) << found.error().message;
  const auto summary = index.find_object_summary(id);
  ASSERT_TRUE(summary) << summary.error().message;
  const auto known = model.objects.find(id);
  ASSERT_EQ(found->has_value(), known != model.objects.end()) << "object " << id.value;
  ASSERT_EQ(summary->has_value(), known != model.objects.end());
  if (known == model.objects.end()) return;
  ObjectRecord expected = known->second;
  expected.nlink = model.nlink(id);
  EXPECT_EQ(**found, expected) << "object " << id.value << " nlink " << (*found)->nlink << " not " << expected.nlink;
  expected.body.checksums.clear();
  expected.body.inline_bytes.clear();
  EXPECT_EQ(**summary, expected);
  const auto successors = index.find_successors(id);
  ASSERT_TRUE(successors) << successors.error().message;
  const auto chain = model.successors.find(id);
  ASSERT_EQ(successors->has_value(), chain != model.successors.end());
  if (chain != model.successors.end()) {
    EXPECT_EQ((*successors)->predecessor, chain->second.predecessor);
    EXPECT_EQ((*successors)->successors, chain->second.successors);
  }
}

void expect_same_directory(const Index& index, const Model& model, ObjectId id, size_t limit) {
  std::map<std::string, ObjectId> expected;
  for (auto at = model.names.lower_bound({id, ""}); at != model.names.end() && at->first.first == id; ++at) {
    expected.emplace(at->first.second, at->second);
  }
  const auto empty = index.is_empty(id);
  ASSERT_TRUE(empty);
  EXPECT_EQ(*empty, expected.empty());
  std::map<std::string, ObjectId> listed;
  uint64_t after = 0;
  for (;;) {
    const auto part = index.list(id, after, limit);
    ASSERT_TRUE(part) << part.error().message;
    if (part->empty()) break;
    EXPECT_GT(part->front().cookie, after);
    for (const NameEntry& entry : *part) {
      EXPECT_GE(entry.cookie, after);
      after = entry.cookie;
      EXPECT_EQ(entry.cookie, name_cookie(entry.name));
      EXPECT_EQ(entry.type_bits, model.objects.at(entry.child).attributes.mode & S_IFMT);
      EXPECT_TRUE(listed.emplace(entry.name, entry.child).second) << entry.name << " twice";
    }
  }
  EXPECT_EQ(listed, expected);
  for (const auto& [name, child] : expected) {
    const auto found = index.find_name(id, name);
    ASSERT_TRUE(found && *found) << name;
    EXPECT_EQ((*found)->child, child);
  }
  const auto absent = index.find_name(id, "never there");
  ASSERT_TRUE(absent);
  EXPECT_FALSE(*absent);
}

}  // namespace

void expect_same(const Index& index, const Model& model) {
  EXPECT_EQ(index.totals(), model.totals());
  // Asks for every number that the maker has used and some more, so that removed objects are asked for too.
  const uint64_t end = model.objects.empty() ? 50 : model.objects.rbegin()->first.number() + 50;
  for (uint64_t number = 1; number < end && !testing::Test::HasFatalFailure(); ++number) {
    expect_same_object(index, model, BatchMaker::id_of(number));
  }
  size_t limit = 1;
  for (const auto& [id, object] : model.objects) {
    if (S_ISDIR(object.attributes.mode)) expect_same_directory(index, model, id, limit);
    limit = limit * 5 % 23;
  }
  const auto extents = model.extents();
  for (const auto& [id, usage] : extents) {
    const auto found = index.find_extent(id);
    ASSERT_TRUE(found && *found) << id.seq;
    EXPECT_EQ(**found, usage) << id.epoch << "/" << id.seq << " bodies " << (*found)->bodies;
  }
}

void expect_same_scans(const Index& index, const Model& model) {
  std::set<ObjectId> nameless;
  size_t count = 0;
  ASSERT_TRUE(index.scan_objects([&](ObjectRecord&& object) {
    ++count;
    ObjectRecord expected = model.objects.at(object.id);
    expected.nlink = model.nlink(object.id);
    if (expected.nlink == 0) nameless.insert(object.id);
    EXPECT_EQ(object, expected);
    return true;
  }));
  EXPECT_EQ(count, model.objects.size());
  count = 0;
  ASSERT_TRUE(index.scan_names([&](NameRecord&& record) {
    ++count;
    EXPECT_EQ(model.names.at({record.parent, record.name}), record.child);
    return true;
  }));
  EXPECT_EQ(count, model.names.size());
  count = 0;
  ASSERT_TRUE(index.scan_successors([&](SuccessorsRecord&& record) {
    ++count;
    EXPECT_EQ(model.successors.at(record.id).successors, record.successors);
    return true;
  }));
  EXPECT_EQ(count, model.successors.size());
  const auto extents = model.extents();
  count = 0;
  ASSERT_TRUE(index.scan_extents([&](ExtentId id, const ExtentUsage& usage) {
    ++count;
    EXPECT_EQ(extents.at(id), usage);
    return true;
  }));
  EXPECT_EQ(count, extents.size());
  const auto found = index.scan_nameless();
  ASSERT_TRUE(found);
  EXPECT_EQ(std::set<ObjectId>(found->begin(), found->end()), nameless);
}

Status copy_by_load(const Index& from, Index& into, JournalPosition position) {
  KVC_TRY(into.begin_load());
  KVC_TRY(for_each_checkpoint_record(from, [&](Record record) { return into.load(std::move(record)); }));
  return into.finish_load(position, from.stamp());
}

}  // namespace index_test
}  // namespace kvcachefs

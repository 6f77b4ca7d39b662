#include "tests/fuzz/hostile_volume.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "store/base/checksum.h"
#include "store/base/limits.h"
#include "store/base/log.h"
#include "store/base/units.h"
#include "store/check/check.h"
#include "store/index/index.h"
#include "store/journal/volume_file.h"
#include "tests/fault/rig.h"

namespace kvcachefs {
namespace {

using testing::Content;
using testing::Rig;
using testing::Tree;

void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "hostile volume: %s\n", what.c_str());
  std::abort();
}

// Small decisions out of the input, which ends in zeros.
class Choices {
 public:
  explicit Choices(ByteSpan input) : input_(input) {}
  bool left() const { return at_ < input_.size(); }
  uint8_t byte() { return at_ < input_.size() ? static_cast<uint8_t>(input_[at_++]) : 0; }
  size_t below(size_t end) { return static_cast<size_t>(byte()) % end; }
  template <class T>
  const T& of(const std::vector<T>& from) { return from[below(from.size())]; }

 private:
  ByteSpan input_;
  size_t at_ = 0;
};

std::string payload(size_t seed, size_t bytes) {
  std::string text(bytes, 0);
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>((i * 31 + i / 253 + seed * 101) & 0xff);
  return text;
}

struct Found {  // of a walk from the root
  Tree files;   // what could be read whole
  std::set<std::string> paths;
  std::set<ObjectId> objects;
};

class HostileVolume {
 public:
  void run(Choices choices) {
    make_good();
    craft(choices);
    check("as it was crafted");
    mount();
    const Found first = walk();
    for (const auto& [path, content] : first.files) require(known_.contains(content), fmt::format("{} reads as nobody wrote it: {} bytes", path, content.size()));
    use(first);
    unmount();
    check("after it was used");
    mount();
    const Found again = walk();
    unmount();
    rig_.set_index_from("");
    mount();
    const Found rebuilt = walk();
    require(again.paths == rebuilt.paths && again.files == rebuilt.files, "an index made anew shows another tree");
    unmount();
  }

 private:
  static StoreOptions options() {
    StoreOptions options = testing::small_options(Durability::kNone);
    options.memory_bytes = 16 * kMiB;
    return options;
  }

  void mount() {
    const Status mounted = rig_.mount();
    require(mounted.has_value(), "it cannot be mounted: " + (mounted ? "" : mounted.error().message));
  }
  void unmount() {
    const Status status = rig_.unmount();
    require(status.has_value(), "unmount: " + (status ? "" : status.error().message));
  }

  void write(const std::string& path, const std::string& content) {
    known_.insert(content);
    auto handle = rig_.create(path);
    require(handle.has_value(), path + " cannot be made: " + (handle ? "" : handle.error().message));
    const Status written = rig_.write(*handle, 0, content);
    require(written.has_value(), path + " cannot be written: " + (written ? "" : written.error().message));
  }

  void make_good() {
    mount();
    static_cast<void>(rig_.make_directory("d"));
    static_cast<void>(rig_.make_directory("d/e"));
    write("inline", payload(1, 100));
    write("d/packed", payload(2, 70'000));
    write("d/e/packed", payload(3, 5'000));
    write("d/packed3", payload(4, 300'000));
    write("solo", payload(5, 700'000));
    require(rig_.drain().has_value(), "drain");
    for (const char* path : {"d", "d/e", "inline", "d/packed", "d/e/packed", "d/packed3", "solo"}) good_ids_.push_back(id_of(path));
    unmount();
    auto index = Index::open(rig_.index_directory(), {header().uuid, "test"}, &found_, &why_);
    for (ObjectId id : good_ids_) good_.push_back(**(*index)->find_object(id));
    static_cast<void>((*index)->close_clean());
  }

  ObjectId id_of(const std::string& path) {
    ObjectId at = kRootId;
    for (size_t from = 0; from <= path.size();) {
      const size_t slash = std::min(path.find('/', from), path.size());
      at = rig_.store().lookup(at, path.substr(from, slash - from), {})->id;
      from = slash + 1;
    }
    return at;
  }

  VolumeHeader header() { return *decode_volume_file(*read_file(*disk_, kVolumeFileName, kVolumeFileBytes)); }

  // --- crafting ---

  ObjectId an_id(Choices& choices) {
    switch (choices.below(8)) {
      case 0: return kRootId;
      case 1: return choices.of(good_ids_);
      case 2: return ObjectId::make(0, kEpoch + 1 + static_cast<uint32_t>(choices.below(2)), 1 + choices.below(4));  // of the next mounts
      case 3: return choices.below(2) == 0 ? ObjectId{} : ObjectId::make(5, kEpoch, 1);
      case 4: return ObjectId{choices.below(4) == 0 ? UINT64_MAX : ObjectId::make(0, kMaxEpoch, 1).value};
      default: return ObjectId::make(0, kEpoch, 1 + choices.below(6));
    }
  }
  std::string a_name(Choices& choices) {
    static const std::vector<std::string> kNames = {"a", "b", "c", "d", "e", "inline", "packed", "solo", "..", ".", "x/y", "",
                                                    std::string("n\0l", 3), std::string(256, 'l'), std::string(255, 'm'),
                                                    ".kvcachefs", ".kvcachefs-nameless-7", "\xff\n"};
    return choices.of(kNames);
  }
  uint64_t a_size(Choices& choices) {
    static const std::vector<uint64_t> kSizes = {0, 1, 100, 5'000, 70'000, 300'000, 700'000, kUnitBytes, 4096, UINT64_MAX,
                                                 uint64_t{1} << 63, kMaxSealedBytes + 1, kMaxFileBytes};
    return choices.of(kSizes);
  }
  Place a_place(Choices& choices) {
    Place place = choices.of(good_).body.place;  // of another, perhaps not quite
    if (choices.below(3) != 0) return place;
    static const std::vector<uint64_t> kOffsets = {0, 1, 4096, 8192, 65536, 1 << 20, uint64_t{1} << 40, UINT64_MAX - 4095};
    place.kind = static_cast<PlaceKind>(choices.below(5));
    if (choices.below(2) == 0) place.extent = {kEpoch + static_cast<uint32_t>(choices.below(3)) - 1, choices.below(4)};
    if (choices.below(2) == 0) place.offset = choices.of(kOffsets);
    if (choices.below(2) == 0) place.length = a_size(choices);
    return place;
  }
  Attributes attributes(Choices& choices) {
    static const std::vector<uint32_t> kTypes = {S_IFREG, S_IFDIR, S_IFLNK, S_IFIFO, S_IFCHR, 0, 0170000, 0200000 | S_IFREG};
    Attributes made;
    made.mode = kTypes[choices.below(3) == 0 ? choices.below(kTypes.size()) : choices.below(2)] | 0755;
    made.mtime_ns = choices.below(4) == 0 ? INT64_MAX : 0;
    made.atime_ns = choices.below(4) == 0 ? INT64_MIN : 0;
    if (choices.below(8) == 0) made.xattrs = {{"user.b", "1"}, {"user.a", std::string(70'000, 'x')}, {"", "2"}, {"user.b", "3"}};
    return made;
  }
  PutRecord a_put(Choices& choices) {
    PutRecord put;
    switch (choices.below(4)) {
      case 0:
        put.object = choices.of(good_);  // as it is, but for some of it
        put.object.nlink = 0;
        if (choices.below(2) == 0) put.object.id = an_id(choices);
        if (choices.below(2) == 0) put.object.body.size_bytes = a_size(choices);
        if (choices.below(2) == 0) put.object.body.place = a_place(choices);
        if (choices.below(4) == 0) put.object.body.checksums.resize(choices.below(5));
        if (choices.below(4) == 0) put.object.body.quarantined = true;
        break;
      case 1: {
        put.object.id = an_id(choices);
        put.object.attributes = attributes(choices);
        const std::string text = payload(100 + choices.below(3), choices.below(200));
        known_.insert(text);
        put.object.body = {text.size(), 1, {PlaceKind::kInline, {}, 0, text.size()}, {checksum(as_bytes(text))}, {}, false};
        if (text.empty()) put.object.body.checksums.clear();
        put.object.body.inline_bytes.assign(as_bytes(text).begin(), as_bytes(text).end());
        break;
      }
      case 2:
        put.object.id = an_id(choices);
        put.object.attributes = attributes(choices);
        put.object.body.place = a_place(choices);
        put.object.body.size_bytes = choices.below(2) == 0 ? put.object.body.place.length : a_size(choices);
        put.object.body.checksums.resize(std::min<uint64_t>(div_ceil(std::min(put.object.body.size_bytes, kMaxFileBytes), kUnitBytes), 8));
        break;
      default:
        put.object.id = an_id(choices);
        put.object.attributes.mode = S_IFDIR | 0755;
    }
    return put;
  }
  // What concerns other nodes: none of it may change what is here.
  Record about_others(Choices& choices) {
    static const std::vector<std::string> kNodes = {"test", "node-b", "../node", "", std::string(64, 'n')};
    const std::string node = choices.of(kNodes);
    const JournalPosition position{kEpoch + static_cast<uint32_t>(choices.below(3)) - 1, choices.below(4), choices.below(10'000)};
    if (node.empty()) return NextRecord{choices.below(4)};
    switch (choices.below(4)) {
      case 0: return StatementRecord{node, {}, UnnameRecord{an_id(choices), a_name(choices), an_id(choices)}};
      case 1: return StatementRecord{node, position, AttributesRecord{an_id(choices), attributes(choices)}};
      case 2: return StatementRecord{node, {}, TouchRecord{{{an_id(choices), INT64_MAX}}}};
      default: return SeenRecord{node, position};
    }
  }
  Record a_record(Choices& choices) {
    switch (choices.below(10)) {
      case 0:
      case 1:
      case 2: return a_put(choices);
      case 3:
      case 4:
      case 5: return NameRecord{an_id(choices), a_name(choices), an_id(choices)};
      case 6: return UnnameRecord{an_id(choices), a_name(choices), an_id(choices)};
      case 7: return MoveRecord{an_id(choices), 1, a_place(choices)};
      case 8: return AttributesRecord{an_id(choices), attributes(choices)};
      default:
        if (choices.below(2) == 0) return TouchRecord{{{an_id(choices), INT64_MAX}}};
        if (choices.below(2) == 0) return about_others(choices);
        return SuccessorsRecord{an_id(choices), an_id(choices), {{an_id(choices), 7}, {an_id(choices), 7}}};
    }
  }

  void craft(Choices& choices) {
    FileIdentity identity{header().uuid, "test", 1};
    const std::string boot_id = list_journals(*disk_, identity)->front().boot_id;
    identity.epoch = kEpoch;
    require(disk_->make_directories(epoch_directory("test", kEpoch)).has_value(), "epoch");
    auto journal = JournalWriter::create(disk_, identity, choices.below(4) == 0 ? "another" : boot_id, kMiB);
    const uint8_t how = choices.byte();
    const Stamp stamp{how % 8 == 0 ? UINT64_MAX : static_cast<uint64_t>(rig_.clock().realtime_ns())};
    if (how % 4 == 1) rig_.set_index_from("");  // else the records come over an index that has what was good
    Batch batch{stamp, {}};
    std::vector<Record> all;
    while (choices.left() && all.size() < 200) {
      batch.records.push_back(a_record(choices));
      all.push_back(batch.records.back());
      if (choices.below(3) != 0) continue;
      require((*journal)->append(batch).has_value(), "append");
      batch.records.clear();
    }
    if (!batch.records.empty()) require((*journal)->append(batch).has_value(), "append");
    if (how % 2 == 0) require((*journal)->append(Batch{stamp, {SyncedRecord{}}}).has_value(), "append");
    require((*journal)->sync().has_value(), "sync");
    if (how % 4 != 3) return;
    // A checkpoint of good objects and all of these, in something like its order.
    rig_.set_index_from("");
    for (const ObjectRecord& object : good_) all.emplace_back(PutRecord{object});
    const auto key = [](const Record& record) {
      const auto* put = std::get_if<PutRecord>(&record);
      const auto* name = std::get_if<NameRecord>(&record);
      return std::tuple(record.index(), put ? put->object.id : name ? name->parent : ObjectId{}, name ? name_cookie(name->name) : 0);
    };
    if (how % 16 != 3) std::ranges::stable_sort(all, {}, key);
    auto checkpoint = CheckpointWriter::create(disk_, identity, 0, {(*journal)->position(), stamp, 1000});
    for (Record& record : all) require((*checkpoint)->add(std::move(record)).has_value(), "add");
    require((*checkpoint)->finish().has_value(), "finish");
  }

  // --- looking ---

  Found walk() {
    Found found;
    walk(kRootId, "", found, 0);
    return found;
  }
  void walk(ObjectId directory, const std::string& path, Found& found, int depth) {
    require(depth < 300, "the tree has no end");
    require(found.objects.insert(directory).second, path + ": a directory with two names");
    for (uint64_t after = 0;;) {
      const auto items = rig_.store().list(directory, after, 16);
      require(items.has_value(), path + " cannot be listed");
      if (items->empty()) return;
      for (const DirectoryItem& item : *items) {
        after = item.cookie;
        require(!item.name.empty() && item.name.size() <= 255 && item.name != "." && item.name != ".." &&
                    item.name.find('/') == std::string::npos && item.name.find('\0') == std::string::npos,
                path + ": a name that no file has");
        const std::string at = path.empty() ? item.name : path + "/" + item.name;
        found.paths.insert(at);
        const auto stat = rig_.store().lookup(directory, item.name, {});
        if (!stat) continue;  // in quarantine
        require(stat->id != kRootId, at + " is the root");
        if (S_ISDIR(item.type_bits)) {
          walk(item.id, at, found, depth + 1);
          continue;
        }
        found.objects.insert(item.id);
        if (!S_ISREG(stat->mode) || stat->size_bytes > 64 * kMiB) continue;
        const auto handle = rig_.store().open(item.id, {}, {});
        if (!handle) continue;
        const auto content = rig_.read(Rig::HandlePtr(*handle, Rig::Release{&rig_}));
        if (content) found.files.emplace(at, *content);
      }
    }
  }

  // What is made is new, and what it was made of is given back without harm to others.
  void use(const Found& before) {
    const auto tried = rig_.create("tried");  // raw files are counted as their records say: there may be no room
    if (!tried && tried.error().code == Code::kNoSpace) return;
    for (size_t i = 0; i < 3; ++i) {
      const std::string path = fmt::format("new{}", i), content = payload(200 + i, i == 0 ? 90 : i == 1 ? 60'000 : 600'000);
      write(path, content);
      require(!before.objects.contains(id_of(path)), path + " has the id of another");
    }
    require(rig_.drain().has_value(), "drain");
    for (const auto& [path, content] : walk().files) {
      const auto old = before.files.find(path);
      if (old != before.files.end()) require(old->second == content, path + " changed when others were made");
      require(known_.contains(content), path + " reads as nobody wrote it");
    }
    std::set<std::string> removed;
    for (const auto& [path, content] : before.files)
      if (removed.size() < before.files.size() / 2 && rig_.unlink(path)) removed.insert(path);
    for (size_t i = 0; i < 3; ++i) require(rig_.unlink(fmt::format("new{}", i)).has_value(), "unlink");
    static_cast<void>(rig_.drain());
    rig_.store().drop_caches();
    rig_.pass_time(5'000'000'000);
    rig_.store().drop_caches();
    const Found after = walk();
    for (const auto& [path, content] : before.files) {
      if (removed.contains(path)) continue;
      const auto still = after.files.find(path);
      require(still != after.files.end() && still->second == content, path + " was lost with others");
    }
  }

  void check(const std::string& when) {
    OfflineNode node;
    node.volume = disk_;
    node.header = header();
    node.identity = {node.header.uuid, "test", list_epochs(*disk_, "test")->back()};
    node.index_directory = rig_.index_directory();
    auto lock = disk_->lock("nodes/test/LOCK");
    require(lock.has_value(), "lock");
    node.lock = std::move(*lock);
    const auto report = check_node(node, {.repair = false, .progress = nullptr});
    require(report.has_value(), when + ": it cannot be checked: " + (report ? "" : report.error().message));
  }

  static constexpr uint32_t kEpoch = 7;
  const std::shared_ptr<SimVolume> disk_ = make_sim_volume();
  Rig rig_{options(), disk_};
  std::vector<ObjectId> good_ids_;
  std::vector<ObjectRecord> good_;
  std::set<std::string> known_{""};  // every content that was ever written or crafted with its checksum
  Index::Found found_{};
  std::string why_;
};

}  // namespace

void fuzz_hostile_volume(ByteSpan input) {
  log::set_level(testing::tracing() ? log::Level::kInfo : log::Level::kOff);
  HostileVolume().run(Choices(input));
}

}  // namespace kvcachefs

#include "store/index/record_check.h"

#include <sys/stat.h>

#include <algorithm>
#include <string_view>
#include <type_traits>
#include <variant>

#include <fmt/format.h>

#include "store/base/limits.h"
#include "store/base/node_name.h"
#include "store/base/units.h"

namespace kvcachefs {

namespace {

bool is_known_type(uint32_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG:
    case S_IFDIR:
    case S_IFLNK:
    case S_IFCHR:
    case S_IFBLK:
    case S_IFIFO:
    case S_IFSOCK: return true;
    default: return false;
  }
}

bool is_in_extent(PlaceKind kind) {
  return kind == PlaceKind::kPacked || kind == PlaceKind::kSolo || kind == PlaceKind::kRaw;
}

std::string printable(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '\\')
      result += fmt::format("\\x{:02x}", byte);
    else
      result += c;
  }
  return result;
}

// Epochs are given out in ascending order, so a record can only name ids of its own epoch or older ones.
class Check {
 public:
  explicit Check(uint32_t epoch) : epoch_(epoch) {}

  std::string operator()(const PutRecord& put) const {
    const ObjectRecord& object = put.object;
    if (std::string why = of_id(object.id); !why.empty()) return why;
    if (!is_known_type(object.attributes.mode)) return fmt::format("its mode {:#o} is of no type of file", object.attributes.mode);
    if (object.id == kRootId && !S_ISDIR(object.attributes.mode)) return "the root is no directory";
    return of_body(object);
  }
  std::string operator()(const AttributesRecord& record) const {
    if (std::string why = of_id(record.id); !why.empty()) return why;
    return is_known_type(record.attributes.mode) ? "" : fmt::format("its mode {:#o} is of no type of file", record.attributes.mode);
  }
  std::string operator()(const NameRecord& record) const { return of_name(record.parent, record.name, record.child); }
  std::string operator()(const UnnameRecord& record) const { return of_name(record.parent, record.name, record.child); }
  std::string operator()(const MoveRecord& record) const {
    if (std::string why = of_id(record.id); !why.empty()) return why;
    if (record.place.kind != PlaceKind::kPacked && record.place.kind != PlaceKind::kSolo) return "it is moved to where no body lies";
    return of_place(record.place);
  }
  std::string operator()(const TouchRecord&) const { return {}; }  // with unknown ids it does nothing
  std::string operator()(const DamagedRecord&) const { return {}; }  // likewise
  std::string operator()(const SuccessorsRecord& record) const {
    if (std::string why = of_id(record.id); !why.empty()) return why;
    for (const auto& [id, seen] : record.successors)
      if (std::string why = of_id(id); !why.empty()) return "a successor: " + why;
    return {};
  }
  std::string operator()(const SyncedRecord&) const { return {}; }
  std::string operator()(const StatementRecord& record) const {
    if (!is_node_name(record.node)) return "no node is called so";
    // The epochs of the other node are not known here.
    return std::visit(Check(kMaxEpoch), record.what);
  }
  std::string operator()(const SeenRecord& record) const {
    if (!is_node_name(record.node)) return "no node is called so";
    return record.position.epoch == 0 || record.position.epoch > kMaxEpoch ? "it is of no epoch" : "";
  }
  std::string operator()(const EndsRecord& record) const {
    return record.end.epoch < epoch_ ? "" : fmt::format("it ends epoch {} in epoch {}", record.end.epoch, epoch_);
  }
  std::string operator()(const NextRecord&) const { return {}; }

 private:
  std::string of_id(ObjectId id) const {
    if (id == kRootId) return {};
    if (id.node_ordinal() != 0) return "its id is of another node";
    if (id.epoch() == 0) return "its id is of no epoch";
    if (id.epoch() > epoch_) return fmt::format("its id is of epoch {}, which comes after epoch {}", id.epoch(), epoch_);
    return {};
  }

  std::string of_name(ObjectId parent, std::string_view name, ObjectId child) const {
    if (std::string why = of_id(parent); !why.empty()) return "the directory: " + why;
    if (std::string why = of_id(child); !why.empty()) return "the object: " + why;
    if (child == kRootId) return "the root has no name";
    if (parent == child) return "a directory is not in itself";
    if (name.empty()) return "the name is empty";
    if (name.size() > kMaxNameBytes) return fmt::format("the name has {} bytes", name.size());
    if (name == "." || name == "..") return "no file is called so";
    if (name.find('/') != std::string_view::npos || name.find('\0') != std::string_view::npos)
      return "the name has a slash or a NUL byte in it";
    return {};
  }

  std::string of_place(const Place& place) const {
    const ExtentId extent = place.extent;
    if (extent.epoch == 0 || extent.epoch > epoch_)
      return fmt::format("it lies in an extent of epoch {}, written in epoch {}", extent.epoch, epoch_);
    if (place.kind == PlaceKind::kPacked && (place.offset < kBlockBytes || place.offset % kBlockBytes != 0))
      return fmt::format("it lies at {} of a pack", place.offset);
    if (place.kind != PlaceKind::kPacked && place.offset != 0) return fmt::format("it begins at {} of a file of its own", place.offset);
    const uint64_t most = place.kind == PlaceKind::kRaw ? kMaxFileBytes : kMaxSealedBytes;
    if (place.length > most || place.offset > kMaxFileBytes) return fmt::format("it has {} bytes at {}", place.length, place.offset);
    return {};
  }

  std::string of_body(const ObjectRecord& object) const {
    const Body& body = object.body;
    const PlaceKind kind = body.place.kind;
    if (is_in_extent(kind))
      if (std::string why = of_place(body.place); !why.empty()) return why;
    if (body.size_bytes > (kind == PlaceKind::kRaw ? kMaxFileBytes : kMaxSealedBytes))
      return fmt::format("its size is {}", body.size_bytes);
    if (body.place.offset > kMaxFileBytes || body.place.length > kMaxFileBytes) return "its place is beyond any file";
    if (!S_ISREG(object.attributes.mode)) return of_no_file(object);
    if (kind == PlaceKind::kInline && body.inline_bytes.size() != body.size_bytes)
      return fmt::format("{} bytes of {} are in the record", body.inline_bytes.size(), body.size_bytes);
    if (body.quarantined || kind == PlaceKind::kRaw) return {};  // not read; or its size is the file's own
    if (kind == PlaceKind::kNone && body.size_bytes != 0) return fmt::format("{} bytes that lie nowhere", body.size_bytes);
    if (kind == PlaceKind::kNone) return {};
    if (body.place.length != body.size_bytes) return fmt::format("{} bytes in a place of {}", body.size_bytes, body.place.length);
    if (body.checksums.size() != div_ceil(body.size_bytes, kUnitBytes))
      return fmt::format("{} checksums of {} bytes", body.checksums.size(), body.size_bytes);
    return {};
  }

  static std::string of_no_file(const ObjectRecord& object) {
    const Body& body = object.body;
    if (body.place.kind != PlaceKind::kNone) return "what is no file lies in a place";
    if (!S_ISLNK(object.attributes.mode)) return body.inline_bytes.empty() ? "" : "what is no file has bytes";
    const std::string_view target(reinterpret_cast<const char*>(body.inline_bytes.data()), body.inline_bytes.size());
    if (target.size() != body.size_bytes || target.size() > kMaxSymlinkBytes || target.find('\0') != std::string_view::npos)
      return "a symbolic link to what is no path";
    return {};
  }

  const uint32_t epoch_;
};

bool is_possible(const Xattr& xattr) {
  return !xattr.name.empty() && xattr.name.size() <= kMaxXattrNameBytes && xattr.name.find('\0') == std::string::npos &&
         xattr.value.size() <= kMaxXattrBytes;
}

}  // namespace

std::string why_impossible(const Record& record, uint32_t epoch) { return std::visit(Check(epoch), record); }

size_t trim_attributes(Attributes& attributes) {
  auto& xattrs = attributes.xattrs;
  const size_t before = xattrs.size();
  std::erase_if(xattrs, [](const Xattr& xattr) { return !is_possible(xattr); });
  std::ranges::stable_sort(xattrs, {}, &Xattr::name);
  const auto twice = std::ranges::unique(xattrs, {}, &Xattr::name);
  xattrs.erase(twice.begin(), twice.end());
  size_t total = 0;
  std::erase_if(xattrs, [&](const Xattr& xattr) {
    const size_t bytes = xattr.name.size() + xattr.value.size();
    if (total + bytes > kMaxXattrTotalBytes) return true;
    total += bytes;
    return false;
  });
  const uint32_t mode = attributes.mode & (S_IFMT | 07777);
  const size_t odd_bits = std::exchange(attributes.mode, mode) != mode ? 1 : 0;
  return before - xattrs.size() + odd_bits;
}

std::string subject_of(const Record& record) {
  const auto name = [](const auto& named) {
    return fmt::format("the name '{}' of object {} in directory {}", printable(named.name), named.child.value, named.parent.value);
  };
  if (const auto* put = std::get_if<PutRecord>(&record)) return fmt::format("object {}", put->object.id.value);
  if (const auto* attributes = std::get_if<AttributesRecord>(&record)) return fmt::format("the attributes of object {}", attributes->id.value);
  if (const auto* named = std::get_if<NameRecord>(&record)) return name(*named);
  if (const auto* unnamed = std::get_if<UnnameRecord>(&record)) return "the removal of " + name(*unnamed);
  if (const auto* move = std::get_if<MoveRecord>(&record)) return fmt::format("the new place of object {}", move->id.value);
  if (const auto* row = std::get_if<SuccessorsRecord>(&record)) return fmt::format("the successors of object {}", row->id.value);
  if (const auto* statement = std::get_if<StatementRecord>(&record)) {
    const std::string of = std::visit(
        [](const auto& what) -> std::string {
          if constexpr (std::is_constructible_v<Record, decltype(what)>) return subject_of(Record(what));
          else return "the damage";
        },
        statement->what);
    return fmt::format("what is said of node '{}', {}", printable(statement->node), of);
  }
  if (const auto* seen = std::get_if<SeenRecord>(&record)) return fmt::format("the answer to node '{}'", printable(seen->node));
  return "a record";
}

}  // namespace kvcachefs

// Scans of whole tables of the index, and of the names of a directory; and the scrub mark.
#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "store/index/lmdb_index.h"
#include "store/index/served_record.h"
#include "store/journal/record_codec.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kLastCookie = std::numeric_limits<uint64_t>::max();

}  // namespace

LmdbIndex::OverlayNames LmdbIndex::overlay_names(ObjectId parent, uint64_t after, size_t limit,
                                                 const NameRows::Rows* above) const {
  OverlayNames found;
  found.covered = kLastCookie;
  const auto take = [&](const NameRows::Rows& names) {
    size_t taken = 0;
    for (auto at = names.upper_bound({parent, after}); at != names.end() && at->first.parent == parent; ++at) {
      if (++taken > limit) {  // this layer has more
        found.covered = std::min(found.covered, at->first.cookie - 1);
        break;
      }
      found.rows.emplace(at->first.cookie, at->second);  // newer layers were added before and win
    }
  };
  if (above != nullptr) take(*above);
  {
    std::shared_lock lock(overlay_mutex_);
    visit_layers([&](const Layer& layer) {
      take(layer.names.rows());
      return false;
    });
  }
  found.rows.erase(found.rows.upper_bound(found.covered), found.rows.end());
  return found;
}

Result<std::vector<NameEntry>> LmdbIndex::merge_names(ObjectId parent, uint64_t after, size_t limit,
                                                      const NameRows::Rows* above) const {
  std::vector<NameEntry> names;
  const auto emit = [&names](NameRow&& row) { std::ranges::move(row, std::back_inserter(names)); };
  while (names.size() < limit && after != kLastCookie) {
    // Each round is complete up to `covered`; removed rows may make it yield fewer names than were asked for.
    OverlayNames newer = overlay_names(parent, after, limit + 64, above);
    auto next = newer.rows.begin();
    Status status;
    const auto merge = [&](ByteSpan key_bytes, ByteSpan value) {
      const auto key = checked(parse_name_key(key_bytes));
      if (!key) {
        status = std::unexpected(key.error());
        return false;
      }
      if (key->parent != parent || key->cookie > newer.covered) return false;
      for (; next != newer.rows.end() && next->first < key->cookie && names.size() < limit; ++next) {
        emit(std::move(next->second));
      }
      if (names.size() >= limit) return false;
      if (next != newer.rows.end() && next->first == key->cookie) {
        emit(std::move(next->second));
        ++next;
        return names.size() < limit;
      }
      auto row = checked(decode_name_row(*key, value));
      if (!row) {
        status = std::unexpected(std::move(row).error());
        return false;
      }
      emit(std::move(*row));
      return names.size() < limit;
    };
    KVC_TRY(env_->scan(Table::kNames, name_key({parent, after + 1}), merge));
    KVC_TRY(status);
    for (; next != newer.rows.end() && names.size() < limit; ++next) emit(std::move(next->second));
    after = newer.covered;
  }
  return names;
}

Result<std::vector<NameEntry>> LmdbIndex::list(ObjectId parent, uint64_t after, size_t limit) const {
  return merge_names(parent, after, limit, nullptr);
}

Result<bool> LmdbIndex::is_empty(ObjectId directory) const {
  KVC_ASSIGN(const auto first, merge_names(directory, 0, 1, nullptr));
  return first.empty();
}

Result<bool> LmdbIndex::has_names(ObjectId directory, const NameRows::Rows& above) const {
  KVC_ASSIGN(const auto first, merge_names(directory, 0, 1, &above));
  return !first.empty();
}

// A scan comes by all pages of the file: those behind it do not stay mapped.
Status LmdbIndex::scan_whole(Table table, const LmdbEnv::RowFunction& row) const {
  constexpr uint64_t kBytesUntilLetGo = 16 * kMiB;
  uint64_t bytes = 0;
  return env_->scan(table, {}, [&](ByteSpan key, ByteSpan value) {
    bytes += key.size() + value.size();
    if (bytes >= kBytesUntilLetGo) {
      let_go_of_mapped();
      bytes = 0;
    }
    return row(key, value);
  });
}

Status LmdbIndex::scan_objects(const std::function<bool(ObjectRecord&&)>& row) const {
  Status status;
  KVC_TRY(scan_whole(Table::kObjects, [&](ByteSpan key, ByteSpan value) {
    const auto id = checked(parse_object_key(key));
    auto decoded = id ? checked(decode_object_row(*id, value)) : std::unexpected(id.error());
    if (decoded && !is_servable(decoded->object)) decoded = env_->damage("a row of objects cannot be right");
    if (decoded) return row(as_record(*decoded));
    status = std::unexpected(std::move(decoded).error());
    return false;
  }));
  return status;
}

Status LmdbIndex::scan_names(const std::function<bool(NameRecord&&)>& row) const {
  Status status;
  KVC_TRY(scan_whole(Table::kNames, [&](ByteSpan key_bytes, ByteSpan value) {
    const auto key = checked(parse_name_key(key_bytes));
    auto decoded = key ? checked(decode_name_row(*key, value)) : std::unexpected(key.error());
    if (!decoded) {
      status = std::unexpected(std::move(decoded).error());
      return false;
    }
    return std::ranges::all_of(
        *decoded, [&](NameEntry& entry) { return row(NameRecord{key->parent, std::move(entry.name), entry.child}); });
  }));
  return status;
}

Status LmdbIndex::scan_successors(const std::function<bool(SuccessorsRecord&&)>& row) const {
  Status status;
  KVC_TRY(scan_whole(Table::kSuccessors, [&](ByteSpan key, ByteSpan value) {
    const auto id = checked(parse_object_key(key));
    auto decoded = id ? checked(decode_successors_row(*id, value)) : std::unexpected(id.error());
    if (decoded) return row(std::move(*decoded));
    status = std::unexpected(std::move(decoded).error());
    return false;
  }));
  return status;
}

Status LmdbIndex::scan_extents(const std::function<bool(ExtentId, const ExtentUsage&)>& row) const {
  Status status;
  KVC_TRY(scan_whole(Table::kExtents, [&](ByteSpan key, ByteSpan value) {
    const auto id = checked(parse_extent_key(key));
    const auto decoded = id ? checked(decode_extent_row(value)) : std::unexpected(id.error());
    if (decoded) return row(*id, *decoded);
    status = std::unexpected(decoded.error());
    return false;
  }));
  return status;
}

Status LmdbIndex::scan_peer_records(const std::function<bool(Record&&)>& row) const {
  Status status;
  bool more = true;
  const auto scan = [&](ByteSpan prefix, const auto& decode) {
    return env_->scan(Table::kMeta, prefix, [&](ByteSpan key, ByteSpan value) {
      if (!as_text(key).starts_with(as_text(prefix))) return false;
      Result<Record> record = checked(decode(key, value));
      if (record) return more = row(std::move(*record));
      status = std::unexpected(std::move(record).error());
      return more = false;
    });
  };
  KVC_TRY(scan(kSeenKeyPrefix, [](ByteSpan key, ByteSpan value) -> Result<Record> { return decode_seen_row(key, value); }));
  if (!more) return status;
  KVC_TRY(scan(kStatementKeyPrefix, [](ByteSpan key_bytes, ByteSpan value) -> Result<Record> {
    KVC_ASSIGN(const StatementKey key, parse_statement_key(key_bytes));
    return decode_statement_row(key, value);
  }));
  return status;
}

Status LmdbIndex::forget_statements(std::string_view node, JournalPosition answered) {
  std::vector<StatementKey> gone;
  {
    std::shared_lock lock(overlay_mutex_);
    visit_layers([&](const Layer& layer) {
      for (const auto& [key, said] : layer.statements)
        if (said != nullptr && said->node == node && key.said <= answered) gone.push_back(key);
      return false;
    });
  }
  Status status;
  KVC_TRY(env_->scan(Table::kMeta, kStatementKeyPrefix, [&](ByteSpan key_bytes, ByteSpan value) {
    if (!as_text(key_bytes).starts_with(as_text(kStatementKeyPrefix))) return false;
    const auto key = checked(parse_statement_key(key_bytes));
    const auto said = key ? checked(decode_statement_row(*key, value)) : std::unexpected(key.error());
    if (!said) {
      status = std::unexpected(said.error());
      return false;
    }
    if (key->said > answered) return false;
    if (said->node == node) gone.push_back(*key);
    return true;
  }));
  KVC_TRY(status);
  std::unique_lock lock(overlay_mutex_);
  for (const StatementKey& key : gone) active_.statements[key] = nullptr;
  return {};
}

Result<std::vector<ObjectId>> LmdbIndex::scan_nameless() const {
  std::vector<ObjectId> nameless;
  Status status;
  KVC_TRY(scan_whole(Table::kObjects, [&](ByteSpan key, ByteSpan value) {
    const auto id = checked(parse_object_key(key));
    const auto decoded = id ? checked(decode_object_row(*id, value, true)) : std::unexpected(id.error());
    if (!decoded) {
      status = std::unexpected(decoded.error());
      return false;
    }
    if (decoded->nlink() == 0) nameless.push_back(*id);
    return true;
  }));
  KVC_TRY(status);
  return nameless;
}

Result<std::vector<ObjectId>> LmdbIndex::objects_after(ObjectId after, size_t limit) const {
  std::vector<ObjectId> ids;
  Status status;
  KVC_TRY(env_->scan(Table::kObjects, object_key(after), [&](ByteSpan key, ByteSpan) {
    const auto id = checked(parse_object_key(key));
    if (!id) {
      status = std::unexpected(id.error());
      return false;
    }
    if (*id > after) ids.push_back(*id);
    return ids.size() < limit;
  }));
  KVC_TRY(status);
  return ids;
}

// --- the scrub mark ---

ScrubMark LmdbIndex::scrub_mark() const {
  std::lock_guard lock(scrub_mutex_);
  return scrub_mark_;
}

void LmdbIndex::set_scrub_mark(const ScrubMark& mark) {
  std::lock_guard lock(scrub_mutex_);
  scrub_mark_ = mark;
}

// Writes a mark that no commit has written yet. Caller holds commit_mutex_.
Status LmdbIndex::write_scrub_mark() {
  const ScrubMark mark = scrub_mark();
  if (mark == scrub_found_ || damaged()) return {};
  KVC_ASSIGN(auto writer, env_->begin_write());
  Bytes value;
  encode_row(mark, value);
  KVC_TRY(writer.put(Table::kMeta, kScrubKey, value));
  return writer.commit();
}

}  // namespace kvcachefs

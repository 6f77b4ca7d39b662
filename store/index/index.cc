#include "store/index/index.h"

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "store/base/bytes.h"
#include "store/base/log.h"
#include "store/base/units.h"
#include "store/index/lmdb_index.h"
#include "store/index/page_check.h"
#include "store/journal/file_header.h"

namespace kvcachefs {

namespace {

// Errors of the machine, which another directory or a later try may avoid; moving the index aside would only cost a rebuild.
bool is_of_the_machine(const Error& error) {
  switch (error.sys_errno) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOSPC:
    case EDQUOT: return true;
    default: return false;
  }
}

// What can be done about it.
Status with_hint(Status status, uint64_t map_bytes) {
  if (status || status.error().sys_errno != ENOMEM) return status;
  Error error = std::move(status).error();
  error.message += fmt::format(": an index takes {} of addresses: see the limit on this process's address space (RLIMIT_AS, LimitAS=) and "
                               "vm.overcommit_memory with vm.overcommit_ratio", format_size(map_bytes));
  return std::unexpected(std::move(error));
}

// `row` is the identity in the index.
std::string told_apart(const Bytes& row, const IndexIdentity& wanted) {
  ByteReader reader(row);
  const bool same_format = reader.u32() == kIndexFormat;
  IndexIdentity there;
  const ByteSpan uuid = reader.raw(there.volume_uuid.size());
  std::copy(uuid.begin(), uuid.end(), there.volume_uuid.begin());
  there.node = reader.text();
  const std::string here = fmt::format("this is volume {}, node {}", format_uuid(wanted.volume_uuid), wanted.node);
  if (!same_format || !reader.ok()) return fmt::format("of another format; {}", here);
  return fmt::format("of volume {}, node {}; {}", format_uuid(there.volume_uuid), there.node, here);
}

}  // namespace

Result<std::unique_ptr<Index>> Index::open(const std::string& directory, const IndexIdentity& identity, Found* found,
                                           std::string* why) {
  return LmdbIndex::open(directory, identity, found, why, kMapBytes);
}

Result<std::unique_ptr<Index>> LmdbIndex::open(const std::string& directory, const IndexIdentity& identity,
                                               Found* found, std::string* why, uint64_t map_bytes) {
  KVC_ASSIGN(IndexDirectory home, IndexDirectory::take(directory));
  std::unique_ptr<LmdbIndex> index(new LmdbIndex(std::move(home)));
  index->identity_ = identity;
  why->clear();
  *found = Found::kFresh;
  if (index->directory_.has_data()) {
    auto opened = with_hint(index->open_existing(identity, map_bytes), map_bytes);
    if (opened) {
      if (index->committed_ != JournalPosition{}) *found = Found::kOpened;
      return index;
    }
    if (is_of_the_machine(opened.error())) return std::unexpected(std::move(opened).error());
    *why = opened.error().message;
    index->env_.reset();
    if (index->half_loaded_) {  // nothing in it is worth keeping, and it may fill half of the space that there is
      log::warn("{}; a new one is made", *why);
      KVC_TRY(index->directory_.clear());
    } else {
      log::warn("{}; moved to {}.damaged, a new one is made", *why, index->directory_.path());
      KVC_TRY(index->directory_.set_aside());
    }
    const bool of_another = index->is_of_another_;
    IndexDirectory kept = std::move(index->directory_);
    index.reset(new LmdbIndex(std::move(kept)));
    index->replaced_another_ = of_another;
    index->identity_ = identity;
  }
  KVC_TRY(with_hint(index->create(identity, map_bytes), map_bytes));
  return index;
}

Status LmdbIndex::open_existing(const IndexIdentity& identity, uint64_t map_bytes) {
  KVC_ASSIGN(const auto close, directory_.consume_clean_mark());
  closed_cleanly_ = close != IndexDirectory::Close::kUnclean;
  // A file too large for either check is trusted until a read finds damage.
  if (close == IndexDirectory::Close::kUnclean && directory_.data_bytes() <= kMaxChecksummedBytes) {
    KVC_TRY(check_pages(directory_.data_path(), LmdbEnv::is_sound_row));
  }
  KVC_ASSIGN(env_, LmdbEnv::open(directory_.path(), LmdbEnv::Open::kExisting, map_bytes));
  Bytes value, expected;
  KVC_ASSIGN(const bool identified, env_->get(Table::kMeta, kIdentityKey, value));
  encode_row(identity, expected);
  is_of_another_ = !identified || value != expected;
  if (is_of_another_) {
    return fail(Code::kVersion, fmt::format("index {} is of another volume, node or format ({})", directory_.path(), told_apart(value, identity)));
  }
  KVC_ASSIGN(const bool stated, env_->get(Table::kMeta, kStateKey, value));
  if (!stated) return fail(Code::kCorrupt, fmt::format("index {} has no state", directory_.path()));
  KVC_ASSIGN(const CommittedState committed, decode_state_row(value));
  half_loaded_ = committed.loading;
  if (half_loaded_) {
    return fail(Code::kCorrupt, fmt::format("index {}: its load of a checkpoint did not end", directory_.path()));
  }
  state_ = committed.state;
  committed_ = state_.position;
  KVC_TRY(read_epochs());
  KVC_TRY(read_scrub_mark());
  return read_leftovers();
}

Status LmdbIndex::read_scrub_mark() {
  Bytes value;
  KVC_ASSIGN(const bool told, env_->get(Table::kMeta, kScrubKey, value));
  if (!told) return {};
  if (auto row = decode_scrub_row(value)) scrub_mark_ = scrub_found_ = *row;  // else the hint is not understood: ignored
  return {};
}

Status LmdbIndex::read_leftovers() {
  Bytes value;
  KVC_ASSIGN(const bool told, env_->get(Table::kMeta, kLeftoversKey, value));
  if (!told) return {};
  auto row = decode_leftovers_row(value);  // perhaps of another program: a hint that is not understood is ignored
  if (row && row->position == committed_) leftovers_ = std::move(row->leftovers);
  return {};
}

Status LmdbIndex::read_epochs() {
  Status status;
  KVC_TRY(env_->scan(Table::kMeta, kEpochKeyPrefix, [&](ByteSpan key, ByteSpan value) {
    if (!as_text(key).starts_with(as_text(kEpochKeyPrefix))) return false;
    const auto epoch = parse_epoch_key(key);
    const auto highs = decode_epoch_row(value);
    if (!epoch || !highs) {
      status = std::unexpected(!epoch ? epoch.error() : highs.error());
      return false;
    }
    epochs_[*epoch] = *highs;
    return true;
  }));
  return status;
}

Status LmdbIndex::create(const IndexIdentity& identity, uint64_t map_bytes) {
  KVC_TRY(directory_.clear());
  KVC_ASSIGN(env_, LmdbEnv::open(directory_.path(), LmdbEnv::Open::kNew, map_bytes));
  KVC_ASSIGN(auto writer, env_->begin_write());
  Bytes value;
  encode_row(identity, value);
  KVC_TRY(writer.put(Table::kMeta, kIdentityKey, value));
  value.clear();
  encode_row(CommittedState{{}, false}, value);
  KVC_TRY(writer.put(Table::kMeta, kStateKey, value));
  return writer.commit();
}

}  // namespace kvcachefs

// Rows: reading them, and write transactions.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "store/base/checksum.h"
#include "store/base/units.h"
#include "store/index/fault_guard.h"
#include "store/index/lmdb_environment.h"

namespace kvcachefs {

namespace {

using fault_guard::run_guarded;
using namespace lmdb;

constexpr size_t kChecksumBytes = 4;
// Larger than any row can be (the checksums of a body of 2 TiB are 64 MiB); a longer row has a damaged length.
constexpr size_t kMaxRowBytes = 256 * kMiB;

MDB_val as_val(ByteSpan bytes) { return {bytes.size(), const_cast<std::byte*>(bytes.data())}; }

uint32_t row_checksum(Table table, ByteSpan key, ByteSpan value) {
  return static_cast<uint32_t>(checksum(value, checksum(key, static_cast<uint64_t>(table) + 1)));
}

}  // namespace

Status LmdbEnv::verify(Table table, ByteSpan key, Bytes& value) const {
  const char* name = kTableNames[static_cast<size_t>(table)];
  if (!is_sound_row(name, key, value)) return damage(fmt::format("a row of {} does not match its checksum", name));
  value.resize(value.size() - kChecksumBytes);
  return {};
}

bool LmdbEnv::is_sound_row(std::string_view table, ByteSpan key, ByteSpan stored) {
  const auto name = std::ranges::find(kTableNames, table);
  if (name == std::end(kTableNames) || stored.size() < kChecksumBytes) return false;
  return ByteReader(stored.last(kChecksumBytes)).u32() ==
         row_checksum(static_cast<Table>(name - kTableNames), key, stored.first(stored.size() - kChecksumBytes));
}

Result<bool> LmdbEnv::get(Table table, ByteSpan key, Bytes& value) const {
  Reader reader(*this);
  if (reader.closed()) return closed();
  if (reader.code() != 0) return error(reader.code(), "starting to read");
  int code = 0;
  MDB_val found = {};
  value.resize(std::max<size_t>(value.capacity(), 512));
  bool whole = run_guarded([&] {
    MDB_val wanted = as_val(key);
    code = mdb_get(reader.txn(), reader.table(table), &wanted, &found);
    if (code == 0 && found.mv_size <= value.size()) std::memcpy(value.data(), found.mv_data, found.mv_size);
  });
  reader.used(whole, code);
  if (!whole) return damage("a page sends readers astray");
  if (code == MDB_NOTFOUND) return false;
  if (code != 0) return damage(mdb_strerror(code));  // a read of mapped pages has no other reason to fail
  if (found.mv_size > kMaxRowBytes) return damage("a row has an impossible length");
  const bool copied = found.mv_size <= value.size();
  value.resize(found.mv_size);
  if (!copied && !run_guarded([&] { std::memcpy(value.data(), found.mv_data, found.mv_size); })) {
    return damage("a row reaches out of the file");
  }
  KVC_TRY(verify(table, key, value));
  return true;
}

Result<bool> LmdbEnv::has(Table table, ByteSpan key) const {
  Reader reader(*this);
  if (reader.closed()) return closed();
  if (reader.code() != 0) return error(reader.code(), "starting to read");
  int code = 0;
  const bool whole = run_guarded([&] {
    MDB_val wanted = as_val(key), found = {};
    code = mdb_get(reader.txn(), reader.table(table), &wanted, &found);
  });
  reader.used(whole, code);
  if (!whole) return damage("a page sends readers astray");
  if (code != 0 && code != MDB_NOTFOUND) return damage(mdb_strerror(code));
  return code == 0;
}

// A run of rows copied out of the map: for each, key length and value length (4 bytes each), key, value.
struct LmdbEnv::Copied {
  Bytes buffer = Bytes(64 * kKiB);
  size_t rows = 0;
  size_t used = 0;
  size_t need = 0;  // > 0: the next row did not fit; it takes this many bytes

  // Copies from the first row with a key >= `from`, or > `from` if `above`. Guarded code: owns nothing, allocates nothing.
  int fill(MDB_cursor* cursor, MDB_val from, bool above, size_t limit) {
    rows = used = need = 0;
    MDB_val key = from;
    MDB_val value = {};
    MDB_cursor_op operation = MDB_SET_RANGE;
    for (; rows < limit; operation = MDB_NEXT) {
      const int code = mdb_cursor_get(cursor, &key, &value, operation);
      if (code != 0) return code;
      if (above && key.mv_size == from.mv_size && std::memcmp(key.mv_data, from.mv_data, from.mv_size) == 0) {
        above = false;
        continue;
      }
      const size_t size = 8 + key.mv_size + value.mv_size;
      if (key.mv_size > UINT16_MAX || value.mv_size > kMaxRowBytes) return MDB_CORRUPTED;
      if (size > buffer.size() - used) {
        need = size;
        return 0;
      }
      const uint32_t lengths[2] = {static_cast<uint32_t>(key.mv_size), static_cast<uint32_t>(value.mv_size)};
      std::memcpy(buffer.data() + used, lengths, 8);
      std::memcpy(buffer.data() + used + 8, key.mv_data, key.mv_size);
      std::memcpy(buffer.data() + used + 8 + key.mv_size, value.mv_data, value.mv_size);
      used += size;
      ++rows;
    }
    return 0;
  }
};

Status LmdbEnv::scan(Table table, ByteSpan from, const RowFunction& row) const {
  static constexpr std::byte kFirst{};
  Copied copied;
  Bytes last, value;
  int code = 0;
  for (size_t limit = 32; code == 0; limit = std::min<size_t>(limit * 2, 1024)) {
    const ByteSpan start = !last.empty() ? ByteSpan(last) : !from.empty() ? from : ByteSpan(&kFirst, 1);
    {
      Reader reader(*this);
      if (reader.closed()) return closed();
      if (reader.code() != 0) return error(reader.code(), "starting to read");
      const bool whole = run_guarded([&] {
        MDB_cursor* cursor = nullptr;
        code = mdb_cursor_open(reader.txn(), reader.table(table), &cursor);
        if (code != 0) return;
        code = copied.fill(cursor, as_val(start), !last.empty(), limit);
        mdb_cursor_close(cursor);
      });
      reader.used(whole, code);
      if (!whole || (code != 0 && code != MDB_NOTFOUND)) return damage("a page sends scans astray");
    }
    for (size_t at = 0, n = 0; n < copied.rows; ++n) {
      uint32_t lengths[2];
      std::memcpy(lengths, copied.buffer.data() + at, 8);
      const ByteSpan key = ByteSpan(copied.buffer).subspan(at + 8, lengths[0]);
      value.assign(key.data() + lengths[0], key.data() + lengths[0] + lengths[1]);
      at += 8 + size_t{lengths[0]} + lengths[1];
      // If keys did not ascend, a scan of a damaged tree could loop forever.
      if (!last.empty() && !std::ranges::lexicographical_compare(last, key)) return damage("keys are out of order");
      last.assign(key.begin(), key.end());
      KVC_TRY(verify(table, key, value));
      if (!row(key, value)) return {};
    }
    if (copied.need > copied.buffer.size()) copied.buffer.resize(copied.need);
  }
  return {};
}

Result<LmdbEnv::Writer> LmdbEnv::begin_write() {
  std::unique_lock lock(write_mutex_);
  if (damaged()) return damage(kFoundBefore);
  if (must_reopen_) {
    KVC_ASSIGN(auto anew, open_environment(Open::kExisting, map_bytes_));
    must_reopen_ = false;
    if (!replace(std::move(anew))) return damage("it could not be closed");
  }
  Writer writer(*this, std::move(lock), opened());
  if (writer.opened_ == nullptr) return closed();
  writer.opened_->readers.await_overtaken();
  int code = 0;
  const bool whole = run_guarded([&] { code = mdb_txn_begin(writer.opened_->env, nullptr, 0, &writer.txn_); });
  if (!whole) return writer.broken("a write transaction could not be started");
  if (code == 0 && !writer.opened_->is_newest(mdb_txn_id(writer.txn_) - 1)) return damage("its meta pages are not those of the last commit");
  if (code == 0) return writer;
  writer.txn_ = nullptr;
  must_reopen_ = code == MDB_PANIC;
  return error(code, "starting to write");
}

LmdbEnv::Writer::Writer(Writer&& other) noexcept
    : env_(other.env_),
      opened_(std::move(other.opened_)),
      lock_(std::move(other.lock_)),
      txn_(std::exchange(other.txn_, nullptr)),
      map_full_(other.map_full_),
      scratch_(std::move(other.scratch_)) {}

LmdbEnv::Writer::~Writer() {
  if (txn_ == nullptr || opened_->broken) return;
  if (!run_guarded([this] { mdb_txn_abort(txn_); })) (void)broken("a write could not be undone");
}

Status LmdbEnv::Writer::failed(int code, const char* what) {
  map_full_ = code == MDB_MAP_FULL;
  return env_->error(code, what);
}

std::unexpected<Error> LmdbEnv::Writer::broken(const char* what) {
  opened_->broken = true;
  return env_->damage(what);
}

Status LmdbEnv::Writer::put(Table table, ByteSpan key, ByteSpan value) { return store(table, key, value, 0); }

Status LmdbEnv::Writer::append(Table table, ByteSpan key, ByteSpan value) {
  return store(table, key, value, MDB_APPEND);
}

Status LmdbEnv::Writer::store(Table table, ByteSpan key, ByteSpan value, unsigned flags) {
  scratch_.assign(value.begin(), value.end());
  ByteWriter(scratch_).u32(row_checksum(table, key, value));
  int code = 0;
  const bool whole = run_guarded([&] {
    MDB_val row_key = as_val(key);
    MDB_val row_value = as_val(scratch_);
    code = mdb_put(txn_, opened_->tables[static_cast<size_t>(table)], &row_key, &row_value, flags);
  });
  if (!whole) return broken("a page sends writers astray");
  if (code == MDB_KEYEXIST) return fail(Code::kCorrupt, "rows of a bulk load are not in ascending order");
  if (code != 0) return failed(code, "writing a row");
  return {};
}

Status LmdbEnv::Writer::remove(Table table, ByteSpan key) {
  int code = 0;
  const bool whole = run_guarded([&] {
    MDB_val row_key = as_val(key);
    code = mdb_del(txn_, opened_->tables[static_cast<size_t>(table)], &row_key, nullptr);
  });
  if (!whole) return broken("a page sends writers astray");
  if (code != 0 && code != MDB_NOTFOUND) return failed(code, "removing a row");
  return {};
}

Status LmdbEnv::Writer::commit() {
  MDB_txn* txn = std::exchange(txn_, nullptr);  // the transaction is gone, whatever the commit returns
  int code = 0;
  opened_->readers.close_gate();
  const bool whole = run_guarded([&] { code = mdb_txn_commit(txn); });
  if (!whole) {
    // No reader is started any more: a meta page may be half written. Readers use the transactions provided before.
    opened_->readers.abandon_gate(MDB_CORRUPTED);
    return broken("a commit was lost");
  }
  opened_->ask_for_newest();
  const int started = opened_->readers.open_gate(code == 0);
  env_->must_reopen_ = code != 0 && started != 0;
  if (code != 0) return failed(code, "committing");
  return {};
}

}  // namespace kvcachefs

#include "store/index/lmdb_environment.h"

#include <mutex>
#include <utility>
#include <vector>

#include "store/base/mutex.h"
#include "store/index/fault_guard.h"
#include "store/index/mapped_pages.h"

namespace kvcachefs {

namespace {

using fault_guard::run_guarded;
using namespace lmdb;

void on_assertion(MDB_env*, const char*) { fault_guard::leave_as_fault(); }

// Keeps transactions that a fault left: nothing may touch them again, and leak checkers find them here.
void abandon(std::vector<MDB_txn*> transactions) {
  static LeafMutex mutex;
  static auto* const all = new std::vector<std::vector<MDB_txn*>>();
  const std::lock_guard lock(mutex);
  all->push_back(std::move(transactions));
}

}  // namespace

// Called under the guard; returns an LMDB code.
int LmdbEnv::Environment::open(const std::string& directory, uint64_t map_bytes, Open how) {
  int code = mdb_env_create(&env);
  if (code != 0) return code;
  mdb_env_set_assert(env, on_assertion);
  code = mdb_env_set_maxdbs(env, kTableCount);
  if (code == 0) code = mdb_env_set_mapsize(env, map_bytes);
  // NOLOCK: see reader_pool.h; the lock of IndexDirectory excludes other processes, write_mutex_ other writers. NOTLS: read
  // transactions belong to the pool, not to threads. NORDAHEAD: lookups are random. Never WRITEMAP (a full disk would
  // raise SIGBUS), never NOSYNC (invariant 11).
  if (code == 0) code = mdb_env_open(env, directory.c_str(), MDB_NOLOCK | MDB_NOTLS | MDB_NORDAHEAD, 0600);
  if (code == 0) code = open_tables(how);
  if (code != 0) mdb_env_close(std::exchange(env, nullptr));
  return code;
}

int LmdbEnv::Environment::open_tables(Open how) {
  // Existing tables are opened read-only: making a table whose name was damaged would write into damaged pages.
  const bool create = how == Open::kNew;
  MDB_txn* txn = nullptr;
  int code = mdb_txn_begin(env, nullptr, create ? 0 : MDB_RDONLY, &txn);
  for (size_t i = 0; i < kTableCount && code == 0; ++i) {
    code = mdb_dbi_open(txn, kTableNames[i], create ? MDB_CREATE : 0, &tables[i]);
    unsigned flags = 0;
    if (code == 0) code = mdb_dbi_flags(txn, tables[i], &flags);
    if (code == 0 && flags != 0) code = MDB_INCOMPATIBLE;
  }
  if (code == 0) code = mdb_txn_commit(std::exchange(txn, nullptr));
  if (code == 0) code = mdb_txn_begin(env, nullptr, MDB_RDONLY, &txn);
  if (code == 0) newest_ = mdb_txn_id(txn);
  if (txn != nullptr) mdb_txn_abort(txn);
  return code;
}

int LmdbEnv::Environment::start_reader(MDB_txn*& txn) {
  int code = 0;
  MDB_txn* started = txn;
  const bool whole = run_guarded([&] {
    if (started != nullptr) mdb_txn_reset(started);
    code = started != nullptr ? mdb_txn_renew(started) : mdb_txn_begin(env, nullptr, MDB_RDONLY, &started);
    if (code != 0 && txn != nullptr) return mdb_txn_abort(txn);
    if (code != 0) return;
    if (is_newest(mdb_txn_id(started))) return;
    mdb_txn_abort(started);
    code = MDB_CORRUPTED;
  });
  if (whole && code == 0) {
    txn = started;
    return 0;
  }
  txn = nullptr;
  return whole ? code : MDB_CORRUPTED;
}

bool LmdbEnv::Environment::close() {
  std::vector<MDB_txn*> ended = readers.retire();
  if (broken) abandon(std::move(ended));
  if (env == nullptr || broken) return true;
  const bool whole = run_guarded([&] {
    for (MDB_txn* txn : ended) mdb_txn_abort(txn);
    const auto held = hold_mapped_pages();
    mdb_env_close(env);
  });
  env = nullptr;
  return whole;
}

}  // namespace kvcachefs

// One opening of LMDB's file, and its readers. Only the sources of lmdb_env.h include this header, and lmdb.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <lmdb.h>

#include "store/index/lmdb_env.h"
#include "store/index/reader_pool.h"

namespace kvcachefs {

namespace lmdb {

inline constexpr const char* kTableNames[kTableCount] = {"meta", "names", "objects", "extents", "successors"};
inline constexpr std::string_view kFoundBefore = "found before";

}  // namespace lmdb

// One opening of the file: LMDB's environment, its tables, and its readers. Replaced as a whole.
class LmdbEnv::Environment {
 public:
  Environment() : readers([this](MDB_txn*& txn) { return start_reader(txn); }) {}
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  int open(const std::string& directory, uint64_t map_bytes, Open how);
  // Waits for its readers.
  bool close();

  MDB_env* env = nullptr;
  unsigned tables[kTableCount] = {};
  ReaderPool readers;
  // A fault interrupted a write: LMDB's own state may be inconsistent, so this environment is only read from now on, and its map
  // and descriptors are leaked.
  std::atomic<bool> broken = false;

  // LMDB starts a transaction from the newest meta page in the file. If a page rotted, or an older file was written back in place, that would lose what was
  // committed since: so a transaction must begin with the last commit. Called by the writer, and by readers while its gate is open.
  bool is_newest(uint64_t transaction) {
    uint64_t before = newest_;
    if (asks_for_newest_.exchange(false) && transaction == before + 1) newest_.compare_exchange_strong(before, transaction);
    return transaction == newest_;
  }
  // A commit ended, with or without success: the next transaction to start shows which is newest, mostly the reader that opening the gate starts.
  void ask_for_newest() { asks_for_newest_ = true; }

 private:
  int open_tables(Open how);
  int start_reader(MDB_txn*& txn);
  std::atomic<uint64_t> newest_ = 0;
  std::atomic<bool> asks_for_newest_ = false;
};

// A read transaction of the snapshot that is newest at its construction.
class LmdbEnv::Reader {
 public:
  explicit Reader(const LmdbEnv& env) {
    do {
      opened_ = env.opened();
      if (opened_ == nullptr) return;  // closed
      reader_ = opened_->readers.take();
    } while (reader_.retired);
  }
  ~Reader() {
    if (reader_.txn != nullptr) opened_->readers.give_back(reader_, left_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  bool closed() const { return opened_ == nullptr; }
  int code() const { return reader_.code; }
  MDB_txn* txn() const { return reader_.txn; }
  unsigned table(Table table) const { return opened_->tables[static_cast<size_t>(table)]; }
  // Call after guarded use of the transaction: records whether it can be used again.
  void used(bool whole, int code) {
    if (!whole) left_ = ReaderPool::Left::kLost;
    if (whole && code != 0 && code != MDB_NOTFOUND) left_ = ReaderPool::Left::kSpoiled;
  }

 private:
  std::shared_ptr<Environment> opened_;
  ReaderPool::Reader reader_;
  ReaderPool::Left left_ = ReaderPool::Left::kSound;
};

}  // namespace kvcachefs

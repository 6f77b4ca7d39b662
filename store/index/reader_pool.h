// Read transactions of one LMDB environment that runs without LMDB's reader table (MDB_NOLOCK), and a record of which
// snapshots are being read.
//
// LMDB's own table is a file beside the data, and each read stores into it through a mapping: on a frozen file system
// that store waits for the thaw, on a full copy-on-write one it raises SIGBUS. With this pool a read touches memory only. Two rules
// replace the table:
//   - A write transaction overwrites no page of the newest snapshot, for a crash must find that one whole; it may overwrite
//     pages of older ones. So it begins only when no reader of an older snapshot is left (await_overtaken()).
//   - Starting a transaction reads the meta pages, which a commit overwrites. So none is started while a commit
//     runs: close_gate() starts some ahead of the commit, and readers take these however long the commit takes.
// So readers wait only for other readers, never for a commit. A reader that has a transaction must not wait for anything
// but page faults.
//
// Threads: take() and give_back() from any thread; the rest from the one writer. One leaf mutex, held over memory work only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "store/base/mutex.h"

struct MDB_txn;

namespace kvcachefs {

class ReaderPool {
 public:
  // Restarts `txn` at the newest commit, or starts a new one if it is null; leaves null in it on failure. Returns an
  // LMDB code. Called without the mutex; while the gate is closed only the writer calls it.
  using Start = std::function<int(MDB_txn*& txn)>;
  // The gate closes with at least this many transactions ready: more concurrent readers than that wait for each other during a commit.
  static constexpr size_t kProvided = 64;

  explicit ReaderPool(Start start) : start_(std::move(start)) {}
  ReaderPool(const ReaderPool&) = delete;
  ReaderPool& operator=(const ReaderPool&) = delete;

  struct Reader {
    MDB_txn* txn = nullptr;   // null: see `code` and `retired`
    uint64_t generation = 0;  // of the snapshot
    int code = 0;             // why no transaction could be started
    bool retired = false;     // the environment was replaced: ask its successor
  };
  Reader take();
  enum class Left : uint8_t {
    kSound,    // fit for the next reader
    kSpoiled,  // LMDB refuses it until it is restarted
    kLost,     // a fault ended the read: never touched again
  };
  void give_back(const Reader& reader, Left left = Left::kSound);

  // Before a write transaction begins.
  void await_overtaken();
  // Around its commit. `committed`: there is a newer snapshot. After a failed commit that made the environment unusable
  // (MDB_PANIC) the gate is abandoned as by abandon_gate(), and the code is returned: replace the environment.
  void close_gate();
  int open_gate(bool committed);
  // Replaces open_gate(): the gate stays closed. Readers go on with the transactions provided before. As reads of bad pages use those up,
  // take() returns `code` (not 0) once none is left that could be given back: a reader would wait forever.
  void abandon_gate(int code);
  // From now on no reader gets a transaction. Returns, when no reader has one, the transactions, which the caller must end.
  std::vector<MDB_txn*> retire();

 private:
  const Start start_;
  LeafMutex mutex_;
  ConditionVariable changed_;
  std::vector<MDB_txn*> idle_;   // of the newest snapshot
  std::vector<MDB_txn*> stale_;  // to be restarted
  uint64_t generation_ = 0;      // of the newest snapshot
  size_t reading_ = 0;           // readers of the newest snapshot
  size_t overtaken_ = 0;         // readers of older ones
  size_t starting_ = 0;
  size_t waiting_ = 0;
  bool gate_closed_ = false;
  int abandoned_code_ = 0;  // not 0: the gate stays closed forever
  bool retired_ = false;
};

}  // namespace kvcachefs

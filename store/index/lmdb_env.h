// The LMDB environment as the rest of the index sees it: tables of checksummed rows, guarded against damage. The only
// user of lmdb.h is lmdb_env.cc.
//
// Every row carries 4 bytes of checksum over table, key and value, so that a flipped value, a row in the wrong table or
// a changed key is found out. Every call into LMDB and every look at mapped memory runs under the fault guard. After
// the first sign of damage the environment is never touched again: calls answer kCorrupt, and its map, locks and
// descriptors are leaked on purpose, since LMDB's own state may be inconsistent.
//
// Threads: get, scan and damaged from any thread. One Writer at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/result.h"

struct MDB_env;
struct MDB_txn;

namespace kvcachefs {

enum class Table : uint8_t { kMeta = 0, kNames, kObjects, kExtents, kSuccessors };
inline constexpr size_t kTableCount = 5;

class LmdbEnv {
 public:
  enum class Open : uint8_t { kExisting, kNew };
  // Opens data.mdb in `directory`, or makes it and its tables. `map_bytes` is address space, neither memory nor disk.
  static Result<std::unique_ptr<LmdbEnv>> open(const std::string& directory, Open how, uint64_t map_bytes);
  ~LmdbEnv();
  // Whether a stored value is what the environment would store under `key` in the table of that name.
  static bool is_sound_row(std::string_view table, ByteSpan key, ByteSpan stored);
  LmdbEnv(const LmdbEnv&) = delete;
  LmdbEnv& operator=(const LmdbEnv&) = delete;

  // The newest committed row; false if there is none.
  Result<bool> get(Table table, ByteSpan key, Bytes& value) const;

  // Rows with key >= `from` in key order, as of one moment. The spans are copies, valid during the call. A false return
  // stops. No commit may run meanwhile if `row` takes its time: the read transaction is held all along.
  using RowFunction = std::function<bool(ByteSpan key, ByteSpan value)>;
  Status scan(Table table, ByteSpan from, const RowFunction& row) const;

  // One write transaction. Destroyed without commit() it leaves no trace. After an error only destruction is left.
  class Writer {
   public:
    Writer(Writer&& other) noexcept;
    Writer& operator=(Writer&&) = delete;
    ~Writer();
    Status put(Table table, ByteSpan key, ByteSpan value);
    // For keys that ascend and are greater than every key of the table: fills pages to the brim.
    Status append(Table table, ByteSpan key, ByteSpan value);
    Status remove(Table table, ByteSpan key);  // an absent row is fine
    // Synced when it returns without error.
    Status commit();
    // Whether an error came of the map being too small: destroy the Writer, call enlarge_map(), start again.
    bool map_full() const { return map_full_; }

   private:
    friend class LmdbEnv;
    Writer(LmdbEnv& env, std::unique_lock<std::mutex> lock) : env_(&env), lock_(std::move(lock)) {}
    Status store(Table table, ByteSpan key, ByteSpan value, unsigned flags);
    Status failed(int code, const char* what);
    LmdbEnv* env_;
    std::unique_lock<std::mutex> lock_;
    MDB_txn* txn_ = nullptr;
    bool map_full_ = false;
    Bytes scratch_;
  };
  Result<Writer> begin_write();
  // Doubles the map. Waits for readers; they wait for it.
  Status enlarge_map();

  // Every later call answers kCorrupt. A file of which much is `unused_bytes` is rewritten without them, if it is not
  // too large for that; failing that (a full disk) it stays as it is. The caller has checked the pages.
  Status close(uint64_t unused_bytes);

  // Reads the file's first `most_bytes` into the page cache and keeps what is read of them there: what streams through the page
  // cache would push them out, and then each lookup waits for the disk. Reads from the disk; best effort (RLIMIT_MEMLOCK).
  void keep_in_memory(uint64_t most_bytes) const;

  bool damaged() const { return damaged_.load(std::memory_order_acquire); }
  // For finders of damage above this layer. Returns the error to pass on.
  std::unexpected<Error> damage(std::string_view what) const;
  uint64_t file_bytes() const;
  uint64_t map_bytes() const { return map_bytes_; }  // for the owner of writes

 private:
  class Reader;
  struct Copied;
  LmdbEnv(std::string directory, uint64_t map_bytes) : directory_(std::move(directory)), map_bytes_(map_bytes) {}
  Status open_environment(Open how);
  Status open_tables(Open how);
  bool close_environment();
  // Both leave a file beside the data that close() puts in its place; false: none.
  bool refill();
  bool compact();
  bool write_copy(uint64_t unused_bytes);
  // Closes and opens: with a larger map, or because LMDB refuses to go on after a failed write of its meta page.
  Status reopen(uint64_t map_bytes);
  std::unexpected<Error> error(int code, std::string_view what) const;
  Result<bool> get_once(Table table, ByteSpan key, Bytes& value, bool* panic) const;
  Status verify(Table table, ByteSpan key, Bytes& value) const;

  const std::string directory_;
  uint64_t map_bytes_;
  MDB_env* env_ = nullptr;
  unsigned tables_[kTableCount] = {};
  mutable std::atomic<bool> damaged_{false};
  // Lock order: write_mutex_, map_mutex_, pool_mutex_.
  std::mutex write_mutex_;               // held by the Writer
  mutable std::shared_mutex map_mutex_;  // shared: in a read transaction; alone: while the environment is replaced
  mutable std::mutex pool_mutex_;
  mutable std::vector<MDB_txn*> pool_;  // reset read transactions; beginning one anew takes a lock of LMDB's
};

}  // namespace kvcachefs

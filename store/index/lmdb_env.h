// The LMDB environment as the rest of the index sees it: tables of checksummed rows, guarded against damage. lmdb.h
// is included by the four sources of this class only: lmdb_env (opening, replacing, damage), lmdb_environment (one opening of the
// file), lmdb_rows (reads and writes), lmdb_rewrite (size of the file, copies without its unused pages).
//
// Every row carries 4 bytes of checksum over table, key and value, so a flipped value, a row in the wrong table or
// a changed key is detected. Every call into LMDB and every look at mapped memory runs under the fault guard. After
// the first sign of damage nothing is written any more, for LMDB copies pages without looking at them: writes return
// kCorrupt. Reads go on: each returns a row that matches its checksum, or kCorrupt.
//
// Threads: get(), scan() and damaged() may be called from any thread; they touch memory only (page faults apart) and never wait
// for a Writer. One Writer at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/mutex.h"
#include "store/base/result.h"
#include "store/base/unique_fd.h"
#include "store/index/growth.h"

struct MDB_txn;

namespace kvcachefs {

enum class Table : uint8_t { kMeta = 0, kNames, kObjects, kExtents, kSuccessors };
inline constexpr size_t kTableCount = 5;

class LmdbEnv {
  class Environment;  // one opening of the file

 public:
  enum class Open : uint8_t { kExisting, kNew };
  // Opens data.mdb in `directory`, or makes it and its tables. `map_bytes` is address space only, neither memory nor disk.
  static Result<std::unique_ptr<LmdbEnv>> open(const std::string& directory, Open how, uint64_t map_bytes);
  ~LmdbEnv();
  // Whether `stored` is what the environment would store under `key` in the table of that name (the checksum matches).
  static bool is_sound_row(std::string_view table, ByteSpan key, ByteSpan stored);
  LmdbEnv(const LmdbEnv&) = delete;
  LmdbEnv& operator=(const LmdbEnv&) = delete;

  // The newest committed row; false if there is none.
  Result<bool> get(Table table, ByteSpan key, Bytes& value) const;
  // Whether there is one. Reads none of its bytes, and so does not check them.
  Result<bool> has(Table table, ByteSpan key) const;

  // Calls `row` for rows with key >= `from` in key order, until it returns false. The spans are copies, valid during the call. Reads in pieces
  // and holds no transaction while `row` runs: the rows are of one moment only if no commit runs meanwhile.
  using RowFunction = std::function<bool(ByteSpan key, ByteSpan value)>;
  Status scan(Table table, ByteSpan from, const RowFunction& row) const;

  using WriterMutex = Mutex<LockRank::kIndexWriter>;
  // One write transaction. Destroying it without commit() discards it. After an error it can only be destroyed.
  class Writer {
   public:
    Writer(Writer&& other) noexcept;
    Writer& operator=(Writer&&) = delete;
    ~Writer();
    Status put(Table table, ByteSpan key, ByteSpan value);
    // For ascending keys, each greater than every key of the table: fills pages completely.
    Status append(Table table, ByteSpan key, ByteSpan value);
    Status remove(Table table, ByteSpan key);  // an absent row is fine
    // The transaction is synced when this returns without error.
    Status commit();
    // Whether an error was due to the map being too small: destroy the Writer, call enlarge_map(), start again.
    bool map_full() const { return map_full_; }

   private:
    friend class LmdbEnv;
    Writer(LmdbEnv& env, std::unique_lock<WriterMutex> lock, std::shared_ptr<Environment> opened)
        : env_(&env), opened_(std::move(opened)), lock_(std::move(lock)) {}
    Status store(Table table, ByteSpan key, ByteSpan value, unsigned flags);
    Status failed(int code, const char* what);
    std::unexpected<Error> broken(const char* what);
    LmdbEnv* env_;
    std::shared_ptr<Environment> opened_;
    std::unique_lock<WriterMutex> lock_;
    MDB_txn* txn_ = nullptr;
    bool map_full_ = false;
    Bytes scratch_;
  };
  Result<Writer> begin_write();
  // Doubles the map by opening the file a second time; readers meanwhile use the first opening.
  Status enlarge_map();

  // Puts the file `with` in place of a damaged one; from then on it is the file that is read and written.
  Status replace_file(const std::string& with);

  IndexPages pages() const;  // zeros: the environment is closed, or its pages could not be read
  // Rewrites the file without its `unused_bytes` and replaces the old one, which readers use meanwhile. The caller makes sure that no Writer exists, and has
  // checked the pages. On an error the file stays as it is, or is damaged().
  Status rewrite(uint64_t unused_bytes);

  // The last call. If much of the file is `unused_bytes` and it is not too large, rewrites it without them; if that
  // fails (a full disk) the file stays as it is. The caller has checked the pages.
  Status close(uint64_t unused_bytes);

  // Reads the file's first `most_bytes` into the page cache and locks them there: otherwise streaming I/O would push them out of the
  // cache, and each lookup would then wait for the disk. Blocks on the disk; best effort (RLIMIT_MEMLOCK).
  void keep_in_memory(uint64_t most_bytes) const;
  // If this process has more than `most_bytes` of files in memory, unmaps the pages behind the first `kept_bytes` of this one.
  void let_go_of_mapped(uint64_t kept_bytes, uint64_t most_bytes) const;

  // Makes a file that tells the next open not to trust the data. Blocks.
  void mark_damaged() const;
  bool damaged() const { return damaged_.load(std::memory_order_acquire); }
  // For layers above that find damage. Returns the error to pass on.
  std::unexpected<Error> damage(std::string_view what) const;
  uint64_t file_bytes() const;
  uint64_t map_bytes() const { return map_bytes_; }  // call on the thread that writes

 private:
  class Reader;
  struct Copied;
  LmdbEnv(std::string directory, uint64_t map_bytes);
  std::shared_ptr<Environment> opened() const;
  // As IndexDirectory::check_in_place(), against the directory that was there when this object was made.
  Status check_in_place() const;
  Result<std::shared_ptr<Environment>> open_environment(Open how, uint64_t map_bytes) const;
  // Puts `next` (may be null) in place of the environment, which is closed when its readers are gone.
  bool replace(std::shared_ptr<Environment> next);
  // Both write a copy beside the data, which close() then puts in its place; false: no copy was made.
  bool refill();
  bool compact();
  bool write_copy(uint64_t unused_bytes);
  std::unexpected<Error> closed() const;
  std::unexpected<Error> error(int code, std::string_view what) const;
  Status verify(Table table, ByteSpan key, Bytes& value) const;

  const std::string directory_;
  const UniqueFd held_;  // the directory, opened when this object was made
  uint64_t map_bytes_;          // changed with write_mutex_ held
  bool must_reopen_ = false;    // with write_mutex_ held: LMDB gave up after a failed write of its meta page
  mutable std::atomic<bool> damaged_{false};
  WriterMutex write_mutex_;         // held by the Writer
  mutable LeafMutex opened_mutex_;  // guards the pointer below only
  std::shared_ptr<Environment> opened_;
};

}  // namespace kvcachefs

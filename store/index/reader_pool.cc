#include "store/index/reader_pool.h"

#include <utility>

namespace kvcachefs {

namespace {

MDB_txn* pop(std::vector<MDB_txn*>& from) {
  if (from.empty()) return nullptr;
  MDB_txn* txn = from.back();
  from.pop_back();
  return txn;
}

}  // namespace

ReaderPool::Reader ReaderPool::take() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (retired_) return {.retired = true};
    if (MDB_txn* txn = pop(idle_)) {
      ++reading_;
      return {.txn = txn, .generation = generation_};
    }
    if (!gate_closed_) break;
    if (abandoned_code_ != 0 && reading_ == 0) return {.code = abandoned_code_};
    ++waiting_;
    changed_.wait(lock);
    --waiting_;
  }
  MDB_txn* txn = pop(stale_);
  ++starting_;
  lock.unlock();
  const int code = start_(txn);
  lock.lock();
  if (--starting_ == 0) changed_.notify_all();
  if (code != 0) return {.code = code};
  ++reading_;  // no commit ended meanwhile: close_gate() waits for transactions that are starting
  return {.txn = txn, .generation = generation_};
}

void ReaderPool::give_back(const Reader& reader, Left left) {
  std::lock_guard lock(mutex_);
  const bool newest = reader.generation == generation_;
  --(newest ? reading_ : overtaken_);
  if (left != Left::kLost) (newest && left == Left::kSound ? idle_ : stale_).push_back(reader.txn);
  if (waiting_ > 0 || (retired_ && reading_ + overtaken_ == 0)) changed_.notify_all();
}

void ReaderPool::await_overtaken() {
  std::unique_lock lock(mutex_);
  ++waiting_;
  changed_.wait(lock, [this] { return overtaken_ == 0; });
  --waiting_;
}

void ReaderPool::close_gate() {
  std::unique_lock lock(mutex_);
  gate_closed_ = true;
  changed_.wait(lock, [this] { return starting_ == 0; });
  // Transactions in use do not count: as many readers as there are now may come during the commit.
  while (idle_.size() < kProvided) {
    MDB_txn* txn = pop(stale_);
    lock.unlock();
    const int code = start_(txn);
    lock.lock();
    if (code != 0) break;
    idle_.push_back(txn);
    if (waiting_ > 0) changed_.notify_all();
  }
}

int ReaderPool::open_gate(bool committed) {
  // Starts one even if nothing was committed: that shows whether others can be started.
  std::unique_lock lock(mutex_);
  MDB_txn* txn = pop(stale_);
  lock.unlock();
  const int code = start_(txn);
  lock.lock();
  if (committed) {
    ++generation_;
    overtaken_ += std::exchange(reading_, 0);
    stale_.insert(stale_.end(), idle_.begin(), idle_.end());
    idle_.clear();
  }
  if (code == 0) idle_.push_back(txn);
  gate_closed_ = code != 0 && !committed;
  abandoned_code_ = gate_closed_ ? code : 0;
  changed_.notify_all();
  return code;
}

void ReaderPool::abandon_gate(int code) {
  std::lock_guard lock(mutex_);
  abandoned_code_ = code;
  changed_.notify_all();
}

std::vector<MDB_txn*> ReaderPool::retire() {
  std::unique_lock lock(mutex_);
  retired_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return starting_ + reading_ + overtaken_ == 0; });
  std::vector<MDB_txn*> all = std::exchange(idle_, {});
  all.insert(all.end(), stale_.begin(), stale_.end());
  stale_.clear();
  return all;
}

}  // namespace kvcachefs

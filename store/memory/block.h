// A block of the pool (pool.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace kvcachefs {

class MemoryFile;
class MemoryPool;

// A piece of RAM, 4 KiB-aligned: part of an arena, or a unit of a memory file. Given back when the last shared_ptr goes. Content
// starts undefined.
class Block {
 public:
  // kNew: no bytes that can be read yet.
  enum class Holds : uint8_t { kNew, kClean, kDirty };

  Block(MemoryPool& pool, std::byte* data, uint32_t capacity_bytes)
      : pool_(pool), data_(data), capacity_bytes_(capacity_bytes) {}
  Block(MemoryPool& pool, std::shared_ptr<MemoryFile> file, std::byte* data, uint32_t capacity_bytes)
      : pool_(pool), file_(std::move(file)), data_(data), capacity_bytes_(capacity_bytes) {}
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  std::byte* data() const { return data_; }
  uint32_t capacity_bytes() const { return capacity_bytes_.load(std::memory_order_relaxed); }
  std::span<std::byte> bytes() const { return {data_, capacity_bytes()}; }
  const std::shared_ptr<MemoryFile>& file() const { return file_; }  // null: of an arena
  bool frozen() const;  // its bytes never change again (memory_file.h)
  // The file is about to be cut, and has no bytes of this block behind `bytes`. Called when it is frozen, under the lock of the body.
  void shorten(uint32_t bytes) { capacity_bytes_.store(bytes, std::memory_order_relaxed); }
  // For the pool's sums. Caller holds the lock of the body that has the block. A memory file is clean as a whole or not at all.
  void set_holds(Holds holds);

 private:
  MemoryPool& pool_;
  std::shared_ptr<MemoryFile> file_;
  std::byte* data_;
  std::atomic<uint32_t> capacity_bytes_;
  Holds holds_ = Holds::kNew;   // guarded by the lock of the body
  uint32_t dirty_bytes_ = 0;    // guarded by the lock of the body: its part of the pool's dirty bytes
};
using BlockPtr = std::shared_ptr<Block>;

}  // namespace kvcachefs

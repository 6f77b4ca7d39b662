// The bytes of writes that wait for memory, for room or for their turn. They came with the request, lie outside the pool, and cannot be
// refused: the kernel has handed them over, and accepting no more requests would keep out reads and names as well. So a fixed amount of
// them is kept in RAM, and more are parked in a file of the volume that has no name.
//
// Parked bytes are reserved from the capacity (Room), like bodies, and only if as much room is left for the bodies that those writes belong
// to. Otherwise they stay in RAM, up to a second bound; beyond that the write fails, with ENOSPC if lack of space is the reason.
//
// Parking blocks the caller on the volume, for a write of one request's size into its page cache. Nothing else delays requests here, and it
// ends without another request of the kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/result.h"
#include "store/volume/volume.h"

namespace kvcachefs {

class WaitingBytes {
 public:
  static constexpr uint64_t kMostBytes = 64ull << 20;            // in RAM, before any are parked
  static constexpr uint64_t kMostUnparkedBytes = 160ull << 20;  // in RAM if the volume takes none

  // The bytes of one write. Must not outlive the WaitingBytes.
  class Kept {
   public:
    Kept(WaitingBytes& of, size_t bytes) : of_(of), size_(bytes) {}
    ~Kept();
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    bool in_memory() const { return data_ != nullptr; }
    std::span<const std::byte> bytes() const { return {data_, size_}; }  // only when in memory
    // Reads parked bytes back; blocks on the volume. Call when it is the request's turn.
    Status load();
    // Frees the memory of bytes that are parked as well.
    void unload();

   private:
    friend class WaitingBytes;
    Status take_memory();
    void drop_memory();
    WaitingBytes& of_;
    const size_t size_;
    std::byte* data_ = nullptr;
    uint64_t slot_ = UINT64_MAX;  // in the file
    uint64_t checksum_ = 0;
  };

  // Room on the volume for parked bytes. Thread-safe; called with the lock held.
  struct Room {
    std::function<uint64_t()> room_bytes;  // could be reserved now
    std::function<bool(uint64_t)> try_reserve;
    std::function<void(uint64_t)> release;
  };
  // `path` of the file on the volume.
  WaitingBytes(std::shared_ptr<Volume> volume, Room room, std::string path, uint64_t most_bytes = kMostBytes,
               uint64_t most_unparked_bytes = kMostUnparkedBytes)
      : volume_(std::move(volume)),
        room_(std::move(room)),
        path_(std::move(path)),
        most_bytes_(most_bytes),
        most_unparked_bytes_(most_unparked_bytes) {}

  // Copies the bytes. Call with no lock held; may block as described above. Fails if neither memory nor the volume takes them.
  Result<std::unique_ptr<Kept>> keep(std::span<const std::byte> bytes);

  uint64_t memory_bytes() const;
  uint64_t parked_bytes() const;

 private:
  static constexpr uint64_t kSlotBytes = 1ull << 20;  // the largest request of the kernel; larger ones stay in RAM
  Result<FilePtr> file();
  Status park(Kept& kept, std::span<const std::byte> bytes);
  bool add_memory(uint64_t bytes, uint64_t most_bytes);

  const std::shared_ptr<Volume> volume_;
  const Room room_;
  const std::string path_;
  const uint64_t most_bytes_, most_unparked_bytes_;
  mutable Mutex<LockRank::kPartOfSpace> mutex_;  // Guards the rest:
  uint64_t memory_bytes_ = 0;
  FilePtr file_;
  uint64_t slots_ = 0, slots_used_ = 0;
  std::vector<uint64_t> free_slots_;
};

}  // namespace kvcachefs

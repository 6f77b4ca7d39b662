// Writes HEAD and ACKS of this life (head_file.h): each write replaces the older of two slots in place, past the page cache where the volume
// supports that. Blocks on the volume. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "store/base/bytes.h"
#include "store/base/result.h"
#include "store/journal/block_buffer.h"
#include "store/peers/head_file.h"
#include "store/volume/volume.h"

namespace kvcachefs {

class SlotFile {
 public:
  SlotFile(std::shared_ptr<Volume> volume, std::string path) : volume_(std::move(volume)), path_(std::move(path)) {}

  using Encode = std::function<Result<Bytes>(uint64_t counter)>;
  using OffsetOf = uint64_t (*)(uint64_t counter);
  // The first call makes the file and writes both slots, so that a full volume silences nobody later. After an error the other slot is whole,
  // and the next call writes the same slot again.
  Status write(const Encode& encode, OffsetOf offset_of);
  uint64_t counter() const { return counter_; }  // of the last successful write; 0: none

 private:
  Status write_slot(uint64_t counter, const Encode& encode, OffsetOf offset_of);
  const std::shared_ptr<Volume> volume_;
  const std::string path_;
  FilePtr file_;
  BlockBuffer buffer_;
  uint64_t counter_ = 0;
};

class HeadWriter {
 public:
  HeadWriter(std::shared_ptr<Volume> volume, const FileIdentity& identity);
  // Sets the counter itself.
  Status write(Head head);
  uint64_t counter() const { return file_.counter(); }

 private:
  const FileIdentity identity_;
  SlotFile file_;
};

class AcksWriter {
 public:
  AcksWriter(std::shared_ptr<Volume> volume, const FileIdentity& identity);
  Status write(Acks acks);
  uint64_t counter() const { return file_.counter(); }

 private:
  const FileIdentity identity_;
  SlotFile file_;
};

}  // namespace kvcachefs

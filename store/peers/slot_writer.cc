#include "store/peers/slot_writer.h"

#include <utility>

#include "store/journal/file_header.h"

namespace kvcachefs {

Status SlotFile::write(const Encode& encode, OffsetOf offset_of) {
  if (!file_) {
    const bool direct = volume_->features().direct_io;
    auto made = volume_->open(path_, {.writable = true, .create_exclusive = true, .direct = direct});
    if (!made && made.error().code == Code::kExists) made = volume_->open(path_, {.writable = true, .direct = direct});  // an earlier try was cut short
    KVC_TRY(made);
    file_ = std::move(*made);
  }
  if (counter_ == 0) KVC_TRY(write_slot(0, encode, offset_of));
  KVC_TRY(write_slot(counter_ + 1, encode, offset_of));
  ++counter_;
  return {};
}

Status SlotFile::write_slot(uint64_t counter, const Encode& encode, OffsetOf offset_of) {
  KVC_ASSIGN(const Bytes slot, encode(counter));
  return buffer_.write(*file_, slot, offset_of(counter));
}

HeadWriter::HeadWriter(std::shared_ptr<Volume> volume, const FileIdentity& identity)
    : identity_(identity), file_(std::move(volume), epoch_directory(identity.node, identity.epoch) + "/" + kHeadFileName) {}

Status HeadWriter::write(Head head) {
  head.identity = identity_;
  return file_.write(
      [&head](uint64_t counter) {
        head.counter = counter;
        return encode_head(head);
      },
      head_slot_offset);
}

AcksWriter::AcksWriter(std::shared_ptr<Volume> volume, const FileIdentity& identity)
    : identity_(identity), file_(std::move(volume), epoch_directory(identity.node, identity.epoch) + "/" + kAcksFileName) {}

Status AcksWriter::write(Acks acks) {
  acks.identity = identity_;
  return file_.write(
      [&acks](uint64_t counter) {
        acks.counter = counter;
        return encode_acks(acks);
      },
      acks_slot_offset);
}

}  // namespace kvcachefs

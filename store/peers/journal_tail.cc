#include "store/peers/journal_tail.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "store/base/units.h"
#include "store/journal/file_header.h"
#include "store/journal/frame.h"
#include "store/journal/journal_file.h"
#include "store/journal/record_codec.h"

namespace kvcachefs {
namespace {

constexpr size_t kWindowBytes = 64 * kKiB;              // one request, even where there is nothing new
constexpr uint64_t kMostBytesRead = 16 * kMiB;          // given in one call
constexpr int64_t kPatienceForFrameNs = 2'000'000'000;  // how long a frame that should be there may be missing

// The file, or what its descriptor refers to, no longer exists.
bool is_gone(const Error& error) {
  return error.code == Code::kNotFound || error.sys_errno == ENOENT || error.sys_errno == ESTALE || error.sys_errno == EBADF;
}

std::string text_of(JournalPosition position) { return fmt::format("{}/{}/{}", position.epoch, position.seq, position.offset); }

}  // namespace

JournalTail::JournalTail(FileIdentity identity, JournalPosition from, Open open)
    : identity_(std::move(identity)), position_(from), open_(std::move(open)) {}

Result<JournalTail::Polled> JournalTail::poll(std::optional<JournalPosition> written, int64_t now_ns, const Apply& apply) {
  window_.clear();  // bytes that were not there may be there now
  for (uint64_t given = 0; given < kMostBytesRead;) {
    const JournalPosition before = position_;
    KVC_ASSIGN(Step done, step(written, now_ns, apply));
    switch (done.what) {
      case Step::What::kGiven:
        given += position_.seq == before.seq ? position_.offset - before.offset : kBlockBytes;
        lacking_since_ns_.reset();
        opened_anew_ = false;
        continue;
      case Step::What::kAgain: continue;
      case Step::What::kNothing: return Polled{};
      case Step::What::kReload: return Polled{State::kReload, std::move(done.why)};
      case Step::What::kDamaged: return Polled{State::kDamaged, std::move(done.why)};
    }
  }
  return Polled{State::kMore, {}};
}

// Gives one batch, or moves to the next file.
Result<JournalTail::Step> JournalTail::step(std::optional<JournalPosition> written, int64_t now_ns, const Apply& apply) {
  if (!file_) {
    KVC_ASSIGN(Step opened, open_current());
    if (opened.what != Step::What::kGiven) return opened;
  }
  auto frame = read_frame();
  if (!frame && is_gone(frame.error())) {
    leave_file();
    return Step{Step::What::kReload, std::move(frame).error().message};
  }
  KVC_TRY(frame);
  if (!*frame) return missing(written, now_ns);
  const ByteSpan payload = ByteSpan(**frame).subspan(kFrameHeaderBytes);
  auto batch = decode_batch(payload);
  if (!batch && batch.error().code == Code::kVersion) return std::unexpected(std::move(batch).error().at(file_->path()));
  if (!batch) return Step{Step::What::kDamaged, fmt::format("{}: frame at {}: {}", file_->path(), position_.offset, batch.error().message)};
  if (says_only_next(*batch)) return go_on_in(std::get<NextRecord>(batch->records[0]).seq);
  JournalPosition after = position_;
  after.offset = behind_frame(position_.offset + (*frame)->size(), blocks_);
  KVC_TRY(apply(*batch, after));
  position_ = after;
  return Step{Step::What::kGiven, {}};
}

void JournalTail::leave_file() {
  file_.reset();
  window_.clear();
}

// Opens the file of position_, and finds out how it was begun.
Result<JournalTail::Step> JournalTail::open_current() {
  auto opened = open_(position_.seq);
  if (!opened && is_gone(opened.error())) {
    // A checkpoint that covers a file to its end removes it, but only after the next file was made.
    KVC_ASSIGN(Step next, go_on_in(position_.seq + 1));
    if (next.what != Step::What::kNothing) return next;
    return Step{Step::What::kReload, std::move(opened).error().message};
  }
  KVC_TRY(opened);
  file_ = std::move(*opened);
  window_.clear();
  auto start = view(0, kMaxHeaderBytes);
  if (!start) {
    leave_file();
    return std::unexpected(std::move(start).error());
  }
  auto decoded = decode_journal_header(*start);
  if (decoded)
    if (Status same = check_identity(decoded->header.identity, identity_); !same) decoded = std::unexpected(std::move(same).error());
  if (!decoded) {
    const std::string path = file_->path();
    leave_file();
    if (decoded.error().code == Code::kVersion) return std::unexpected(std::move(decoded).error().at(path));
    return Step{Step::What::kDamaged, path + ": " + decoded.error().message};
  }
  blocks_ = decoded->header.blocks;
  position_.offset = std::max<uint64_t>(position_.offset, decoded->size_bytes);
  return Step{Step::What::kGiven, {}};
}

// The whole frame at position_, with the zeros behind it; nullopt if there is none.
Result<std::optional<Bytes>> JournalTail::read_frame() {
  const FrameKey key(FileKind::kJournal, identity_, position_.seq);
  KVC_ASSIGN(const ByteSpan header, view(position_.offset, kFrameHeaderBytes));
  const auto length = FrameKey::claimed_length(header);
  if (!length || header.size() < kFrameHeaderBytes) return std::nullopt;
  const size_t bytes = kFrameHeaderBytes + *length;
  const auto whole = static_cast<size_t>(behind_frame(position_.offset + bytes, blocks_) - position_.offset);
  KVC_ASSIGN(const ByteSpan found, view(position_.offset, whole));
  if (found.size() < whole || !key.valid(found.first(bytes), position_.offset)) return std::nullopt;
  return Bytes(found.begin(), found.begin() + static_cast<ptrdiff_t>(bytes));
}

Result<ByteSpan> JournalTail::view(uint64_t offset, size_t length) {
  const bool inside = offset >= window_offset_ && offset + length <= window_offset_ + window_.size();
  if (!inside) {
    window_.resize(std::max(length, kWindowBytes));
    window_offset_ = offset;
    auto got = buffer_.read(*file_, window_, offset);
    if (!got) {
      window_.clear();
      return std::unexpected(std::move(got).error());
    }
    window_.resize(*got);
    buffer_.shrink(kMiB);
    length = std::min(length, *got);
  }
  return ByteSpan(window_).subspan(static_cast<size_t>(offset - window_offset_), length);
}

// Moves to file `seq`, which this file names as the next one; or, where it names none, if the header of `seq` claims to follow it.
Result<JournalTail::Step> JournalTail::go_on_in(uint64_t seq) {
  auto opened = open_(seq);
  if (!opened && is_gone(opened.error())) return Step{};  // it was made before it was named, and will be seen soon
  KVC_TRY(opened);
  Bytes start(kMaxHeaderBytes);
  KVC_ASSIGN(const size_t got, buffer_.read(**opened, start, 0));
  auto decoded = decode_journal_header(ByteSpan(start).first(got));
  if (!decoded && decoded.error().code == Code::kVersion) return std::unexpected(std::move(decoded).error().at((*opened)->path()));
  if (!decoded) return Step{};  // not written yet
  const auto& previous = decoded->header.previous;
  if (!previous || previous->seq != position_.seq) return Step{};
  // The writer gave up the end of this file after it had arrived here: batches given from there never counted.
  if (previous->end < position_.offset)
    return Step{Step::What::kReload, fmt::format("{}: the file before it ends at {}, and was read up to {}", (*opened)->path(), previous->end,
                                                 position_.offset)};
  if (previous->end > position_.offset) return Step{};  // more of the current file is to come
  leave_file();
  position_.seq = seq;
  position_.offset = 0;
  return open_current();
}

// A writer whose write failed cannot name the next file in the one that it leaves.
Result<JournalTail::Step> JournalTail::look_for_next(uint64_t last_seq) {
  constexpr uint64_t kMostFiles = 64;
  const uint64_t end = std::min(last_seq, position_.seq + kMostFiles);
  for (uint64_t seq = position_.seq + 1; seq <= end; ++seq) {
    KVC_ASSIGN(Step step, go_on_in(seq));
    if (step.what != Step::What::kNothing) return step;
  }
  return Step{};
}

Result<JournalTail::Step> JournalTail::missing(std::optional<JournalPosition> written, int64_t now_ns) {
  if (!written || *written <= position_) {
    lacking_since_ns_.reset();
    return Step{};
  }
  if (written->epoch == position_.epoch && written->seq > position_.seq) {
    KVC_ASSIGN(Step step, look_for_next(written->seq));
    if (step.what != Step::What::kNothing) return step;
  }
  if (!lacking_since_ns_) lacking_since_ns_ = now_ns;
  if (now_ns - *lacking_since_ns_ < kPatienceForFrameNs) return Step{};
  if (!std::exchange(opened_anew_, true)) {  // the file system may show through this descriptor what was there when it was opened
    leave_file();
    return Step{Step::What::kAgain, {}};
  }
  return Step{Step::What::kDamaged, fmt::format("journal of node '{}': nothing to be read at {}, and it goes on to {}", identity_.node,
                                                text_of(position_), text_of(*written))};
}

}  // namespace kvcachefs

#include "store/check/body_check.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "store/base/checksum.h"
#include "store/base/units.h"
#include "store/extent/extents.h"
#include "store/volume/posix_tree.h"

namespace kvcachefs {

namespace {

constexpr size_t kPieceUnits = 16;          // 4 MiB a request: large enough for any medium
constexpr size_t kWindowBytes = 64 * kMiB;  // requests in flight at once, and the memory used
constexpr size_t kPieceBytes = kPieceUnits * kUnitBytes;

}  // namespace

// A run of units of one body, read by one request.
struct BodyChecker::Piece {
  ObjectId object;
  Place place;
  std::vector<uint64_t> checksums;
  FilePtr file;
  uint64_t start = 0;  // within the body
  size_t length = 0;
  std::byte* bytes = nullptr;
  Result<size_t> got = size_t{0};
};

BodyChecker::BodyChecker(std::shared_ptr<Volume> volume, std::string node)
    : volume_(std::move(volume)), node_(std::move(node)) {}

BodyChecker::~BodyChecker() { std::free(buffer_); }

std::optional<BadBody> BodyChecker::check(const ObjectRecord& object) {
  std::optional<BadBody> found;
  start([&](BadBody bad) { found = std::move(bad); });
  const Status added = add(object);
  finish();
  if (!added) return BadBody{object.id, object.body.place, added.error().message, /*wrong=*/false};
  return found;
}

void BodyChecker::start(std::function<void(BadBody)> bad) {
  bad_ = std::move(bad);
  judged_.reset();
}

void BodyChecker::finish() {
  flush();
  tell();
  open_file_.reset();
  open_extent_ = {};
  bad_ = nullptr;
}

void BodyChecker::report(const ObjectRecord& object, std::string why, bool wrong) {
  if (judged_ && judged_->object == object.id) {  // the pieces of one body follow one another
    if (judged_->wrong || !wrong) return;
    judged_->why = std::move(why);
    judged_->wrong = true;
    return;
  }
  tell();
  judged_ = BadBody{object.id, object.body.place, std::move(why), wrong};
}

void BodyChecker::tell() {
  if (judged_) bad_(*std::exchange(judged_, std::nullopt));
}

Status BodyChecker::take_buffer() {
  if (buffer_ == nullptr) buffer_ = static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, kWindowBytes));
  if (buffer_ == nullptr) return fail_errno(ENOMEM, fmt::format("{} to read bodies with", format_size(kWindowBytes)));
  return {};
}

Result<FilePtr> BodyChecker::open(const Place& place) {
  if (open_file_ && open_extent_ == place.extent) return open_file_;
  const bool direct = place.kind != PlaceKind::kRaw && volume_->features().direct_io;
  KVC_ASSIGN(open_file_, volume_->open(extent_path(node_, place.extent, place.kind), {.direct = direct}));
  open_extent_ = place.extent;
  return open_file_;
}

bool BodyChecker::check_without_reading(const ObjectRecord& object) {
  const Body& body = object.body;
  // Reports at once, past judged_: pieces of the body before may be left.
  const auto tell_bad = [&](std::string why, bool wrong, bool is_no_file = false) { bad_({object.id, body.place, std::move(why), wrong, is_no_file}); };
  if (body.place.kind == PlaceKind::kNone || body.quarantined) return true;
  const size_t units = div_ceil(body.size_bytes, kUnitBytes);
  if (body.place.kind == PlaceKind::kInline) {
    bool good = body.inline_bytes.size() == body.size_bytes;
    for (size_t unit = 0; good && unit < std::min(units, body.checksums.size()); ++unit) {
      const size_t start = unit * kUnitBytes;
      const size_t length = std::min<size_t>(kUnitBytes, body.inline_bytes.size() - start);
      good = checksum(ByteSpan(body.inline_bytes).subspan(start, length)) == body.checksums[unit];
    }
    if (!good) tell_bad("the inline bytes of its record do not match their size and checksums", true);
    return true;
  }
  if (auto file = open(body.place); !file) {
    const bool gone = file.error().code == Code::kNotFound, no_file = is_no_file(file.error());
    if (gone) ++missing_[body.place.extent];
    tell_bad(
           gone ? fmt::format("its extent {} is missing", extent_path(node_, body.place.extent, body.place.kind))
                : file.error().message,
           gone || no_file, no_file);
    return true;
  }
  if (body.place.kind == PlaceKind::kRaw) return true;  // a raw file has no checksums to compare with
  if (body.checksums.size() >= units) return false;
  tell_bad(fmt::format("its record has {} checksums for {} units", body.checksums.size(), units), true);
  return true;
}

Status BodyChecker::add(const ObjectRecord& object) {
  if (check_without_reading(object)) return {};
  KVC_TRY(take_buffer());
  ++bodies_;
  const Body& body = object.body;
  for (uint64_t start = 0; start < body.size_bytes; start += kPieceBytes) {
    const size_t length = static_cast<size_t>(std::min<uint64_t>(kPieceBytes, body.size_bytes - start));
    const size_t room = align_up(length, kBlockBytes);
    if (used_bytes_ + room > kWindowBytes) flush();
    const auto first = body.checksums.begin() + static_cast<ptrdiff_t>(start / kUnitBytes);
    window_.push_back({object.id,
                       body.place,
                       {first, first + static_cast<ptrdiff_t>(div_ceil(length, kUnitBytes))},
                       open_file_,
                       start,
                       length,
                       buffer_ + used_bytes_,
                       size_t{0}});
    used_bytes_ += room;
  }
  return {};
}

void BodyChecker::flush() {
  std::vector<IoRequest> requests;
  for (Piece& piece : window_) {
    IoRequest request;
    request.file = piece.file;
    request.offset = piece.place.offset + piece.start;
    request.pieces = {{piece.bytes, align_up(piece.length, kBlockBytes)}};
    request.done = [&piece](Result<size_t> got) { piece.got = std::move(got); };
    requests.push_back(std::move(request));
  }
  volume_->submit(std::move(requests));
  volume_->drain();
  for (const Piece& piece : window_) verify(piece);
  window_.clear();
  used_bytes_ = 0;
}

void BodyChecker::verify(const Piece& piece) {
  ObjectRecord object;
  object.id = piece.object;
  object.body.place = piece.place;
  const auto at = [&](uint64_t offset) {
    return fmt::format("{} at {}", piece.file->path(), piece.place.offset + piece.start + offset);
  };
  if (!piece.got) return report(object, piece.got.error().message, false);
  bytes_ += std::min(*piece.got, piece.length);
  if (*piece.got < piece.length) return report(object, fmt::format("{}: the extent ends there", at(*piece.got)), true);
  for (size_t unit = 0; unit * kUnitBytes < piece.length; ++unit) {
    const size_t start = unit * kUnitBytes;
    const size_t length = std::min(kUnitBytes, piece.length - start);
    if (checksum({piece.bytes + start, length}) != piece.checksums[unit])
      return report(object, fmt::format("{}: {} bytes do not match their checksum", at(start), length), true);
  }
}

}  // namespace kvcachefs

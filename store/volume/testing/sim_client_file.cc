#include "store/volume/testing/sim_client_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace kvcachefs {

SimClientFile::SimClientFile(std::shared_ptr<SimClient> client, uint64_t file, std::string path, bool writable, bool direct)
    : client_(std::move(client)),
      file_(file),
      life_(client_->life_),
      path_(std::move(path)),
      place_(client_->place(path_)),
      writable_(writable),
      direct_(direct) {
  client_->opened(file_);
}

SimClientFile::~SimClientFile() { client_->closed(file_); }

// Begins a request; with `flush`, first sends this machine's unsent writes of the file to the server.
Status SimClientFile::begin(Kind kind, const char* verb, uint64_t offset, uint64_t length, bool flush) {
  KVC_TRY(client_->begin(life_, kind, path_, offset, length));
  if (!client_->server_->is_there(file_)) return fail_errno(ESTALE, where(verb, offset, length));
  if (flush) KVC_TRY(client_->write_back(file_, path_));
  return {};
}

// --- reading ---

Bytes& SimClientFile::page(uint64_t index) {
  auto& pages = client_->cached(file_).pages;
  const auto [found, is_new] = pages.try_emplace(index);
  if (is_new) {
    found->second.resize(kBlockBytes);
    client_->server_->disk().inode(file_).content.read(found->second, index * kBlockBytes);
  }
  return found->second;
}

size_t SimClientFile::read_pages(std::span<std::byte> into, uint64_t offset) {
  if (client_->cached(file_).until_ns < client_->now_ns()) client_->take_in(file_, false);
  const uint64_t size = client_->cached(file_).info.size_bytes;
  if (offset >= size) return 0;
  into = into.first(static_cast<size_t>(std::min<uint64_t>(into.size(), size - offset)));
  for (size_t done = 0; done < into.size();) {
    const uint64_t at = offset + done;
    const auto within = static_cast<size_t>(at % kBlockBytes);
    const size_t count = std::min<size_t>(into.size() - done, kBlockBytes - within);
    std::memcpy(into.data() + done, page(at / kBlockBytes).data() + within, count);
    done += count;
  }
  return into.size();
}

Result<size_t> SimClientFile::read(std::span<std::byte> into, uint64_t offset) {
  KVC_TRY(check_aligned("read", into, offset));
  KVC_TRY(begin(Kind::kRead, "read", offset, into.size(), direct_));
  if (!direct_) return read_pages(into, offset);
  const size_t bytes = client_->server_->disk().inode(file_).content.read(into, offset);
  KVC_TRY(client_->end(path_));
  return bytes;
}

// --- writing ---

void SimClientFile::write_pages(ByteSpan bytes, uint64_t offset) {
  if (client_->cached(file_).until_ns < client_->now_ns()) client_->take_in(file_, false);
  for (size_t done = 0; done < bytes.size();) {
    const uint64_t at = offset + done;
    const auto within = static_cast<size_t>(at % kBlockBytes);
    const size_t count = std::min<size_t>(bytes.size() - done, kBlockBytes - within);
    std::memcpy(page(at / kBlockBytes).data() + within, bytes.data() + done, count);
    client_->cached(file_).dirty.insert(at / kBlockBytes);
    done += count;
  }
  FileInfo& info = client_->cached(file_).info;
  info.size_bytes = std::max(info.size_bytes, offset + bytes.size());
}

Status SimClientFile::write(std::span<const std::span<const std::byte>> pieces, uint64_t offset) {
  Bytes data;
  for (const auto piece : pieces) {
    KVC_TRY(check_aligned("write", piece, offset + data.size()));
    data.insert(data.end(), piece.begin(), piece.end());
  }
  if (data.empty()) return {};
  const uint64_t length = data.size();
  if (!writable_) return fail_errno(EBADF, where("write", offset, length));
  KVC_TRY(begin(Kind::kWrite, "write", offset, length, direct_));
  if (!direct_) {
    write_pages(data, offset);
    return client_->end(path_);
  }
  if (client_->ends_with_request_ && client_->last_ == SimClient::LastRequest::kInPart) data.resize(align_down(data.size() / 2, kBlockBytes));
  const auto written = client_->server_->write(file_, offset, std::move(data));
  client_->take_in(file_, true);
  KVC_TRY(client_->end(path_));
  if (!written) return fail_errno(written.error(), where("write", offset, length));
  return {};
}

Status SimClientFile::sync_data() {
  KVC_TRY(begin(Kind::kSync, "sync"));
  client_->server_->commit(file_);
  return client_->end(path_);
}

Status SimClientFile::truncate(uint64_t size_bytes) {
  if (!writable_) return fail_errno(EINVAL, where("truncate", size_bytes, 0));
  KVC_TRY(begin(Kind::kTruncate, "truncate", size_bytes));
  const auto done = client_->server_->truncate(file_, size_bytes);
  client_->take_in(file_, true);
  KVC_TRY(client_->end(path_));
  if (!done) return fail_errno(done.error(), where("truncate", size_bytes, 0));
  return {};
}

Status SimClientFile::allocate(uint64_t offset, uint64_t length) {
  if (length == 0) return {};
  if (!writable_) return fail_errno(EBADF, where("allocate", offset, length));
  KVC_TRY(begin(Kind::kAllocate, "allocate", offset, length));
  const auto done = client_->server_->allocate(file_, offset, length);
  client_->take_in(file_, true);
  KVC_TRY(client_->end(path_));
  if (!done) return fail_errno(done.error(), where("allocate", offset, length));
  return {};
}

Status SimClientFile::punch(uint64_t offset, uint64_t length) {
  if (length == 0) return {};
  if (!writable_) return fail_errno(EBADF, where("punch", offset, length));
  KVC_TRY(begin(Kind::kPunch, "punch", offset, length));
  const auto done = client_->server_->punch(file_, offset, length);
  client_->take_in(file_, true);
  KVC_TRY(client_->end(path_));
  if (!done) return fail_errno(done.error(), where("punch", offset, length));
  return {};
}

// --- attributes and blocks ---

Result<FileInfo> SimClientFile::info() {
  if (client_->killed_ || life_ != client_->life_) return fail_errno(EIO, place_ + ": fstat");
  if (!client_->cached(file_).removed_as.empty() || client_->cached(file_).until_ns < client_->now_ns() || !client_->cached(file_).dirty.empty()) {
    KVC_TRY(begin(Kind::kOpen, "fstat"));
    client_->take_in(file_, false);
  }
  FileInfo info = client_->cached(file_).info;
  info.is_removed |= !client_->cached(file_).removed_as.empty();
  return info;
}

Result<uint64_t> SimClientFile::next_data(uint64_t offset) {
  KVC_TRY(begin(Kind::kRead, "seek", offset));
  const auto found = client_->server_->disk().inode(file_).content.next_data(offset);
  if (!found) return fail(Code::kNoData, where("seek data", offset, 0) + ": none");
  return *found;
}

Result<uint64_t> SimClientFile::next_hole(uint64_t offset) {
  KVC_TRY(begin(Kind::kRead, "seek", offset));
  const auto found = client_->server_->disk().inode(file_).content.next_hole(offset);
  if (!found) return fail(Code::kNoData, where("seek hole", offset, 0) + ": none");
  return *found;
}

// As SEEK reports it: there is no FIEMAP.
Result<uint64_t> SimClientFile::allocated_in(uint64_t offset, uint64_t length) { return File::allocated_in(offset, length); }

// --- locks ---

SimClientLock::SimClientLock(std::shared_ptr<SimClient> client, uint64_t file, uint64_t owner, FilePtr opened)
    : client_(std::move(client)), file_(file), owner_(owner), life_(client_->life_), opened_(std::move(opened)) {
  client_->locks_[owner_] = file_;
}

SimClientLock::~SimClientLock() {
  if (life_ != client_->life_ || client_->locks_.erase(owner_) == 0) return;
  if (client_->cut_) client_->unlocks_.emplace_back(file_, owner_);
  else client_->server_->unlock(file_, owner_);
}

Status SimClientLock::describe(std::string_view holder) {
  if (!client_->server_->holds(file_, owner_)) return fail_errno(EIO, opened_->path() + ": its lock was lost");
  const std::span<const std::byte> pieces[] = {as_bytes(holder)};
  KVC_TRY(opened_->truncate(0));
  KVC_TRY(opened_->write(pieces, 0));
  return opened_->sync_data();
}

}  // namespace kvcachefs

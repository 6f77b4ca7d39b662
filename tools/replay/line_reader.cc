#include "tools/replay/line_reader.h"

#include <array>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <zlib.h>

namespace kvcachefs {
namespace {
constexpr unsigned kBufferBytes = 256 * 1024;
}  // namespace

struct LineReader::File {
  gzFile handle = nullptr;
};

void LineReader::CloseFile::operator()(File* file) const {
  if (file->handle != nullptr) ::gzclose(file->handle);
  delete file;
}

LineReader::LineReader(std::string path, std::unique_ptr<File, CloseFile> file)
    : path_(std::move(path)), file_(std::move(file)) {}

Result<LineReader> LineReader::open(const std::string& path) {
  std::unique_ptr<File, CloseFile> file(new File);
  errno = 0;
  file->handle = ::gzopen(path.c_str(), "rb");  // reads plain files as they are
  if (file->handle == nullptr) return fail_errno(errno != 0 ? errno : ENOMEM, path + ": open the trace");
  ::gzbuffer(file->handle, kBufferBytes);
  return LineReader(path, std::move(file));
}

Status LineReader::check_end() const {
  int code = Z_OK;
  const char* text = ::gzerror(file_->handle, &code);
  if (code == Z_OK || code == Z_STREAM_END) return {};
  if (code == Z_ERRNO) return fail_errno(errno, path_ + ": read the trace");
  if (code == Z_BUF_ERROR) text = "the file ends inside compressed data: it is truncated";
  return fail(Code::kInvalid, fmt::format("{}: after line {}: {}", path_, line_number_, text));
}

Result<bool> LineReader::next(std::string& line) {
  line.clear();
  std::array<char, 16384> piece;
  while (true) {
    const z_off_t before = ::gztell(file_->handle);
    if (::gzgets(file_->handle, piece.data(), static_cast<int>(piece.size())) == nullptr) break;
    // Use positions for the length: a piece may contain zero bytes, like the end of a file that was being written at a crash.
    line.append(piece.data(), static_cast<size_t>(::gztell(file_->handle) - before));
    if (!line.ends_with('\n')) continue;
    line.pop_back();
    ++line_number_;
    return true;
  }
  KVC_TRY(check_end());
  if (line.empty()) return false;
  ++line_number_;
  return true;
}

}  // namespace kvcachefs

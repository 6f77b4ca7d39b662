#include "store/check/copy_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "store/base/unique_fd.h"
#include "store/volume/posix_tree.h"

namespace kvcachefs {

namespace {
Status copy_range(int from, int to, off_t at, off_t end, const std::string& name) {
  constexpr off_t kCopyBytes = 1 << 20;
  std::vector<std::byte> piece(static_cast<size_t>(kCopyBytes));
  while (at < end) {
    const auto wanted = static_cast<size_t>(std::min(kCopyBytes, end - at));
    const ssize_t got = retry_interrupted([&] { return ::pread(from, piece.data(), wanted, at); });
    if (got < 0) return fail_errno(errno, "reading " + name);
    if (got == 0) return {};  // the file was cut meanwhile
    for (ssize_t done = 0; done < got;) {
      const ssize_t put = retry_interrupted([&] { return ::pwrite(to, piece.data() + done, static_cast<size_t>(got - done), at + done); });
      if (put < 0) return fail_errno(errno, "writing a copy of " + name);
      done += put;
    }
    at += got;
  }
  return {};
}
}  // namespace

Status copy_file_sparse(const std::string& from, const std::string& to) {
  const size_t slash = from.rfind('/');
  KVC_ASSIGN(const PosixTree tree, PosixTree::open(from.substr(0, slash)));
  KVC_ASSIGN(const UniqueFd source, tree.open_file(from.substr(slash + 1), O_RDONLY, "open"));
  struct stat info {};
  if (::fstat(source.get(), &info) != 0) return fail_errno(errno, "looking at " + from);
  const UniqueFd target(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!target.valid()) return fail_errno(errno, "making " + to);
  if (::ftruncate(target.get(), info.st_size) != 0) return fail_errno(errno, "sizing " + to);
  for (off_t at = 0; at < info.st_size;) {
    off_t data = ::lseek(source.get(), at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;  // nothing but a hole is left
    off_t hole = data < 0 ? data : ::lseek(source.get(), data, SEEK_HOLE);
    if (data < 0 || hole < 0) data = at, hole = info.st_size;  // this file system has no holes
    KVC_TRY(copy_range(source.get(), target.get(), data, hole, from));
    at = hole;
  }
  return {};
}

}  // namespace kvcachefs

#include "fs/errno_map.h"

#include <cerrno>

#include "store/base/log.h"

namespace kvcachefs {

int errno_of(const Error& error) {
  switch (error.code) {
    case Code::kNotFound: return ENOENT;
    case Code::kAbsentForNow: return ENOENT;  // the kernel does not cache this answer
    case Code::kExists: return EEXIST;
    case Code::kNotDirectory: return ENOTDIR;
    case Code::kIsDirectory: return EISDIR;
    case Code::kNotEmpty: return ENOTEMPTY;
    case Code::kNoSpace: return error.sys_errno == EDQUOT ? EDQUOT : ENOSPC;
    case Code::kTooBig: return EFBIG;
    case Code::kInvalid: return EINVAL;
    case Code::kPermission: return error.sys_errno == EACCES ? EACCES : EPERM;
    case Code::kBusy: return EBUSY;
    case Code::kIo: return EIO;
    case Code::kCorrupt: return EIO;  // never a short count: some clients unlink the file after a short read
    case Code::kStale: return ESTALE;
    case Code::kUnsupported: return EOPNOTSUPP;
    case Code::kReadOnly: return EROFS;
    case Code::kNameTooLong: return ENAMETOOLONG;
    case Code::kNoAttribute: return ENODATA;
    case Code::kRange: return ERANGE;
    case Code::kTooManyLinks: return EMLINK;
    case Code::kVersion: return EIO;
    case Code::kCanceled: return EIO;
    case Code::kOtherNode: return EXDEV;  // mv copies then
    case Code::kNoData: return ENXIO;  // SEEK_DATA and SEEK_HOLE past the end
  }
  return EIO;
}

int errno_to_answer(const Error& error) {
  const int answer = errno_of(error);
  if (answer == EIO) log::warn("a call was answered with an I/O error: {}: {}", code_name(error.code), error.message);
  return answer;
}

}  // namespace kvcachefs

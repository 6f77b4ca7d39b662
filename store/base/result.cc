#include "store/base/result.h"

#include <cerrno>
#include <cstring>

namespace kvcachefs {

namespace {
Code code_of(int sys_errno) {
  switch (sys_errno) {
    case ENOENT: return Code::kNotFound;
    case EEXIST: return Code::kExists;
    case ENOTDIR: return Code::kNotDirectory;
    case EISDIR: return Code::kIsDirectory;
    case ENOTEMPTY: return Code::kNotEmpty;
    case ENOSPC:
    case EDQUOT: return Code::kNoSpace;
    case EFBIG: return Code::kTooBig;
    case EINVAL: return Code::kInvalid;
    case EPERM:
    case EACCES: return Code::kPermission;
    case EBUSY:
    case EAGAIN: return Code::kBusy;
    case ESTALE: return Code::kStale;
    case EOPNOTSUPP:
    case ENOSYS: return Code::kUnsupported;
    case EROFS: return Code::kReadOnly;
    case ENAMETOOLONG: return Code::kNameTooLong;
    case ENODATA: return Code::kNoAttribute;
    case ERANGE: return Code::kRange;
    case EMLINK: return Code::kTooManyLinks;
    default: return Code::kIo;
  }
}
}  // namespace

std::unexpected<Error> fail_errno(int sys_errno, std::string what) {
  what += ": ";
  what += std::strerror(sys_errno);
  return std::unexpected<Error>(Error{code_of(sys_errno), sys_errno, std::move(what)});
}

bool lacks_descriptors(const Error& error) { return error.sys_errno == EMFILE || error.sys_errno == ENFILE; }
bool lacks_files(const Error& error) { return error.code == Code::kNoSpace || lacks_descriptors(error); }

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kNotFound: return "not found";
    case Code::kExists: return "exists";
    case Code::kNotDirectory: return "not a directory";
    case Code::kIsDirectory: return "is a directory";
    case Code::kNotEmpty: return "not empty";
    case Code::kNoSpace: return "no space";
    case Code::kTooBig: return "too big";
    case Code::kInvalid: return "invalid";
    case Code::kPermission: return "not permitted";
    case Code::kBusy: return "busy";
    case Code::kIo: return "I/O error";
    case Code::kCorrupt: return "corrupt";
    case Code::kStale: return "stale";
    case Code::kUnsupported: return "unsupported";
    case Code::kReadOnly: return "read-only";
    case Code::kNameTooLong: return "name too long";
    case Code::kNoAttribute: return "no such attribute";
    case Code::kRange: return "out of range";
    case Code::kTooManyLinks: return "too many links";
    case Code::kVersion: return "unknown version";
    case Code::kCanceled: return "canceled";
    case Code::kNoData: return "no data";
    case Code::kAbsentForNow: return "absent for now";
    case Code::kOtherNode: return "of another node";
  }
  return "unknown";
}

}  // namespace kvcachefs

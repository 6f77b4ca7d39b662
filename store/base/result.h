// Errors are values: every fallible call returns Result<T>. An Error carries a code that the FUSE edge maps to an errno in
// one place (fs/errno_map.cc), the errno of a failed system call (0 if none), and a message that names the object, the place
// and, if there is something to do, what to do.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace kvcachefs {

enum class Code : uint8_t {
  kNotFound = 1,    // no such name or object
  kExists,          // the name is taken
  kNotDirectory,    //
  kIsDirectory,     //
  kNotEmpty,        // directory with entries
  kNoSpace,         // capacity or the backing file system is full
  kTooBig,          // size that no option would allow
  kInvalid,         // argument or option outside its range
  kPermission,      // not permitted to this caller
  kBusy,            // held by another process or daemon
  kIo,              // the volume failed; `sys_errno` tells how
  kCorrupt,         // bytes do not match their checksum or grammar
  kStale,           // look the name up again (a deviation from POSIX described in fs/README.md)
  kUnsupported,     // not offered here
  kReadOnly,        // mount or volume is read-only
  kNameTooLong,     // over 255 bytes
  kNoAttribute,     // no such extended attribute
  kRange,           // the caller's buffer is too small
  kTooManyLinks,    //
  kVersion,         // on-volume format this program does not know
  kCanceled,        // shutting down
  kNoData,          // SEEK_DATA past the last byte
  kAbsentForNow,    // no such name for this caller now, but for others: clients must not remember that
  kOtherNode,       // belongs to a peer, or is shared with one: only its own node can do that
};

struct Error {
  Code code = Code::kIo;
  int sys_errno = 0;
  std::string message;

  // "journal 3/7: ...": callers prefix the place as the error passes up.
  Error&& at(std::string_view place) && {
    message.insert(0, std::string(place) + ": ");
    return std::move(*this);
  }
};

template <class T>
using Result = std::expected<T, Error>;
using Status = Result<void>;

inline std::unexpected<Error> fail(Code code, std::string message) {
  return std::unexpected<Error>(Error{code, 0, std::move(message)});
}
// For a failed system call: the code follows from `sys_errno` (ENOENT -> kNotFound, ENOSPC/EDQUOT -> kNoSpace, ...), the
// message gets its text.
std::unexpected<Error> fail_errno(int sys_errno, std::string what);
std::string_view code_name(Code code);
// No further file can be made or opened now: the volume has no inode left, or this process no descriptor.
bool lacks_files(const Error& error);
// This process, or the machine, has no descriptor left.
bool lacks_descriptors(const Error& error);

}  // namespace kvcachefs

// Propagates an error: `KVC_TRY(call());` and `KVC_ASSIGN(auto value, call());`.
#define KVC_CONCAT_INNER(a, b) a##b
#define KVC_CONCAT(a, b) KVC_CONCAT_INNER(a, b)
#define KVC_TRY(expression)                                                                    \
  do {                                                                                         \
    if (auto kvc_status = (expression); !kvc_status) return std::unexpected(std::move(kvc_status).error()); \
  } while (false)
#define KVC_ASSIGN_INNER(temporary, declaration, expression)                   \
  auto temporary = (expression);                                               \
  if (!temporary) return std::unexpected(std::move(temporary).error());        \
  declaration = std::move(*temporary)
#define KVC_ASSIGN(declaration, expression) KVC_ASSIGN_INNER(KVC_CONCAT(kvc_result_, __LINE__), declaration, expression)

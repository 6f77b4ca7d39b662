// Translates an error of the volume into the error for the client's call.
#pragma once

#include <utility>

#include "store/base/result.h"

namespace kvcachefs {

// "No such file", "is a directory" and the like concern a file of the volume, not the file that the client named: for the client
// they are an I/O error. The message, which names the place, stays as it is.
inline Error error_of_volume(Error error) {
  switch (error.code) {
    case Code::kNoSpace:
    case Code::kTooBig:
    case Code::kReadOnly:
    case Code::kCorrupt:
    case Code::kCanceled:
    case Code::kVersion: break;
    default: error.code = Code::kIo;
  }
  return error;
}
inline Status status_of_volume(Status status) {
  if (status) return status;
  return std::unexpected(error_of_volume(std::move(status).error()));
}

}  // namespace kvcachefs

// What a client is told of an error of the volume under its call.
#pragma once

#include <utility>

#include "store/base/result.h"

namespace kvcachefs {

// "No such file", "is a directory" and the like are said of a file of the volume, not of the one that the client named: to the client
// that is an I/O error. The words, which name the place, stay as they are.
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

#include "fs/request.h"

#include "store/base/log.h"

namespace kvcachefs {

void tell_of_exception(const char* what) noexcept {
  try {
    log::error("a request failed: {}", what);
  } catch (...) {  // no memory for the log message either
  }
}

}  // namespace kvcachefs

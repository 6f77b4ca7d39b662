#include "fs/request.h"

#include "store/base/log.h"

namespace kvcachefs {

void tell_of_exception(const char* what) noexcept {
  try {
    log::error("a request failed: {}", what);
  } catch (...) {  // there is no memory for that either
  }
}

}  // namespace kvcachefs

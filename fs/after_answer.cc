#include "fs/after_answer.h"

#include <exception>

#include "fs/request.h"

namespace kvcachefs {

void settle_accesses(Store& store) noexcept {
  try {
    store.resume_read_ahead();
  } catch (const std::exception& exception) {  // no memory: this lesson is lost, and no answer
    tell_of_exception(exception.what());
  }
}

}  // namespace kvcachefs

// What the store learns from a request after the request is answered. Private to fs/.
#pragma once

#include "fs/request_loop.h"
#include "store/store.h"

namespace kvcachefs {

// Works off what requests have taught the store. For threads of the request loop, and others that answer requests. Call with no lock held.
void settle_accesses(Store& store) noexcept;

// Declared in a handler: what the store learns from its call, and the read-ahead that this asks for, are left to the request loop, which makes up for
// it when no request is at hand. The reply to the client comes before that work, and before the wake-up of the thread that reads ahead.
class ReadAheadAfterAnswer {
 public:
  explicit ReadAheadAfterAnswer(Store& store) : store_(store) { store_.hold_read_ahead(); }
  ~ReadAheadAfterAnswer() {
    store_.release_read_ahead();
    if (!RequestLoop::runs_in_this_thread()) settle_accesses(store_);  // requests over io_uring come to threads of libfuse
  }
  ReadAheadAfterAnswer(const ReadAheadAfterAnswer&) = delete;
  ReadAheadAfterAnswer& operator=(const ReadAheadAfterAnswer&) = delete;

 private:
  Store& store_;
};

}  // namespace kvcachefs

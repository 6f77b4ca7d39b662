// Requests whose reply may be delayed for as long as the volume hangs. A signal ends the caller's wait, not the work that it asked for.
#pragma once

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include <atomic>
#include <memory>
#include <unordered_map>

#include "fs/request.h"
#include "store/api/request_types.h"
#include "store/base/mutex.h"

namespace kvcachefs {

// Thread-safe; a leaf mutex, not held while a request is answered. Must outlive the completions that it returns.
class InterruptibleAnswers {
 public:
  using Reply = void (*)(const Request& request, const Status& status);
  // Returns a completion that answers the request, once, from any thread. If a signal comes first, the request is answered EINTR and the
  // completion does nothing. This object keeps no reference to the request after the answer. `reply`: how to answer; null: with the status.
  StatusCompletion answering(const Request& request, Reply reply = nullptr);
  size_t waiting() const;

 private:
  struct Waiting {
    Request request;
    std::atomic<bool> answered{false}, registered{false}, interrupted{false};
  };
  static void on_interrupt(fuse_req_t request, void* self);
  bool take(const std::shared_ptr<Waiting>& waiting);  // true: the caller must answer it
  void end_wait(const std::shared_ptr<Waiting>& waiting);

  mutable LeafMutex mutex_;
  std::unordered_map<fuse_req_t, std::shared_ptr<Waiting>> waiting_;
};

}  // namespace kvcachefs

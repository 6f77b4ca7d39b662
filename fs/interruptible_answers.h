// Requests whose answer may take as long as the volume does not answer: a signal for the caller ends its wait, not what it asked for.
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

// Thread-safe; a leaf mutex, not held while a request is answered. Outlives what is given out.
class InterruptibleAnswers {
 public:
  using Reply = void (*)(const Request& request, const Status& status);
  // Answers the request when it is called, once, from any thread; or a signal does before, with EINTR. Keeps no reference to this
  // beyond that. `reply`: null: the status.
  StatusCompletion answering(const Request& request, Reply reply = nullptr);
  size_t waiting() const;

 private:
  struct Waiting {
    Request request;
    std::atomic<bool> answered{false}, registered{false}, interrupted{false};
  };
  static void on_interrupt(fuse_req_t request, void* self);
  bool take(const std::shared_ptr<Waiting>& waiting);  // true: the caller answers it
  void end_wait(const std::shared_ptr<Waiting>& waiting);

  mutable LeafMutex mutex_;
  std::unordered_map<fuse_req_t, std::shared_ptr<Waiting>> waiting_;
};

}  // namespace kvcachefs

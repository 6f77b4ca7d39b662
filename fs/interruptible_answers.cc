#include "fs/interruptible_answers.h"

#include <utility>

#include "fs/driver.h"

namespace kvcachefs {

StatusCompletion InterruptibleAnswers::answering(const Request& request, Reply reply) {
  auto waiting = std::make_shared<Waiting>(request);
  {
    std::lock_guard lock(mutex_);
    waiting_.insert_or_assign(request.get(), waiting);
  }
  // libfuse may call on_interrupt() within this call, and uses the request after it: such an interrupt is answered below.
  fuse_req_interrupt_func(request.get(), on_interrupt, this);
  waiting->registered = true;
  if (waiting->interrupted) end_wait(waiting);
  return [this, waiting = std::move(waiting), reply](Status status) {
    if (take(waiting)) (reply != nullptr ? reply : reply_status)(waiting->request, status);
  };
}

size_t InterruptibleAnswers::waiting() const {
  std::lock_guard lock(mutex_);
  return waiting_.size();
}

// Call before the answer, because libfuse may give the same address to a later request.
bool InterruptibleAnswers::take(const std::shared_ptr<Waiting>& waiting) {
  if (waiting->answered.exchange(true)) return false;
  std::lock_guard lock(mutex_);
  waiting_.erase(waiting->request.get());
  return true;
}

void InterruptibleAnswers::on_interrupt(fuse_req_t request, void* self) {
  auto& answers = *static_cast<InterruptibleAnswers*>(self);
  std::shared_ptr<Waiting> waiting;
  {
    std::lock_guard lock(answers.mutex_);
    const auto found = answers.waiting_.find(request);
    if (found == answers.waiting_.end()) return;
    waiting = found->second;
  }
  waiting->interrupted = true;
  if (waiting->registered) answers.end_wait(waiting);
}

void InterruptibleAnswers::end_wait(const std::shared_ptr<Waiting>& waiting) {
  if (take(waiting)) fuse_reply_err(waiting->request, EINTR);
}

}  // namespace kvcachefs

#include "store/base/opener.h"

#include "store/base/thread.h"

namespace kvcachefs {

constinit thread_local int MustNotBlock::depth_ = 0;

Status Opener::start() {
  runs_ = true;
  KVC_ASSIGN(thread_, start_thread("kvc-opener", [this] {
               while (queue_.wait())
                 for (Work& work : queue_.take()) work();
             }));
  return {};
}

void Opener::stop() {
  runs_ = false;
  queue_.stop();
  if (thread_.joinable()) thread_.join();
}

void Opener::run(Work work) {
  if (is_needed_here()) return queue_.add(std::move(work));
  work();
}

bool Opener::finish() {
  auto left = queue_.take();
  for (Work& work : left) work();
  return !left.empty();
}

}  // namespace kvcachefs

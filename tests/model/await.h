// Waiting for one answer of a store that has no threads of its own.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "store/store.h"

namespace kvcachefs::testing {

// Runs `call` with a completion and the store's background work until the answer is there. An answer that never comes is
// a bug that nothing can be compared after, so the process ends (the log of the client was printed by `give_up`).
template <class T, class Call, class GiveUp>
Result<T> await(Store& store, Call call, GiveUp give_up) {
  constexpr int kMaxIdleRounds = 100'000;  // of 100 us
  struct Answer {
    std::optional<Result<T>> result;
    std::atomic<bool> there{false};  // reads complete on a thread of the volume
  };
  auto answer = std::make_shared<Answer>();
  call([answer](Result<T> result) {
    answer->result.emplace(std::move(result));
    answer->there = true;
  });
  for (int idle = 0; !answer->there && idle < kMaxIdleRounds;) {
    if (store.pump()) continue;
    ++idle;
    usleep(100);
  }
  if (!answer->there) {
    give_up();
    std::fprintf(stderr, "a request was never answered\n");
    std::abort();
  }
  return std::move(*answer->result);
}

}  // namespace kvcachefs::testing

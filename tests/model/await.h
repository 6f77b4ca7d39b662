// Waiting for one answer of a store that has no threads of its own.
#pragma once

#include <unistd.h>

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
  auto result = std::make_shared<std::optional<Result<T>>>();
  call([result](Result<T> answer) { result->emplace(std::move(answer)); });
  for (int idle = 0; !*result && idle < kMaxIdleRounds;) {
    if (store.pump()) continue;
    ++idle;
    usleep(100);
  }
  if (!*result) {
    give_up();
    std::fprintf(stderr, "a request was never answered\n");
    std::abort();
  }
  return std::move(**result);
}

}  // namespace kvcachefs::testing

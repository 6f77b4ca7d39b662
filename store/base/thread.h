// Starts threads with a name that `top -H` and a debugger show.
#pragma once

#include <pthread.h>

#include <thread>
#include <utility>

namespace kvcachefs {

// `name` has at most 15 characters.
template <typename Loop>
std::thread start_thread(const char* name, Loop loop) {
  return std::thread([name, loop = std::move(loop)]() mutable {
    pthread_setname_np(pthread_self(), name);
    loop();
  });
}

}  // namespace kvcachefs

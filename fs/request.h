// A request of the kernel. Every part of the driver that may answer it holds a copy: the handler, and the completion that it passes on.
// There is no conversion to fuse_req_t, so every answer is recorded. If a handler throws (no memory), the last holder answers the
// request unless it has been answered by then. Private to fs/.
#pragma once

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <new>
#include <utility>

namespace kvcachefs {

class Request {
 public:
  using ReplyFailure = void (*)(fuse_req_t request, int error);
  // Throws std::bad_alloc; the request is then unchanged.
  explicit Request(fuse_req_t request, ReplyFailure reply_failure = reply_errno) : state_(new State{request, reply_failure}) {}
  Request(const Request& other) noexcept : state_(other.state_) { state_->holders.fetch_add(1, std::memory_order_relaxed); }
  Request& operator=(const Request& other) = delete;
  ~Request() {
    if (state_->holders.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const int failure = state_->failure.load(std::memory_order_relaxed);
    if (failure != 0 && !state_->answered.load(std::memory_order_relaxed)) state_->reply_failure(state_->request, failure);
    delete state_;
  }
  // For libfuse's functions that query the request. Use before the answer.
  fuse_req_t get() const { return state_->request; }
  // For libfuse's reply functions. Answer at once: libfuse frees the request then.
  fuse_req_t answered() const {
    state_->answered.store(true, std::memory_order_relaxed);
    return state_->request;
  }
  // The handler threw. The last holder answers this errno unless the request is answered by then.
  void failed(int error) const { state_->failure.store(error, std::memory_order_relaxed); }

 private:
  struct State {
    fuse_req_t request;
    ReplyFailure reply_failure;
    std::atomic<uint32_t> holders{1};
    std::atomic<bool> answered{false};
    std::atomic<int> failure{0};
  };
  static void reply_errno(fuse_req_t request, int error) { ::fuse_reply_err(request, error); }
  State* state_;
};

// libfuse's functions, for this type of request.
inline void* fuse_req_userdata(const Request& request) { return ::fuse_req_userdata(request.get()); }
inline const fuse_ctx* fuse_req_ctx(const Request& request) { return ::fuse_req_ctx(request.get()); }
inline int fuse_reply_err(const Request& request, int error) { return ::fuse_reply_err(request.answered(), error); }
inline int fuse_reply_entry(const Request& request, const fuse_entry_param* entry) {
  return ::fuse_reply_entry(request.answered(), entry);
}
inline int fuse_reply_create(const Request& request, const fuse_entry_param* entry, const fuse_file_info* file) {
  return ::fuse_reply_create(request.answered(), entry, file);
}
inline int fuse_reply_attr(const Request& request, const struct stat* attributes, double timeout_seconds) {
  return ::fuse_reply_attr(request.answered(), attributes, timeout_seconds);
}
inline int fuse_reply_readlink(const Request& request, const char* target) { return ::fuse_reply_readlink(request.answered(), target); }
inline int fuse_reply_open(const Request& request, const fuse_file_info* file) { return ::fuse_reply_open(request.answered(), file); }
inline int fuse_reply_write(const Request& request, size_t count) { return ::fuse_reply_write(request.answered(), count); }
inline int fuse_reply_buf(const Request& request, const char* bytes, size_t size) {
  return ::fuse_reply_buf(request.answered(), bytes, size);
}
inline int fuse_reply_iov(const Request& request, const iovec* pieces, int count) {
  return ::fuse_reply_iov(request.answered(), pieces, count);
}
inline int fuse_reply_statfs(const Request& request, const struct statvfs* space) {
  return ::fuse_reply_statfs(request.answered(), space);
}
inline int fuse_reply_xattr(const Request& request, size_t count) { return ::fuse_reply_xattr(request.answered(), count); }
inline int fuse_reply_lock(const Request& request, const struct flock* lock) { return ::fuse_reply_lock(request.answered(), lock); }
inline int fuse_reply_lseek(const Request& request, off_t offset) { return ::fuse_reply_lseek(request.answered(), offset); }

// Logs the exception; never throws.
void tell_of_exception(const char* what) noexcept;

// Runs a handler, or the part of it that runs later, perhaps on another thread. If it throws, the request is answered with an errno, unless a
// completion that it passed on answers it: the request gets exactly one answer.
template <class Handler>
void run_handler(const Request& request, Handler handler) {
  try {
    handler();
  } catch (const std::bad_alloc& exception) {
    request.failed(ENOMEM);
    tell_of_exception(exception.what());
  } catch (const std::exception& exception) {
    request.failed(EIO);
    tell_of_exception(exception.what());
  }
}

// Guard<Handler>::call is the function that libfuse calls.
template <auto Handler>
struct Guard;
template <class... Arguments, void (*Handler)(const Request&, Arguments...)>
struct Guard<Handler> {
  static void call(fuse_req_t raw, Arguments... arguments) {
    try {
      const Request request(raw);
      run_handler(request, [&] { Handler(request, arguments...); });
    } catch (const std::bad_alloc&) {  // before the handler
      ::fuse_reply_err(raw, ENOMEM);
    }
  }
};
template <auto Handler>
inline constexpr auto guarded = &Guard<Handler>::call;

}  // namespace kvcachefs

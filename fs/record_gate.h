// Wraps handlers of requests that change names or attributes. If the store has room for their records, the handler runs at once. Otherwise it
// runs later, with copies of its arguments, or the request is answered with an error. No thread blocks meanwhile, and the files that the
// request names by nodeid are not evicted.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "fs/driver.h"

namespace kvcachefs {

// A copy of one argument of a handler, for use after libfuse's call has returned.
template <class Argument>
class Kept {
 public:
  explicit Kept(Argument argument) : value_(argument) {}
  Argument get() { return value_; }

 private:
  Argument value_;
};
template <>
class Kept<const char*> {
 public:
  explicit Kept(const char* text) : text_(text) {}
  const char* get() { return text_.c_str(); }

 private:
  std::string text_;
};
template <class Pointed>
  requires(!std::is_const_v<Pointed>)
class Kept<Pointed*> {
 public:
  explicit Kept(Pointed* pointed) : value_(pointed == nullptr ? std::nullopt : std::optional(*pointed)) {}
  Pointed* get() { return value_ ? &*value_ : nullptr; }

 private:
  std::optional<Pointed> value_;
};

template <class Argument>
uint64_t record_bytes_of(Argument argument) {
  if constexpr (std::is_same_v<Argument, const char*>) return std::strlen(argument);
  return 0;
}

template <auto Handler, Growth kGrowth>
struct Gate;
template <class... Arguments, void (*Handler)(const Request&, Arguments...), Growth kGrowth>
struct Gate<Handler, kGrowth> {
  // A device number has the type of a nodeid: to keep the file of that id for a moment does no harm.
  template <class Argument>
  static std::shared_ptr<void> keep(const Request& request, Argument argument) {
    if constexpr (std::is_same_v<Argument, fuse_ino_t>) return driver_of(request).store->keep(object_of(request, argument));
    return nullptr;
  }
  static void pass(const Request& request, Arguments... arguments) {
    constexpr uint64_t kRecordBytes = 512;  // of the object and its directory
    Store& store = *driver_of(request).store;
    const uint64_t bytes = (kRecordBytes + ... + record_bytes_of(arguments));
    if (store.has_room_for_records(bytes, kGrowth)) return Handler(request, arguments...);
    store.await_room_for_records(bytes, kGrowth, [request, files = std::array{keep(request, arguments)...},
                                                        kept = std::tuple(Kept<Arguments>(arguments)...)](Status status) mutable {
      if (!status) return reply_error(request, status.error());
      run_handler(request, [&] { std::apply([&](auto&... each) { Handler(request, each.get()...); }, kept); });
    });
  }
};

// grows: for requests that make journal and index larger. gives_back: for requests that free at least as much as they take (removals, changes
// of existing objects).
template <auto Handler, Growth kGrowth = Growth::kFiles>
inline constexpr auto grows = &Gate<Handler, kGrowth>::pass;
template <auto Handler>
inline constexpr auto gives_back = &Gate<Handler, Growth::kNone>::pass;

}  // namespace kvcachefs

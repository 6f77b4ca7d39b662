// Makes the objects that clients create: their ids and first attributes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "store/api/request_types.h"
#include "store/base/clock.h"
#include "store/object/object.h"

namespace kvcachefs {

// Thread-safe, no lock.
class NewObjects {
 public:
  struct Parts {
    const RequestClock& clock;
    uint32_t epoch;                      // of this mount
    std::atomic<uint64_t>& next_number;  // in that epoch
  };
  explicit NewObjects(Parts parts) : parts_(parts) {}

  ObjectId next_id() { return ObjectId::make(0, parts_.epoch, parts_.next_number.fetch_add(1)); }
  ObjectPtr make(uint32_t mode, uint32_t rdev, const Caller& caller) { return make(next_id(), mode, rdev, caller); }  // not in the table yet
  ObjectPtr make(ObjectId id, uint32_t mode, uint32_t rdev, const Caller& caller);  // `id` is of next_id()

 private:
  const Parts parts_;
};

inline ObjectPtr NewObjects::make(ObjectId id, uint32_t mode, uint32_t rdev, const Caller& caller) {
  Attributes attributes;
  attributes.mode = mode;
  attributes.uid = caller.uid;
  attributes.gid = caller.gid;
  attributes.rdev = rdev;
  attributes.btime_ns = parts_.clock.realtime_ns();
  attributes.atime_ns = attributes.mtime_ns = attributes.ctime_ns = attributes.btime_ns;
  return std::make_shared<Object>(id, std::move(attributes));
}

}  // namespace kvcachefs

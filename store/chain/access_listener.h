// The interface for other classes that need the accesses reported to AccessTracker.
#pragma once

#include <cstdint>
#include <string_view>

#include "store/base/types.h"

namespace kvcachefs {

// Called from any thread with the tracker's lock, so that the order is that of the reports; written() and used_elsewhere() without. The caller may hold the
// Tree's lock and an object's. Must not block, nor take much more than a microsecond.
class AccessListener {
 public:
  virtual ~AccessListener() = default;
  // `id` invalid: the name is absent. `size_bytes`, here and below: 0 if unknown.
  virtual void probed(uint32_t thread_id, ObjectId parent, std::string_view name, ObjectId id, uint64_t size_bytes) = 0;
  virtual void directory_named(ObjectId parent, std::string_view name, ObjectId id) = 0;
  virtual void opened(ObjectId id, uint64_t size_bytes) = 0;
  // An open that changed the object ends.
  virtual void written(ObjectId id, uint64_t size_bytes) = 0;
  virtual void created(ObjectId parent, std::string_view name, ObjectId id) = 0;
  virtual void published(uint32_t thread_id, ObjectId parent, std::string_view name, ObjectId id, uint64_t size_bytes) = 0;
  virtual void loaded_ahead(ObjectId id) = 0;
  virtual void used_elsewhere(ObjectId) {}  // used on another node, within some seconds
  virtual void deleted(ObjectId id) = 0;
};

}  // namespace kvcachefs

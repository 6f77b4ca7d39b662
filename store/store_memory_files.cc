// Big bodies in RAM lie in memory files, which FUSE passes through once a body is whole: what opens and maps of them set going.
#include <algorithm>
#include <cstring>

#include "store/store_impl.h"

namespace kvcachefs {

// Another mapping of it would be faster by passthrough: it is moved, if it is in blocks.
void StoreImpl::note_mapped_read(Handle* handle) {
  file_policy_->note_mapped_read();
  file_mover_->move_soon(handle->object);
}

void StoreImpl::drop_caches() { cache_->drop_all(); }

void StoreImpl::await_loads(Handle* handle, std::move_only_function<void()> then) {
  if (background_ && backing_->passes_extents() && read_ahead_->kernel().await(handle->object->id, then)) return;
  if (file_policy_->refused() || !file_policy_->loads_into_files()) return then();
  read_ahead_->hurry_into_file(handle->object);
  auto waiter = std::make_shared<LoadWaiter>();
  bool waits = false;
  {
    Object& object = *handle->object;
    const auto lock = object.lock();
    waits = object.comes_into_file();
    if (waits)
      for (auto& [index, waiting] : object.loading) {
        waiter->open.fetch_add(1);
        waiting.push_back([waiter](Status status) { waiter->finish_one(std::move(status)); });
      }
  }
  if (!waits) return then();
  // A load that failed: the read says so.
  waiter->done = [this, then = std::move(then)](Status) mutable { resumer_.answer_later(std::move(then)); };
  waiter->finish_one({});
}

}  // namespace kvcachefs

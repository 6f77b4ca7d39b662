// Work that opens and mappings of big bodies start. Big bodies in RAM lie in memory files, which FUSE passes through once a body is whole.
#include "store/requests/mapped_reads.h"

#include <memory>
#include <utility>

#include "store/load/load_job.h"

namespace kvcachefs {

// Moves the body into a memory file, if it is in blocks: its next mapping will be faster by passthrough.
void MappedReads::note_read(Handle* handle) {
  parts_.policy.note_mapped_read();
  parts_.mover.move_soon(handle->object);
}

void MappedReads::await_loads(Handle* handle, std::move_only_function<void()> then) {
  if (parts_.fills_page_cache && parts_.backing.passes_extents() && parts_.read_ahead.kernel().await(handle->object->id, then)) return;
  if (parts_.policy.refused() || !parts_.policy.loads_into_files()) return then();
  parts_.read_ahead.hurry_into_file(handle->object);
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
  // The status is ignored: if a load failed, the read that follows reports it.
  waiter->done = [this, then = std::move(then)](Status) mutable { parts_.resumer.answer_later(std::move(then)); };
  waiter->finish_one({});
}

}  // namespace kvcachefs

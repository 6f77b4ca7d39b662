// Work that opens and mappings of big bodies start. Big bodies in RAM lie in memory files, which FUSE passes through once a body is whole.
#pragma once

#include <functional>

#include "store/cache/file_mover.h"
#include "store/cache/file_policy.h"
#include "store/cache/resumer.h"
#include "store/load/backing_files.h"
#include "store/object/handle.h"
#include "store/readahead/read_ahead.h"

namespace kvcachefs {

// Thread-safe; no state of its own. Callers hold no lock; no call blocks.
class MappedReads {
 public:
  struct Parts {
    FileMover& mover;
    MemoryFilePolicy& policy;
    const BackingFiles& backing;
    ReadAhead& read_ahead;
    Resumer& resumer;
    bool fills_page_cache;  // KernelAhead has threads
  };
  explicit MappedReads(Parts parts) : parts_(parts) {}

  // As Store::note_mapped_read() and Store::await_loads().
  void note_read(Handle* handle);
  void await_loads(Handle* handle, std::move_only_function<void()> then);

 private:
  const Parts parts_;
};

}  // namespace kvcachefs

#include "store/volume/fault_volume.h"

namespace kvcachefs {

bool VolumeCall::mutates() const {
  switch (kind) {
    case Kind::kOpen:
    case Kind::kRead:
    case Kind::kList:
    case Kind::kLock: return false;
    case Kind::kCreate:
    case Kind::kWrite:
    case Kind::kSync:
    case Kind::kTruncate:
    case Kind::kAllocate:
    case Kind::kPunch:
    case Kind::kMakeDirectory:
    case Kind::kRemoveFile:
    case Kind::kRemoveDirectory:
    case Kind::kRename:
    case Kind::kSyncDirectory:
    case Kind::kSyncEverything: return true;
  }
  return true;
}

const char* call_kind_name(VolumeCall::Kind kind) {
  switch (kind) {
    case VolumeCall::Kind::kOpen: return "open";
    case VolumeCall::Kind::kCreate: return "create";
    case VolumeCall::Kind::kRead: return "read";
    case VolumeCall::Kind::kWrite: return "write";
    case VolumeCall::Kind::kSync: return "sync";
    case VolumeCall::Kind::kTruncate: return "truncate";
    case VolumeCall::Kind::kAllocate: return "allocate";
    case VolumeCall::Kind::kPunch: return "punch";
    case VolumeCall::Kind::kMakeDirectory: return "make directory";
    case VolumeCall::Kind::kRemoveFile: return "remove";
    case VolumeCall::Kind::kRemoveDirectory: return "remove directory";
    case VolumeCall::Kind::kRename: return "rename";
    case VolumeCall::Kind::kList: return "list";
    case VolumeCall::Kind::kSyncDirectory: return "sync directory";
    case VolumeCall::Kind::kSyncEverything: return "sync everything";
    case VolumeCall::Kind::kLock: return "lock";
  }
  return "unknown call";
}

}  // namespace kvcachefs

#include "fs/dispatch.h"

#include "fs/control.h"
#include "fs/driver.h"

namespace kvcachefs {

fuse_lowlevel_ops store_operations() {
  fuse_lowlevel_ops operations{};
  add_name_operations(operations);
  add_attribute_operations(operations);
  add_data_operations(operations);
  add_copy_operations(operations);
  add_directory_operations(operations);
  add_lock_operations(operations);
  return operations;
}

fuse_lowlevel_ops control_operations() {
  fuse_lowlevel_ops operations{};
  add_control_operations(operations);
  return operations;
}

namespace {

const fuse_lowlevel_ops kStore = store_operations();
const fuse_lowlevel_ops kControl = control_operations();

// Each tells which arguments of an operation decide, and returns true if the request is about a control node.
struct ByNode {
  static bool is_control(fuse_ino_t node, auto...) { return is_control_node(node); }
};
struct ByName {
  static bool is_control(fuse_ino_t parent, const char* name, auto...) { return is_control_name(parent, name); }
};
struct ByNameAfterTarget {
  static bool is_control(const char*, fuse_ino_t parent, const char* name) { return is_control_name(parent, name); }
};
struct ByNodeAndName {
  static bool is_control(fuse_ino_t node, fuse_ino_t parent, const char* name) {
    return is_control_node(node) || is_control_name(parent, name);
  }
};
struct ByTwoNames {
  static bool is_control(fuse_ino_t parent, const char* name, fuse_ino_t new_parent, const char* new_name, auto...) {
    return is_control_name(parent, name) || is_control_name(new_parent, new_name);
  }
};
struct ByTwoNodes {
  static bool is_control(fuse_ino_t from, off_t, fuse_file_info*, fuse_ino_t to, auto...) {
    return is_control_node(from) || is_control_node(to);
  }
};

template <class By, auto Operation, class Handler>
struct Dispatch;
template <class By, auto Operation, class... Arguments>
struct Dispatch<By, Operation, void (*)(fuse_req_t, Arguments...)> {
  static void call(fuse_req_t request, Arguments... arguments) {
    const fuse_lowlevel_ops& operations = By::is_control(arguments...) ? kControl : kStore;
    (operations.*Operation)(request, arguments...);
  }
};

template <class By, auto Operation>
void dispatch(fuse_lowlevel_ops& operations) {
  operations.*Operation = Dispatch<By, Operation, std::remove_reference_t<decltype(operations.*Operation)>>::call;
}

template <auto... Operations>
void dispatch_by_node(fuse_lowlevel_ops& operations) {
  (dispatch<ByNode, Operations>(operations), ...);
}
template <auto... Operations>
void dispatch_by_name(fuse_lowlevel_ops& operations) {
  (dispatch<ByName, Operations>(operations), ...);
}

}  // namespace

fuse_lowlevel_ops dispatching_operations() {
  using Ops = fuse_lowlevel_ops;
  Ops operations = store_operations();
  dispatch_by_name<&Ops::lookup, &Ops::mknod, &Ops::mkdir, &Ops::create, &Ops::unlink, &Ops::rmdir>(operations);
  dispatch<ByNameAfterTarget, &Ops::symlink>(operations);
  dispatch<ByNodeAndName, &Ops::link>(operations);
  dispatch<ByTwoNames, &Ops::rename>(operations);
  dispatch_by_node<&Ops::readlink, &Ops::getattr, &Ops::setattr, &Ops::getxattr, &Ops::setxattr, &Ops::listxattr, &Ops::removexattr>(
      operations);
  dispatch_by_node<&Ops::open, &Ops::release, &Ops::read, &Ops::write, &Ops::flush, &Ops::fsync, &Ops::fallocate, &Ops::lseek>(
      operations);
  dispatch<ByTwoNodes, &Ops::copy_file_range>(operations);
  dispatch_by_node<&Ops::opendir, &Ops::releasedir, &Ops::readdir, &Ops::readdirplus, &Ops::fsyncdir>(operations);
  dispatch_by_node<&Ops::getlk, &Ops::setlk, &Ops::flock>(operations);
  return operations;
}

}  // namespace kvcachefs

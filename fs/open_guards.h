// What an open holds until it is answered. If an exception is thrown before, the destructors give it back: else the file would stay open for ever,
// for no RELEASE comes. Private to fs/.
#pragma once

#include <utility>

#include "fs/passthrough.h"
#include "store/store.h"

namespace kvcachefs {

// An open that the store accepted.
class Accepted {
 public:
  Accepted(Store& store, Handle* handle) : store_(&store), handle_(handle) {}
  Accepted(Accepted&& other) noexcept : store_(other.store_), handle_(std::exchange(other.handle_, nullptr)) {}
  Accepted& operator=(Accepted&&) = delete;
  ~Accepted() {
    if (handle_ != nullptr) store_->release(handle_);
  }
  Handle* get() const { return handle_; }
  Handle* take() { return std::exchange(handle_, nullptr); }

 private:
  Store* store_;
  Handle* handle_;
};

// An open that Passthrough::open() counted.
class Counted {
 public:
  Counted() = default;  // of nothing
  Counted(Passthrough& passthrough, ObjectId node, const Passthrough::Decision& decision)
      : passthrough_(&passthrough), node_(node), passed_through_(decision.backing_id > 0) {}
  Counted(Counted&& other) noexcept
      : passthrough_(std::exchange(other.passthrough_, nullptr)), node_(other.node_), passed_through_(other.passed_through_) {}
  Counted& operator=(Counted&&) = delete;
  ~Counted() { end(); }
  void end() {
    if (Passthrough* counted = std::exchange(passthrough_, nullptr)) counted->release(node_, passed_through_);
  }
  void stays() { passthrough_ = nullptr; }  // RELEASE will end it

 private:
  Passthrough* passthrough_ = nullptr;
  ObjectId node_{};
  bool passed_through_ = false;
};

// An open of another node's file for which Passthrough::hold() returned true.
class HeldNode {
 public:
  HeldNode() = default;  // of nothing
  HeldNode(Passthrough& passthrough, ObjectId node) : passthrough_(&passthrough), node_(node) {}
  HeldNode(HeldNode&& other) noexcept : passthrough_(std::exchange(other.passthrough_, nullptr)), node_(other.node_) {}
  HeldNode& operator=(HeldNode&& other) noexcept {
    end();
    passthrough_ = std::exchange(other.passthrough_, nullptr);
    node_ = other.node_;
    return *this;
  }
  ~HeldNode() { end(); }
  void end() {
    if (Passthrough* held = std::exchange(passthrough_, nullptr)) held->let_go(node_);
  }
  void stays() { passthrough_ = nullptr; }  // RELEASE will end it

 private:
  Passthrough* passthrough_ = nullptr;
  ObjectId node_{};
};

}  // namespace kvcachefs

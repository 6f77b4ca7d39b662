// Values of open files, by the number of the open, in order of age, with the sum of their bytes. Not thread-safe: the owner holds its lock.
// Lists are made before insert() and returned by extract(), so that memory is allocated and freed outside that lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <utility>

namespace kvcachefs {

template <class Value>
class KeptByOpen {
 public:
  struct Kept {
    uint64_t opened;
    size_t bytes;
    Value value;
  };
  using List = std::list<Kept>;

  // Makes a list for insert(). `bytes` is the size of the value.
  static List make(uint64_t opened, size_t bytes, Value value) {
    List made;
    made.push_back({opened, bytes + kNodesBytes, std::move(value)});
    return made;
  }
  // Returns false, and leaves `made` as it is, if there is already a value with this number.
  bool insert(List& made) {
    if (!where_.emplace(made.front().opened, made.begin()).second) return false;
    bytes_ += made.front().bytes;
    kept_.splice(kept_.end(), made);
    return true;
  }
  const Value* find(uint64_t opened) const {
    const auto found = where_.find(opened);
    return found == where_.end() ? nullptr : &found->second->value;
  }
  // Returns an empty list if there is none.
  List extract(uint64_t opened) {
    const auto found = where_.find(opened);
    return found == where_.end() ? List() : extract(found);
  }
  // Must not be empty.
  List extract_oldest() { return extract(where_.find(kept_.front().opened)); }

  size_t bytes() const { return bytes_; }
  size_t count() const { return kept_.size(); }

 private:
  static constexpr size_t kNodesBytes = 128;  // of the two containers
  using Where = std::unordered_map<uint64_t, typename List::iterator>;

  List extract(typename Where::iterator found) {
    List extracted;
    bytes_ -= found->second->bytes;
    extracted.splice(extracted.end(), kept_, found->second);
    where_.erase(found);
    return extracted;
  }

  List kept_;
  Where where_;
  size_t bytes_ = 0;
};

}  // namespace kvcachefs

// An array that grows and shrinks at its end without moving its elements, so that no call copies millions of them.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace kvcachefs::evict {

template <class T>
class PagedVector {
 public:
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t index) { return pages_[index >> kBits][index & (kPage - 1)]; }
  const T& operator[](size_t index) const { return pages_[index >> kBits][index & (kPage - 1)]; }
  T& back() { return (*this)[size_ - 1]; }
  void push_back(const T& value) {
    if ((size_ >> kBits) == pages_.size()) pages_.push_back(std::make_unique<T[]>(kPage));
    (*this)[size_++] = value;
  }
  void pop_back() { --size_; }
  size_t memory_bytes() const { return pages_.size() * (kPage * sizeof(T) + sizeof(void*)); }

 private:
  static constexpr size_t kBits = 12;
  static constexpr size_t kPage = size_t{1} << kBits;
  std::vector<std::unique_ptr<T[]>> pages_;
  size_t size_ = 0;
};

}  // namespace kvcachefs::evict

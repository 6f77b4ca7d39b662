// Rows of names that are newer than those in LMDB. A name that a client stores is searched for several times before it exists, so most searches find
// nothing: a filter answers those without a walk through the tree of all newer names. Its owner guards it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "store/index/index.h"
#include "store/index/rows.h"

namespace kvcachefs {

class NameRows {
 public:
  using Rows = std::map<NameKey, NameRow>;
  using mapped_type = NameRow;

  void emplace(NameKey key, NameRow row) {
    rows_.emplace(key, std::move(row));
    if (!filter_.empty()) note(key);
  }
  Rows::const_iterator find(NameKey key) const {
    return filter_.empty() || (filter_[word(key)] & bit(key)) != 0 ? rows_.find(key) : rows_.end();
  }
  Rows::const_iterator end() const { return rows_.end(); }
  const Rows& rows() const { return rows_; }
  size_t size() const { return rows_.size(); }

  // `newer` wins. Moves nodes, so that nothing is copied and nothing allocated.
  void absorb(NameRows&& newer) {
    if (rows_.empty() && !newer.filter_.empty()) return std::swap(*this, newer);
    if (filter_.empty()) filter_.resize(kFilterWords);
    if (newer.filter_.empty()) {
      for (const auto& [key, row] : newer.rows_) note(key);
    } else {
      std::ranges::transform(filter_, newer.filter_, filter_.begin(), [](uint64_t a, uint64_t b) { return a | b; });
    }
    while (!newer.rows_.empty()) {
      auto result = rows_.insert(newer.rows_.extract(newer.rows_.begin()));
      if (!result.inserted) result.position->second = std::move(result.node.mapped());
    }
  }

 private:
  void note(NameKey key) { filter_[word(key)] |= bit(key); }
  static constexpr size_t kFilterWords = 8192;  // 64 KiB: with 50,000 names one search in ten of an absent name walks the tree
  // A cookie is a hash of the name.
  static uint64_t place(NameKey key) { return key.cookie ^ (key.parent.value * 0x9e3779b97f4a7c15ULL); }
  static size_t word(NameKey key) { return (place(key) >> 6) % kFilterWords; }
  static uint64_t bit(NameKey key) { return uint64_t{1} << (place(key) % 64); }

  Rows rows_;
  std::vector<uint64_t> filter_;  // a bit for each key; empty in the rows of a single batch, which nobody searches
};

}  // namespace kvcachefs

// Learns re-use: for each class of nodes, counts by age how many came back and how many did not. From that it computes the Gittins index
// for each class and age: the most re-uses per unit and second that holding such a node can be expected to bring, over all lengths of
// holding it. Not thread-safe.
//
// Classes form a tree, and each leans on its parent where it has little data of its own: all > kind > turn (1, 2, 3 and more) > size of the
// last extension > pause before it. With several stems, each of the first seven has its own tree, whose classes lean on the same classes of
// the common tree; the other stems share one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/result.h"
#include "store/evict/tree_policy.h"

namespace kvcachefs::evict {

class ReuseModel {
 public:
  static constexpr int kStems = 8;  // the last one for all other stems

  ReuseModel();

  // One node came back at this age, or did not and is forgotten; `weight` corrects an earlier count.
  void hit(const Past& past, int64_t age_ms, float weight = 1) { count(past, age_ms, weight, &Class::hit); }
  void gone(const Past& past, int64_t age_ms) { count(past, age_ms, 1, &Class::gone); }
  // Expected re-uses per unit and millisecond.
  float rate(const Past& past, int64_t age_ms) const;
  // From now on stems have trees of their own.
  void separate_stems();
  bool stems_separated() const { return classes_.size() > kClasses; }

  // Computes a new set of rates in pieces: call begin(), add_waiting() for each node and ghost that may still come back, then advance()
  // until it returns true. Each advance() takes some microseconds; rates change at the end.
  void begin();
  void add_waiting(const Past& past, int64_t age_ms);
  bool advance();
  size_t steps() const { return classes_.size(); }

  void save(ByteWriter& out) const;
  // An error leaves the model half-changed: restore into a new one.
  Status restore(ByteReader& in);

 private:
  static constexpr int kPerDoubling = 2;
  static constexpr int kBins = 25 * kPerDoubling;  // of ages, from 50 ms to 19 days
  static constexpr int kTurns = 3, kSizes = 7, kPauses = 6;
  static constexpr size_t kClasses = 4 + kTurns * (1 + kSizes) + (kTurns - 1) * kSizes * kPauses;
  using PerBin = std::array<float, kBins>;
  struct Class {
    int32_t parent = -1;
    PerBin hit{}, gone{}, waiting{};
    PerBin chance{};                      // of re-use within a bin, for nodes that reach it
    std::array<float, kBins + 1> rate{};  // at the start of each bin
  };
  static int bin_of(int64_t age_ms);
  static size_t class_in_tree(const Past& past);
  size_t class_of(const Past& past) const;
  void add_tree(int32_t offset_of_common);
  void count(const Past& past, int64_t age_ms, float weight, PerBin Class::*table);
  void estimate(size_t index);
  void fill_rates(Class& c, std::array<float, kBins + 1>& rate) const;

  std::vector<Class> classes_;
  std::vector<std::array<float, kBins + 1>> next_rates_;
  std::array<double, kBins + 1> start_ms_{};  // of the bins
  double counted_ = 0;                        // visits that the tables contain
  size_t propagated_ = 0, estimated_ = 0;     // classes done in the current pass
};

}  // namespace kvcachefs::evict

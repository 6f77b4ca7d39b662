// The default policy: evicts the leaf expected to bring the fewest hits for its space and time. It learns that online by kind, turn, size
// of the last extension, pause and age. See README.md.
#pragma once

#include <array>
#include <random>

#include "store/evict/ghosts.h"
#include "store/evict/reuse_model.h"
#include "store/evict/tree_policy.h"

namespace kvcachefs::evict {

class PrefixPolicy final : public TreePolicy {
 public:
  explicit PrefixPolicy(uint64_t seed) : random_(seed) {}

  std::string_view name() const override { return "prefix"; }
  void link_checked(bool held) override;
  PolicyCounts counts() const override;
  bool remembers(UnitKey evicted) const { return ghosts_.contains(evicted); }
  std::string check() const override;

 private:
  enum class Pass : uint8_t { kIdle, kNodes, kGhosts, kRates };
  struct Candidate {
    float score = 0;
    uint32_t age_ticks = 0;
    NodeId node = 0;
  };

  void on_hit(const Past& past, int64_t age_ms, float weight) override { model_.hit(past, age_ms, weight); }
  void on_gone(const Past& past, int64_t age_ms) override { model_.gone(past, age_ms); }
  std::optional<Ghost> take_ghost(UnitKey key) override { return ghosts_.take(key); }
  void put_ghost(UnitKey key, const Node& node) override;
  uint8_t stem_index(StemKey stem) override;
  void on_access() override;
  NodeId pick(const Ask& ask, Choice& choice) override;
  double worth(const Node& node, int64_t age_ms) const override;
  void save_tables(ByteWriter& out) const override;
  Status restore_tables(ByteReader& in) override;

  size_t ghost_limit() const;
  bool links_hold() const { return broken_links_ < 0.2 * (held_links_ + broken_links_); }
  float score(const Node& node, bool by_recency) const;
  void consider(NodeId id, const Ask& ask, bool by_recency);
  void draw(const Ask& ask, bool by_recency);
  NodeId best(const Ask& ask);

  ReuseModel model_;
  Ghosts ghosts_;
  std::mt19937_64 random_;

  std::array<StemKey, ReuseModel::kStems - 1> stems_{};
  size_t stems_known_ = 0;

  // Recent link checks, halved from 4000 on; it starts with the trust of 1000 held links.
  double held_links_ = 1000;
  double broken_links_ = 0;

  Pass pass_ = Pass::kIdle;
  size_t cursor_ = 0;           // the node or ghost that the pass visits next
  uint64_t next_pass_ = 64;     // visits

  std::vector<NodeId> pool_;            // the best leaves of earlier draws
  std::vector<Candidate> candidates_;   // of the current call
  size_t sweep_ = 0, swept_ = 0;        // when all drawn leaves are held: position and count of a walk over all leaves
};

}  // namespace kvcachefs::evict

// What one node said of the objects of others, and how far it has answered what others said of its own: the rows of its index
// that concern other nodes, in memory, by the object spoken of. Changed by whoever applies the node's batches, read by the view of
// names; not locked.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "store/base/records.h"
#include "store/base/result.h"
#include "store/index/index.h"
#include "store/index/rows.h"

namespace kvcachefs {

class Statements {
 public:
  using What = std::variant<UnnameRecord, AttributesRecord>;

  // All that the index has committed. In place of what was known.
  Status load(const Index& index);
  // A batch of the node's journals that ends at `after`.
  void apply(const Batch& batch, JournalPosition after);

  // Up to where this node has answered what `node` said.
  JournalPosition seen(std::string_view node) const;

  // The rest is of what was said of an object of `node` behind `answered`, which is the position that `node` has seen.
  bool speaks_of(std::string_view node, JournalPosition answered) const;
  // When it was said that this binding is gone, ascending.
  std::vector<StatementKey> removals(std::string_view node, JournalPosition answered, ObjectId parent, std::string_view name,
                                     ObjectId child) const;
  // The last that were given to the object; null: none.
  const Attributes* attributes(std::string_view node, JournalPosition answered, ObjectId id) const;
  // In the order in which it was said, until `visit` is false.
  void for_each(std::string_view node, JournalPosition answered, const std::function<bool(const StatementKey&, const What&)>& visit) const;

  // What was said of `node` up to there is answered, and everybody who asks here knows it.
  void forget(std::string_view node, JournalPosition answered);
  size_t count() const;

 private:
  struct OfNode {
    std::map<StatementKey, What> said;
    std::unordered_multimap<ObjectId, StatementKey> by_object;
  };
  void take(const StatementRecord& record, const StatementKey& key);
  const OfNode* of(std::string_view node) const;

  std::map<std::string, OfNode, std::less<>> nodes_;
  std::map<std::string, JournalPosition, std::less<>> seen_;
};

}  // namespace kvcachefs

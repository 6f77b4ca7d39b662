// One node's statements about objects of others, and how far it has answered the statements of others about its own: the rows of its index
// that concern other nodes, in memory, by object. The code that applies the node's batches changes it, the view of names reads it; it has no lock
// of its own.
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

  // Loads all that the index has committed, in place of the content so far.
  Status load(const Index& index);
  // Applies a batch of the node's journals that ends at `after`.
  void apply(const Batch& batch, JournalPosition after);

  // The position up to which this node has answered the statements of `node`.
  JournalPosition seen(std::string_view node) const;

  // The functions below consider statements about objects of `node` behind `answered`, the position up to which `node` has answered.
  bool speaks_of(std::string_view node, JournalPosition answered) const;
  bool has_answered(std::string_view node, JournalPosition answered) const;  // whether there are any up to there, too
  // The keys of the statements that this binding is gone, ascending.
  std::vector<StatementKey> removals(std::string_view node, JournalPosition answered, ObjectId parent, std::string_view name,
                                     ObjectId child) const;
  // The attributes last given to the object; null: none.
  const Attributes* attributes(std::string_view node, JournalPosition answered, ObjectId id) const;
  // Visits in the order of the statements, until `visit` returns false.
  void for_each(std::string_view node, JournalPosition answered, const std::function<bool(const StatementKey&, const What&)>& visit) const;

  // Drops the statements about `node` up to `answered`: they are answered, and every reader of this knows the answer.
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

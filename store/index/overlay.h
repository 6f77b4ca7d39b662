// Rows newer than those in LMDB: plain containers; their owner guards them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "store/base/records.h"
#include "store/index/index.h"
#include "store/index/name_rows.h"
#include "store/index/rows.h"

namespace kvcachefs {

// Whole rows; each replaces the row of the same key in the layers below. A removed row is kept as a marker.
struct Layer {
  std::unordered_map<ObjectId, std::shared_ptr<const ObjectRow>> objects;            // removed: null
  NameRows names;                                                                    // removed: empty
  std::map<ExtentId, ExtentUsage> extents;                                           // removed: no bodies
  std::unordered_map<ObjectId, std::shared_ptr<const SuccessorsRecord>> successors;  // removed: null
  std::map<uint32_t, EpochHighs> epochs;
  std::map<StatementKey, std::shared_ptr<const StatementRecord>> statements;
  std::map<std::string, JournalPosition> seen;

  uint64_t rows() const { return objects.size() + names.size() + extents.size() + successors.size() + statements.size(); }
  bool empty() const { return rows() == 0 && epochs.empty() && seen.empty(); }

  // `newer` wins.
  void absorb(Layer&& newer) {
    absorb_rows(objects, newer.objects);
    names.absorb(std::move(newer.names));
    absorb_rows(extents, newer.extents);
    absorb_rows(successors, newer.successors);
    absorb_rows(epochs, newer.epochs);
    absorb_rows(statements, newer.statements);
    absorb_rows(seen, newer.seen);
  }

 private:
  // Moves nodes, so that nothing is copied and nothing allocated.
  template <class Map>
  static void absorb_rows(Map& into, Map& newer) {
    if (into.empty()) {
      into.swap(newer);
      return;
    }
    while (!newer.empty()) {
      auto result = into.insert(newer.extract(newer.begin()));
      if (!result.inserted) result.position->second = std::move(result.node.mapped());
    }
  }
};

}  // namespace kvcachefs

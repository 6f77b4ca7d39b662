// A tree beside one peer that has only an index: for names of peers, and names of this node that those hide.
#pragma once

#include <sys/stat.h>

#include <memory>
#include <string>
#include <utility>

#include "store/index/testing/fake_index.h"
#include "store/tree/testing/tree_parts.h"

namespace kvcachefs::testing {

struct TreeBesidePeer : TreeParts {
  explicit TreeBesidePeer(const Clock& clock, PeerLeases* leases = nullptr) : tree(of(own, clock, true, "this", true, leases)) {
    for (FakeIndex* index : {&own, theirs.get()}) {
      ObjectRecord root;
      root.id = kRootId;
      root.attributes.mode = S_IFDIR | 0755;
      root.nlink = 2;
      index->put_object(std::move(root));
    }
    tree.write().view().set_peers({Part{1, "peer", theirs, std::make_shared<Statements>()}});
  }
  ~TreeBesidePeer() { tree.clear(); }

  // Puts a packed file of 1,000 bytes, as its node has it.
  static void put(FakeIndex& index, uint64_t number, const std::string& name, int64_t btime_ns = 0) {
    ObjectRecord record;
    record.id = ObjectId::make(0, 1, number);
    record.attributes.mode = S_IFREG | 0644;
    record.attributes.btime_ns = btime_ns;
    record.body.size_bytes = 1000;
    record.body.place = {PlaceKind::kPacked, {1, 1}, 4096 * number, 1000};
    record.nlink = 1;
    const ObjectId id = record.id;
    index.put_object(std::move(record));
    index.put_name(kRootId, name, id, S_IFREG);
  }
  // What clients see; invalid: nothing.
  ObjectId found(const std::string& name) const {
    const auto entry = tree.read().find_name(kRootId, name);
    return entry && *entry ? (*entry)->child : ObjectId{};
  }

  FakeIndex own;
  const std::shared_ptr<FakeIndex> theirs = std::make_shared<FakeIndex>();
  Tree tree;
};

}  // namespace kvcachefs::testing

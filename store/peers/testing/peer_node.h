// For tests: a node of a volume, with a journal of its own, that follows the others as a daemon would. All nodes share a clock.
#pragma once

#include <sys/stat.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/index/index_test_util.h"
#include "store/journal/test_records.h"
#include "store/peers/peers.h"
#include "store/peers/testing/memory_part.h"

namespace kvcachefs {

using PathNames = std::map<std::string, uint64_t>;  // path -> object, as it is seen

inline PutRecord put_of(ObjectId which, uint32_t mode) {
  PutRecord put;
  put.object.id = which;
  put.object.attributes.mode = mode;
  return put;
}

inline FileIdentity test_identity_of(const std::string& node, uint32_t epoch) {
  FileIdentity identity = test_identity(epoch);
  identity.node = node;
  return identity;
}

class PeerNode {
 public:
  struct Where {
    std::shared_ptr<Volume> disk;
    std::shared_ptr<Volume> volume;  // the same volume as nodes that follow others see it: with faults
    ManualClock& clock;
    std::string directory;  // local; of all nodes
  };
  // `before`: an earlier life of the node.
  PeerNode(Where where, std::string name, uint32_t epoch, const PeerNode* before = nullptr, JournalForm form = JournalForm::kPacked)
      : where_(std::move(where)), name_(std::move(name)), identity_(test_identity_of(name_, epoch)) {
    EXPECT_TRUE(where_.disk->make_directories(epoch_directory(name_, epoch)));
    lock_ = where_.disk->lock("nodes/" + name_ + "/LOCK").value_or(nullptr);  // null: a test has two lives at once
    auto made = JournalWriter::create(where_.disk, identity_, "boot-1", form == JournalForm::kBlocks ? 64 * 1024 : 2000, form);
    EXPECT_TRUE(made) << made.error().message;
    journal_ = std::move(*made);
    own_.index->state = &state_;
    if (before != nullptr) {
      state_ = before->state_;
      *own_.statements = *before->own_.statements;
    } else {
      say({put_of(kRootId, S_IFDIR | 0755)});
    }
  }

  // --- what its clients do ---
  JournalPosition say(std::vector<Record> records) {
    const Batch batch{Stamp{++stamp_ + 1000 * identity_.epoch}, std::move(records)};
    const auto after = journal_->append(batch);
    EXPECT_TRUE(after) << after.error().message;
    EXPECT_TRUE(view_.change(0, batch, [&]() -> Status {
      KVC_TRY(state_.apply(batch, *after));
      own_.statements->apply(batch, *after);
      return {};
    }));
    return *after;
  }
  JournalPosition make_file(const std::string& name) { return make(kRootId, name, S_IFREG | 0644).second; }
  ObjectId make_directory(const std::string& name) { return make(kRootId, name, S_IFDIR | 0755).first; }
  std::pair<ObjectId, JournalPosition> make(ObjectId directory, const std::string& name, uint32_t mode) {
    const ObjectId which = ObjectId::make(0, identity_.epoch, next_number_++);
    return {which, say({put_of(which, mode), NameRecord{directory, name, which}})};
  }
  void make_checkpoint(uint64_t seq) {
    auto made = CheckpointWriter::create(where_.disk, identity_, seq, {journal_->position(), Stamp{stamp_ + 1000 * identity_.epoch}, 1'000'000});
    ASSERT_TRUE(made) << made.error().message;
    for (const auto& [which, row] : state_.objects) EXPECT_TRUE((*made)->add(PutRecord{row->object}));
    for (const auto& [key, row] : state_.names)
      for (const NameEntry& entry : row) EXPECT_TRUE((*made)->add(NameRecord{key.parent, entry.name, entry.child}));
    ASSERT_TRUE((*made)->finish());
    checkpoint_ = HeadCheckpoint{identity_.epoch, seq};
  }
  JournalPosition end() const { return journal_->position(); }

  // --- what its daemon does ---
  void follow() {
    peers_ = std::make_unique<Peers>(Peers::Parts{
        .volume = where_.volume,
        .own = identity_,
        .clock = where_.clock,
        .directory = where_.directory + "/" + name_,
        .view = view_,
        .own_head =
            [this] {
              Head head;
              head.journal_end = journal_->position();
              head.checkpoint = checkpoint_;
              head.physical_bytes = physical_bytes;
              head.capacity_bytes = 100 << 20;
              return head;
            },
        .alone = [this](const std::function<Status()>& work) { return refuses ? fail(Code::kBusy, "not now") : work(); },
        .applied =
            [this](uint32_t ordinal, const PeerBatch&) {
              ++applied[ordinal];
              applied_up_to = peers_->position_of(ordinal);
            },
        .replaced =
            [this](uint32_t ordinal) {
              ++replaced[ordinal];
              if (on_replaced) on_replaced(ordinal);
            },
        .pinned = [this](uint32_t) { return pinned; },
        .own_statements = own_.statements,
        .requests = [this] { return requests; },
        .indexes_grow =
            [this](uint64_t growth_bytes) {
              index_growth_bytes = growth_bytes;
              IndexRoom room{std::min(growth_bytes, claimed_for_indexes_bytes), capacity_for_indexes_bytes, is_short, may_get_more};
              room.reserve = [this](uint64_t bytes) { return bytes <= room_for_copies_bytes; };
              room.release = [](uint64_t) {};
              return room;
            },
        .claim_user = claim_user,
    });
  }
  Peers& peers() {
    if (!peers_) follow();
    return *peers_;
  }
  void die() {
    view_.set_peers({});
    peers_.reset();
    lock_.reset();
  }
  // Runs rounds until nothing is due now.
  void round() {
    int rounds = 0;
    while (peers().round() <= where_.clock.monotonic_ns()) ASSERT_LT(++rounds, 1000);
  }
  std::optional<PeerStatus> status_of(const std::string& node) {
    for (const PeerStatus& each : peers().status())
      if (each.node == node) return each;
    return std::nullopt;
  }
  PathNames names() const {
    PathNames names;
    add_names(kRootId, "", names);
    return names;
  }
  std::set<std::string> paths() const {
    std::set<std::string> paths;
    for (const auto& [path, child] : names()) paths.insert(path);
    return paths;
  }
  const FileIdentity& identity() const { return identity_; }
  NameView& view() { return view_; }

  bool refuses = false;
  uint64_t requests = 0, physical_bytes = 4096;
  ClaimUser* claim_user = nullptr;  // set before its first round
  uint64_t index_growth_bytes = 0;  // as last given to indexes_grow
  uint64_t claimed_for_indexes_bytes = UINT64_MAX, capacity_for_indexes_bytes = UINT64_MAX;
  uint64_t room_for_copies_bytes = UINT64_MAX;  // of its claim, beside that
  bool is_short = false, may_get_more = true;
  std::map<uint32_t, int> applied, replaced;  // number of calls, by ordinal
  JournalPosition applied_up_to;
  std::function<void(uint32_t)> on_replaced;
  std::vector<ObjectId> pinned;

 private:
  void add_names(ObjectId directory, const std::string& path, PathNames& names) const {
    const auto entries = view_.list(directory, 0, 100'000);
    ASSERT_TRUE(entries) << entries.error().message;
    for (const NameEntry& entry : *entries) {
      const auto found = view_.find_name(directory, entry.name);
      ASSERT_TRUE(found && *found);
      names[path + "/" + entry.name] = (*found)->child.value;
      if (S_ISDIR(entry.type_bits)) add_names((*found)->child, path + "/" + entry.name, names);
    }
  }

  const Where where_;
  const std::string name_;
  const FileIdentity identity_;
  std::unique_ptr<VolumeLock> lock_;
  std::unique_ptr<JournalWriter> journal_;
  std::optional<HeadCheckpoint> checkpoint_;
  MemoryPart state_;
  MemoryPeer own_;
  DirectoryClasses classes_;
  NameView view_{own_.part(0, name_), classes_};
  uint64_t stamp_ = 0, next_number_ = 5;
  std::unique_ptr<Peers> peers_;
};

}  // namespace kvcachefs

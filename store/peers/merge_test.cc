// The tree that a node shows depends on how far it has read each journal, and on nothing else: not on the order in which it read them, not
// on where it began with a checkpoint. Some 10^5 orders; with KVCACHEFS_LONG=1 10^6.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <sys/stat.h>

#include <gtest/gtest.h>

#include "store/base/sanitized.h"
#include "store/peers/testing/history.h"
#include "store/peers/testing/reference.h"

namespace kvcachefs {
namespace merge_test {

using Tree = std::map<std::string, std::string>;

bool is_long() { return std::getenv("KVCACHEFS_LONG") != nullptr; }

std::string text_of(const Tree& tree) {
  std::string text;
  for (const auto& [path, line] : tree) text += path + " " + line + "\n";
  return text;
}

// The reference's tree for so many batches of each node; computed once.
class Expected {
 public:
  explicit Expected(const History& history) : history_(history) {}
  const Tree& at(const std::vector<size_t>& read) {
    const auto found = known_.find(read);
    if (found != known_.end()) return found->second;
    Reference reference;
    for (size_t node = 0; node < read.size(); ++node)
      reference.add(history_.nodes()[node]->name, history_.nodes()[node]->log, read[node]);
    return known_.emplace(read, reference.tree()).first->second;
  }

 private:
  const History& history_;
  std::map<std::vector<size_t>, Tree> known_;
};

// A node that reads the journals of all nodes in some order, including its own.
class Observer {
 public:
  // `own`: which node it is. Ordinals follow the order of `order`.
  Observer(const History& history, size_t own, const std::vector<size_t>& order, size_t most_classes)
      : history_(history), read_(history.nodes().size(), 0), peers_(history.nodes().size()), classes_(most_classes) {
    uint32_t ordinal = 0;
    for (const size_t node : order) peers_[node].index->state = &history.nodes()[node]->states[0];
    for (size_t node = 0; node < peers_.size(); ++node) parts_.push_back(peers_[node].part(0, history.nodes()[node]->name));
    for (const size_t node : order)
      if (node != own) parts_[node].ordinal = ++ordinal;
    view_.emplace(parts_[own], classes_);
    std::vector<Part> others;
    for (const size_t node : order)
      if (node != own) others.push_back(parts_[node]);
    view_->set_peers(std::move(others));
  }

  void read(size_t node) {
    const History::Node& its = *history_.nodes()[node];
    const auto& [batch, after] = its.log[read_[node]];
    const Status applied = view_->change(parts_[node].ordinal, batch, [&]() -> Status {
      peers_[node].index->state = &its.states[++read_[node]];
      peers_[node].statements->apply(batch, after);
      return {};
    });
    EXPECT_TRUE(applied) << applied.error().message;
  }

  // The checkpoint that the node made after so many of its batches: without statements that it knew to be answered.
  void load(size_t node, size_t batches) {
    const History::Node& its = *history_.nodes()[node];
    read_[node] = batches;
    peers_[node].index->state = &its.states[batches];
    *peers_[node].statements = {};
    for (size_t i = 0; i < batches; ++i) peers_[node].statements->apply(its.log[i].first, its.log[i].second);
    for (size_t other = 0; other < read_.size(); ++other) {
      if (other == node) continue;
      Statements of_other;
      const size_t had_read = its.read_at[batches][other];
      for (size_t i = 0; i < had_read; ++i) of_other.apply(history_.nodes()[other]->log[i].first, history_.nodes()[other]->log[i].second);
      peers_[node].statements->forget(history_.nodes()[other]->name, of_other.seen(its.name));
      needed_.emplace_back(other, had_read);
    }
    std::vector<Part> others = parts_;
    std::erase_if(others, [](const Part& part) { return part.ordinal == 0; });
    view_->set_peers(std::move(others));  // as after every load
  }

  // Whether it has read all batches that were known when the checkpoints were made.
  bool knows_enough() const {
    return std::ranges::all_of(needed_, [this](const auto& each) { return read_[each.first] >= each.second; });
  }
  const std::vector<size_t>& how_far() const { return read_; }
  const NameView& view() const { return *view_; }
  const std::vector<Part>& parts() const { return parts_; }
  Tree tree(std::string& problem) const { return tree_of(*view_, parts_, problem); }

 private:
  const History& history_;
  std::vector<size_t> read_;
  std::vector<std::pair<size_t, size_t>> needed_;  // node, batches
  std::vector<MemoryPeer> peers_;
  std::vector<Part> parts_;
  DirectoryClasses classes_;
  std::optional<NameView> view_;
};

class MergeTest : public ::testing::Test {
 protected:
  // Whether it was as expected.
  bool expect_same(const Observer& observer, Expected& expected, uint64_t seed) {
    std::string problem;
    const Tree seen = observer.tree(problem);
    const Tree& wanted = expected.at(observer.how_far());
    if (seen == wanted && problem.empty()) return true;
    ADD_FAILURE() << "seed " << seed << "\n" << problem << "expected\n" << text_of(wanted) << "seen\n" << text_of(seen);
    return false;
  }
  std::vector<size_t> lengths(const History& history) {
    std::vector<size_t> lengths;
    for (const auto& node : history.nodes()) lengths.push_back(node->log.size());
    return lengths;
  }
  uint64_t orders_ = 0;
};

TEST_F(MergeTest, EachNodeSeesWhatItHasRead) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const History history(seed, {.nodes = 3 + seed % 3, .steps = 60, .settle = seed % 2 == 0});
    ASSERT_EQ(history.problem(), "") << "seed " << seed;
    for (const auto& node : history.nodes()) ASSERT_EQ(history.difference(*node), "") << "seed " << seed;
  }
}

// When all is read and answered nothing is hidden any more, and no node has a file that another removed.
TEST_F(MergeTest, WhatIsAnsweredIsGoneFromItsNode) {
  size_t removed = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    const History history(seed, {.nodes = 3, .steps = 60, .renames = false});
    for (const auto& by : history.nodes())
      for (const auto& of : history.nodes()) {
        if (by == of) continue;
        const Part &said = by->parts[static_cast<size_t>(by->name.back() - 'a')], &answered = of->parts[static_cast<size_t>(of->name.back() - 'a')];
        EXPECT_FALSE(said.statements->speaks_of(of->name, answered.statements->seen(by->name))) << "seed " << seed;
        said.statements->for_each(of->name, {}, [&](const StatementKey&, const Statements::What& what) {
          const auto* gone = std::get_if<UnnameRecord>(&what);
          const auto entry = gone == nullptr ? std::nullopt : answered.index->find_name(gone->parent, gone->name).value();
          EXPECT_FALSE(entry && entry->child == gone->child && !S_ISDIR(entry->type_bits)) << "seed " << seed << " " << gone->name;
          removed += gone != nullptr;
          return true;
        });
      }
  }
  EXPECT_GT(removed, 500u);
}

// All orders of journals with a few batches.
TEST_F(MergeTest, EveryOrderOfSmallJournals) {
  const uint64_t wanted = histories_here(is_long() ? 400'000 : 40'000);
  for (uint64_t seed = 1; orders_ < wanted; ++seed) {
    const History history(seed, {.nodes = 3, .steps = 9, .settle = seed % 2 == 0, .most_batches = 4});
    ASSERT_EQ(history.problem(), "") << "seed " << seed;
    const auto ends = lengths(history);
    if (history.batches() < 9 || history.batches() > 11) continue;
    Expected expected(history);
    std::vector<size_t> order;  // of nodes
    for (size_t node = 0; node < ends.size(); ++node) order.insert(order.end(), ends[node], node);
    const size_t own = seed % 3;
    do {
      Observer observer(history, own, {seed % 3, (seed + 1) % 3, (seed + 2) % 3}, 1000);
      for (size_t i = 0; i < order.size(); ++i) {
        observer.read(order[i]);
        // Compare at other points as well, so that something is remembered when the next batch comes.
        const bool looks = (i + orders_) % 5 == 0 || i + 1 == order.size();
        ASSERT_TRUE(!looks || expect_same(observer, expected, seed));
      }
      ++orders_;
    } while (std::ranges::next_permutation(order).found);
  }
}

// Random orders of longer journals; if a journal is begun from a checkpoint, batches before that are not read.
TEST_F(MergeTest, RandomOrdersOfLongJournals) {
  const uint64_t wanted = histories_here(is_long() ? 600'000 : 60'000);
  for (uint64_t seed = 1; orders_ < wanted; ++seed) {
    const size_t nodes = 3 + seed % 3;
    const History history(seed, {.nodes = nodes, .steps = 50, .renames = seed % 4 != 0, .settle = seed % 3 != 0});
    ASSERT_EQ(history.problem(), "") << "seed " << seed;
    const auto ends = lengths(history);
    Expected expected(history);
    std::mt19937_64 random(seed);
    for (int round = 0; round < 200; ++round, ++orders_) {
      std::vector<size_t> order(nodes);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::shuffle(order, random);
      Observer observer(history, static_cast<size_t>(random() % nodes), order, 1000);
      std::vector<size_t> left;
      for (size_t node = 0; node < nodes; ++node) left.insert(left.end(), ends[node], node);
      std::ranges::shuffle(left, random);
      for (size_t i = 0; i < left.size(); ++i) {
        const size_t node = left[i];
        if (observer.how_far()[node] == ends[node]) continue;
        if (random() % 40 == 0) {
          observer.load(node, observer.how_far()[node] + 1 + random() % (ends[node] - observer.how_far()[node]));
        } else {
          observer.read(node);
        }
        const bool look = random() % left.size() == 0 && observer.knows_enough();
        ASSERT_TRUE(!look || expect_same(observer, expected, seed));
      }
      for (size_t node = 0; node < nodes; ++node)
        while (observer.how_far()[node] < ends[node]) observer.read(node);
      ASSERT_TRUE(expect_same(observer, expected, seed));
    }
  }
}

// The names that no statement hides, whether clients see them or another file of that name; and whether a name is that of a directory in which its
// node has names.
using Live = std::map<std::string, bool>;

void add_live(const Observer& observer, ObjectId directory, const std::string& path, Live& live) {
  const NameView& view = observer.view();
  const auto names = view.list(directory, 0, 1000);
  for (const NameEntry& entry : names.value()) {
    const auto bindings = view.bindings(directory, entry.name);
    for (const NameView::Binding& binding : bindings.value()) {
      if (binding.hidden) continue;
      const auto part = std::ranges::find(observer.parts(), binding.directory.node_ordinal(), &Part::ordinal);
      const bool has_names = S_ISDIR(binding.entry.type_bits) && !part->index->list(id_there(binding.entry.child), 0, 1).value().empty();
      live[path + "/" + entry.name + " " + part->node + std::to_string(id_there(binding.entry.child).value)] = has_names;
    }
    if (S_ISDIR(entry.type_bits)) add_live(observer, view.find_name(directory, entry.name).value()->child, path + "/" + entry.name, live);
  }
}

// A removed name stays away, whatever comes when: there is no gap between a statement and its answer. Except a directory in which
// its node has made a name meanwhile.
std::string resurrection(const History& history, uint64_t seed) {
  std::mt19937_64 random(seed);
  const size_t nodes = history.nodes().size();
  std::vector<size_t> order(nodes);
  std::iota(order.begin(), order.end(), 0);
  Observer observer(history, 0, order, 1000);
  std::vector<size_t> left;
  for (size_t node = 0; node < nodes; ++node) left.insert(left.end(), history.nodes()[node]->log.size(), node);
  std::ranges::shuffle(left, random);
  std::set<std::string> gone;
  Live there;
  for (const size_t node : left) {
    observer.read(node);
    Live now;
    add_live(observer, kRootId, "", now);
    for (const auto& [name, has_names] : there)
      if (!now.contains(name)) gone.insert(name);
    for (const auto& [name, has_names] : now)
      if (gone.erase(name) > 0 && !has_names) return name;
    there = std::move(now);
  }
  return {};
}

TEST_F(MergeTest, WhatIsGoneStaysGone) {
  size_t found_planted = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    const HistoryOptions options{.nodes = 3, .steps = 40, .renames = false};  // a rename may bring a name back
    EXPECT_EQ(resurrection(History(seed, options), seed), "") << "seed " << seed;
    found_planted += resurrection(History(seed, options, History::Bug::kSeenBeforeUnname), seed) != "";
  }
  EXPECT_GT(found_planted, 10u) << "the test does not find an answer that is in two batches";
}

}  // namespace merge_test
}  // namespace kvcachefs

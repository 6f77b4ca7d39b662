// For tests: the journals of several nodes that share a volume, each having read some of what the others did. Random; levels, statements and
// answers come from the code of this room.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "store/peers/testing/memory_part.h"
#include "store/peers/view.h"

namespace kvcachefs {

struct HistoryOptions {
  size_t nodes = 3;
  size_t steps = 40;             // reads and changes, of all nodes together
  bool renames = true;
  bool settle = true;            // at the end all nodes have read and answered everything
  size_t most_batches = SIZE_MAX;  // of each node
};

class History {
 public:
  // Bugs planted on purpose, to test the test.
  enum class Bug : uint8_t { kNone, kSeenBeforeUnname, kStatementsNotSaid };
  History(uint64_t seed, HistoryOptions options, Bug bug = Bug::kNone);

  struct Node {
    std::string name;
    std::vector<std::pair<Batch, JournalPosition>> log;
    std::vector<MemoryPart> states;     // before the first batch, after it, ...
    std::vector<std::vector<size_t>> read_at;  // for each of these states, how many batches of each node this one had read
    // The others as this node sees them:
    std::vector<size_t> read;
    std::vector<MemoryPeer> peers;      // includes its own part
    std::unique_ptr<DirectoryClasses> classes;
    std::unique_ptr<NameView> view;
    std::vector<Part> parts;
    int64_t clock_ns = 0;
    uint64_t next_number = 10;
  };
  const std::vector<std::unique_ptr<Node>>& nodes() const { return nodes_; }
  size_t batches() const;
  // What went wrong while it was made; empty: nothing.
  const std::string& problem() const { return problem_; }
  // Compares the node's view with the reference; may be called at any time.
  std::string difference(const Node& node) const;

 private:
  using Records = std::vector<Record>;
  void step();
  void read(size_t reader, size_t peer, size_t most);
  bool answer_all(size_t at);
  void settle();
  void change(size_t at);
  void make(Node& node, ObjectId directory, const std::string& name, bool is_directory);
  void remove(Node& node, ObjectId directory, const NameEntry& entry);
  void rename(Node& node, ObjectId directory, const NameEntry& entry);
  void give_attributes(Node& node, const NameEntry& entry);
  void drop_loser(Node& node, ObjectId directory, const NameEntry& entry);
  ObjectId own_directory(Node& node, ObjectId directory, Records& records);
  Attributes fresh(Node& node, uint32_t mode);
  void journal(size_t at, Records records);
  void journal(Node& node, Records records);
  ObjectId some_directory(Node& node);
  template <class T>
  T sure(Result<T> result);
  size_t below(size_t end) { return end == 0 ? 0 : static_cast<size_t>(random_() % end); }

  std::mt19937_64 random_;
  const HistoryOptions options_;
  const Bug bug_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::string problem_;
};

// The tree of a view, in the form of Reference::tree(); compares each listing with lookups.
std::map<std::string, std::string> tree_of(const NameView& view, const std::vector<Part>& parts, std::string& problem);

}  // namespace kvcachefs

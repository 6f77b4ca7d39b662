// For tests: what several nodes journal that share a volume, each having read some of what the others did. Random, and by the code of
// this room where it decides what is journaled (levels, statements, answers).
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
  size_t steps = 40;             // reads and changes, all nodes together
  bool renames = true;
  bool settle = true;            // in the end all have read and answered everything
  size_t most_batches = SIZE_MAX;  // of a node
};

class History {
 public:
  // Planted bugs, for the test of the test.
  enum class Bug : uint8_t { kNone, kSeenBeforeUnname, kStatementsNotSaid };
  History(uint64_t seed, HistoryOptions options, Bug bug = Bug::kNone);

  struct Node {
    std::string name;
    std::vector<std::pair<Batch, JournalPosition>> log;
    std::vector<MemoryPart> states;     // before the first batch, behind it, ...
    std::vector<std::vector<size_t>> read_at;  // as many batches of each node it had read with each of these states
    // As it sees the others:
    std::vector<size_t> read;
    std::vector<MemoryPeer> peers;      // its own among them
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
  // Each node's view against the reference, at any time.
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

// The tree of a view, as Reference::tree() has it; each listing is compared with lookups.
std::map<std::string, std::string> tree_of(const NameView& view, const std::vector<Part>& parts, std::string& problem);

}  // namespace kvcachefs

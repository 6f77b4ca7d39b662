// For tests: the rules of store/FORMAT.md, "Several nodes", written once more and as plainly as possible: from records alone, with
// nothing kept between two calls.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "store/base/records.h"

namespace kvcachefs {

class Reference {
 public:
  // Adds the first `count` of a node's batches, each with its end.
  void add(const std::string& node, const std::vector<std::pair<Batch, JournalPosition>>& batches, size_t count);
  // One line for each path: what clients see there.
  std::map<std::string, std::string> tree() const;

 private:
  struct Node {
    std::map<ObjectId, Attributes> objects;
    std::map<std::pair<ObjectId, std::string>, ObjectId> names;
    struct Said {
      JournalPosition at;
      StatementRecord record;
    };
    std::vector<Said> said;
    std::map<std::string, JournalPosition> seen;
  };
  using Names = std::map<std::pair<ObjectId, std::string>, ObjectId>;
  using Member = std::pair<std::string, ObjectId>;  // node, directory

  static void apply(Node& node, const Batch& batch, JournalPosition after);
  static bool is_directory(const Node& node, ObjectId id);
  Names left_of(const std::string& node) const;
  std::pair<Attributes, std::string> attributes(const std::string& node, ObjectId id) const;
  void walk(const std::string& path, const std::vector<Member>& members, const std::map<std::string, Names>& left,
            std::map<std::string, std::string>& tree) const;

  std::map<std::string, Node> nodes_;
};

// The form of a line.
std::string directory_line(const Attributes& attributes, std::vector<std::pair<std::string, ObjectId>> members);
std::string file_line(const std::string& node, ObjectId id, const Attributes& attributes);

}  // namespace kvcachefs

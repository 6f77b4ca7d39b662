// What clients of several nodes may find under each name: every change that a node made since all were last seen to agree, and which of them still
// counts. Shares no code with the store.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvcachefs::testing {

// A body tells by its bytes which one it is. 0 stands for no file, kEmpty for one without bytes, kTorn for what nobody ever wrote.
inline constexpr int kAbsent = 0, kEmpty = -1, kTorn = -2;
std::string make_body(int body, size_t bytes);
int body_of(std::string_view bytes);

class Names {
 public:
  // Node `node` is about to put `body` under `name` (kAbsent: to remove what is there). It may have happened until settle() tells.
  struct Change {
    std::string name;
    size_t at = 0;
  };
  // `moves`: it is renamed to another name. Then what another node has under this one may come up, though it was not seen since that node's
  // file was replaced by one of which it had not heard; a removal takes that, too.
  // `blind`: the node may not have read what others have there. That stays then, and the last born is seen, by clocks that are wrong.
  Change begin(unsigned node, const std::string& name, int body, bool blind, bool moves = false);
  enum class Outcome : uint8_t { kDone, kNotDone, kUnknown };
  // `safe`: it also survives a crash of that node.
  void settle(const Change& change, Outcome outcome, bool safe);
  void all_safe(unsigned node);  // what it has done so far
  // What others had made safe before now() was read by this node; 0: it may read less again.
  uint64_t now() { return ++moment_; }
  void has_read(unsigned node, uint64_t until) { read_until_[node] = until; }
  void crashed(unsigned node);   // what is not safe may have been lost
  void server_lost_writes();     // everything since agreed() may have been lost

  // Empty: it is fine that a client of `node` finds this.
  std::string judge(unsigned node, const std::string& name, int body) const;
  // The same of what all nodes agree on in the end.
  std::string judge_agreed(const std::string& name, int body) const;
  // All agree on this; nothing else counts from now on.
  void agreed(const std::map<std::string, int>& tree);
  std::set<std::string> known() const;

 private:
  struct Made {
    unsigned node;
    int body;
    Outcome outcome;
    bool safe;
    bool blind, moves;
    uint64_t safe_since = 0;
  };
  struct Name {
    int before = kAbsent;  // as agreed
    std::set<int> hidden;  // what lost against that
    std::vector<Made> made;
  };
  static std::set<int> left_by(const Name& name, unsigned node, bool& certain, uint64_t read_until = UINT64_MAX);
  static void add_hidden(const Name& name, std::set<int>& may);
  static std::string describe(const Name& name);
  std::map<std::string, Name> names_;
  std::map<unsigned, uint64_t> read_until_;
  uint64_t moment_ = 0;
};

}  // namespace kvcachefs::testing

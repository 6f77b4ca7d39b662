// What a client may find under each name after a crash, from what it was told before: every state a name was ever put in, and
// the oldest one that an acknowledgement still allows, for each kind of crash.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcachefs::testing {

enum class Crash : size_t { kProcess = 0, kPower = 1 };  // kill -9 of the daemon; power loss of the machine

using Content = std::optional<std::string>;  // nullopt: the name is absent
using Tree = std::map<std::string, std::string>;

class Reference {
 public:
  // From now on `name` may be in this state, also after a crash; it is what the running store shows.
  void change(const std::string& name, Content content);
  // One change of two names: `from` goes, `to` gets its content. After a crash at least one of them has it.
  void move(const std::string& from, const std::string& to);
  // The present state of `name` survives this kind of crash (power loss includes the death of the process).
  void acknowledge(const std::string& name, Crash survives);
  void acknowledge_all(Crash survives);
  // The running store was seen to hold this, after a call of unknown outcome.
  void found(const std::string& name, Content content);

  const Content& now(const std::string& name) const;
  bool unlinked(const std::string& name) const;    // absent, and not because it was renamed
  std::vector<std::string> names() const;          // ever used
  std::vector<std::string> present_names() const;  // there now
  size_t acknowledgements() const { return acknowledgements_; }  // of bodies, ever

  // One line for each violation; `crash` nullopt: the running store, which must show the present states exactly.
  std::vector<std::string> judge(const Tree& observed, std::optional<Crash> crash) const;
  // After a recovery: what was found is the present state, and lives through the next death of the daemon.
  void go_on_from(const Tree& observed);

 private:
  struct History {
    std::vector<Content> states{std::nullopt};
    std::array<size_t, 2> oldest{0, 0};  // by Crash: earlier states must not come back
  };
  struct Move {
    std::string from, to;
    size_t from_index, to_index;
  };
  std::string judge_name(const std::string& name, const Content& content, size_t oldest) const;
  bool lost_in_move(const Move& move, const Tree& observed, size_t kind) const;

  std::map<std::string, History> histories_;
  std::vector<Move> moves_;
  size_t acknowledgements_ = 0;
};

std::string describe(const Content& content);

}  // namespace kvcachefs::testing

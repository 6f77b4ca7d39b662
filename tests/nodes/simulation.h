// Several nodes on one simulated network volume: what their clients do, when their daemons work, how time passes and what fails is decided by one
// seed. Between any two requests of one node to the server others may go on, which is also how a node waits that is cut off. One thread, so a
// seed repeats exactly.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/nodes/names.h"
#include "tests/nodes/node.h"

namespace kvcachefs::testing {

struct Plan {
  uint64_t seed = 1;
  unsigned nodes = 3;  // 2 to 5
  int steps = 400;     // between two comparisons
  int comparisons = 3;
  bool faults = true;
  bool takeovers = false;  // a node is begun anew on another machine, while the first one only stands still
  SimServerOptions server;
  std::function<std::shared_ptr<Volume>(unsigned node, std::shared_ptr<Volume>)> wrap;  // for planted faults of the program
};
Plan plan_of(uint64_t seed);

class Simulation {
 public:
  explicit Simulation(Plan plan);
  ~Simulation();
  // Until something is wrong, which is returned (empty: nothing is).
  std::string run();
  uint64_t steps() const { return steps_; }
  const std::map<std::string, uint64_t>& counts() const { return counts_; }

 private:
  struct Seat {
    std::unique_ptr<Node> node;
    int busy = 0;            // it is in a call, in which others go on
    bool current = false;    // it has read all that there was, and was not held up since
    int64_t seen_ns = 0;     // when it last worked
    int64_t held_up_ns = 0;  // when it had not for long
    int heal_in = 0;         // steps
    std::optional<std::pair<int, SimClient::LastRequest>> dies_in;  // requests
  };
  struct Opened {
    unsigned node;
    Handle* handle;
    std::string name;
    int body;
    uint64_t server_starts;
    int64_t opened_ns;
  };
  uint64_t any(uint64_t below);
  bool one_in(uint64_t count) { return any(count) == 0; }
  template <class... Args>
  void trace(fmt::format_string<Args...> format, Args&&... args) {
    if (tracing_) fmt::print("{:>8} {}\n", steps_, fmt::format(format, std::forward<Args>(args)...));
  }
  void wrong(std::string what) {
    if (problem_.empty()) problem_ = fmt::format("step {}: {}", steps_, std::move(what));
  }

  void trace_acks();
  void pass(int64_t ns);
  void wait(int64_t ns);
  void pass_working(int64_t ns);
  void before_request(unsigned number, const VolumeCall& call);
  void others_go_on(Seat& waits);
  template <class Work>
  auto within(Seat& seat, Work work);
  void bury_if_killed(Seat& seat);
  void start(Seat& seat);
  void pump(Seat& seat, int rounds);

  void step();
  void client_step(Seat& seat);
  void fault_step(Seat& seat);
  std::unique_ptr<Node> make_node(unsigned number, const std::string& machine);
  void take_over(Seat& seat);
  void wake_zombie(size_t at);
  void write(Seat& seat, const std::string& name);
  void remove(Seat& seat, const std::string& name);
  void move(Seat& seat);
  void read(Seat& seat, const std::string& name);
  void list(Seat& seat);
  void open(Seat& seat, const std::string& name);
  void read_opened(size_t at);
  void change_directory(Seat& seat);
  void drain(Seat& seat);
  void refresh(Seat& seat);
  void stop(Seat& seat);
  void judge(Seat& seat, const std::string& name, int body, const char* how);
  bool is_fault(const Error& error, const Seat& seat) const;
  bool has_its_lock(const Seat& seat) const;
  std::string any_name(const Seat& seat);

  void close_all();
  void settle();
  void compare();
  void compare_what_is_left();
  void check_space();
  std::map<std::string, int> tree(Seat& seat, uint64_t& bytes);
  void add_to_tree(Seat& seat, const std::string& below, std::map<std::string, int>& tree, uint64_t& bytes);

  const Plan plan_;
  const bool tracing_;
  uint64_t random_;
  std::shared_ptr<SimServer> server_;
  StoreOptions options_;
  std::vector<Seat> seats_;
  std::vector<std::unique_ptr<Node>> zombies_;  // machines that were taken for gone
  int machines_ = 0;
  std::vector<Opened> opened_;
  Names names_;
  Durability durability_;
  int bodies_ = 0, depth_ = 0;
  std::map<int, unsigned> writers_;  // by body
  int64_t others_ns_ = 0;
  bool server_lost_ = false;  // writes of an `async` export, since all started
  bool calm_ = false;  // nothing fails, and nobody comes in between
  uint64_t steps_ = 0, live_bytes_ = 0;
  std::string problem_;
  std::map<std::string, uint64_t> counts_;
  bool acks_written_ = false;
  std::map<std::string, std::string> traced_acks_;
};

}  // namespace kvcachefs::testing

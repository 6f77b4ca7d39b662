#include "tests/nodes/simulation.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "store/base/mutex.h"
#include "store/base/units.h"
#include "store/journal/file_header.h"
#include "store/journal/journal_file.h"
#include "store/peers/head_file.h"

namespace kvcachefs::testing {

namespace {

constexpr int64_t kMilliNs = 1'000'000, kSecondNs = 1'000'000'000;
constexpr int64_t kHeldUpNs = 8 * kSecondNs;  // who has not worked for so long may have to read all once more: a full volume waits 10 s for it
constexpr uint64_t kStartNames = 6, kLargestInlineBytes = 300;
const std::vector<std::string> kDirectories = {"", "d/", "e/", "e/f/"};

}  // namespace

Plan plan_of(uint64_t seed) {
  Plan plan;
  plan.seed = seed;
  plan.nodes = 2 + seed % 4;
  plan.faults = seed % 5 != 0;
  plan.server.nfs_version = seed % 3 == 0 ? 3 : 4;
  plan.server.async = seed % 7 == 3;
  plan.takeovers = plan.faults && plan.server.nfs_version == 4 && !plan.server.async && seed % 4 == 3;
  plan.server.lease_ns = (seed % 2 == 0 ? 10 : 90) * kSecondNs;
  return plan;
}

Simulation::Simulation(Plan plan)
    : plan_(std::move(plan)),
      tracing_(std::getenv("KVCACHEFS_NODES_TRACE") != nullptr),
      random_(plan_.seed * 0x9e3779b97f4a7c15ULL + 7),
      server_(std::make_shared<SimServer>(plan_.server)) {
  const Durability durabilities[] = {Durability::kNone, Durability::kClose, Durability::kSync};
  options_.durability = durability_ = durabilities[any(3)];
  options_.memory_bytes = 32 * kMiB;
  options_.extent_bytes = (one_in(2) ? 1 : 8) * kMiB;
  options_.pack_below_bytes = (one_in(3) ? 16 : 256) * kKiB;
  options_.inline_below_bytes = one_in(2) ? kLargestInlineBytes : 0;
  options_.flush_interval_ms = one_in(2) ? 1 : 200;
  options_.evict = false;
  options_.prefetch = one_in(2);
  options_.scrub_bytes_per_s = 0;
  if (plan_.takeovers) options_.fence_after_ms = 0;  // it goes by the machine's clock, which hardly moves here: looked at each time
  seats_.resize(plan_.nodes);
  for (unsigned number = 0; number < plan_.nodes; ++number) seats_[number].node = make_node(number, fmt::format("m{}", number));
}

std::unique_ptr<Node> Simulation::make_node(unsigned number, const std::string& machine) {
  const int64_t off_ns = static_cast<int64_t>(any(21'600)) * kSecondNs - 10'800 * kSecondNs;
  Node::Wrap wrap;
  if (plan_.wrap) wrap = [this, number](std::shared_ptr<Volume> volume) { return plan_.wrap(number, std::move(volume)); };
  auto node = std::make_unique<Node>(number, machine, server_, options_, off_ns, wrap, [this](int64_t ns) { wait(ns); });
  node->machine().set_before([this, number](const VolumeCall& call) { before_request(number, call); });
  ++machines_;
  return node;
}

Simulation::~Simulation() {
  calm_ = true;
  for (Seat& seat : seats_) seat.node->machine().set_before({});
  for (const Opened& each : opened_)
    if (seats_[each.node].node->runs()) seats_[each.node].node->store().release(each.handle);
  for (Seat& seat : seats_) {
    seat.node->machine().kill();
    seat.node->bury();
  }
  for (const auto& zombie : zombies_) {
    zombie->machine().kill();
    zombie->bury();
  }
}

// splitmix64: the same everywhere.
uint64_t Simulation::any(uint64_t below) {
  uint64_t x = random_ += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return (x ^ (x >> 31)) % below;
}

// --- time, and who works ---

// What nodes have told since in their ACKS.
void Simulation::trace_acks() {
  for (const std::string& path : server_->all_files()) {
    if (!path.ends_with("/ACKS")) continue;
    Bytes slots(2 * kAcksSlotBytes);
    server_->disk().inode(*server_->disk().find(path)).content.read(slots, 0);
    const auto header = decode_header(FileKind::kAcks, ByteSpan(slots).first(kMaxHeaderBytes));
    if (!header) continue;
    ByteReader in(header->body);
    const auto acks = decode_acks(decode_identity(in), slots);
    if (!acks) continue;
    std::string text;
    for (const Acks::Peer& peer : acks->peers) {
      text += fmt::format(" {} to {}/{} {}", peer.node, peer.applied.epoch, peer.applied.seq, peer.applied.offset);
      for (const ObjectId id : peer.pinned) text += fmt::format(" pinned {}/{}", id.epoch(), id.number());
    }
    if (std::exchange(traced_acks_[path], text) != text) trace("        {}: {}", path, text);
  }
}

void Simulation::pass(int64_t ns) {
  server_->advance_ns(ns);
  for (const auto& zombie : zombies_) zombie->clock().advance_ns(ns);
  for (Seat& seat : seats_) {
    seat.node->clock().advance_ns(ns);
    if (server_->now_ns() - seat.seen_ns <= kHeldUpNs) continue;
    seat.current = false;
    seat.held_up_ns = server_->now_ns();
  }
}

// All that can work do so meanwhile, as their threads would.
void Simulation::pass_working(int64_t ns) {
  constexpr int64_t kSliceNs = 500 * kMilliNs;
  for (; ns > 0 && problem_.empty(); ns -= kSliceNs) {
    pass(std::min(ns, kSliceNs));
    for (Seat& seat : seats_)
      if (seat.busy == 0 && seat.node->runs()) pump(seat, 2);
  }
}

// A call of one node is not answered yet: the daemons of the others go on, too.
void Simulation::wait(int64_t ns) {
  constexpr int64_t kOthersNs = 250 * kMilliNs;
  pass(ns);
  if (server_->now_ns() - others_ns_ < kOthersNs) return;
  others_ns_ = server_->now_ns();
  for (Seat& seat : seats_)
    if (seat.busy == 0 && seat.node->runs()) pump(seat, 2);
}

void Simulation::before_request(unsigned number, const VolumeCall& call) {
  Seat& seat = seats_[number];
  if (tracing_ && std::exchange(acks_written_, call.kind == VolumeCall::Kind::kWrite && call.path.ends_with("/ACKS"))) trace_acks();
  if (tracing_) trace("      n{} {} {} {}+{}", number, call_kind_name(call.kind), call.path, call.offset, call.length);
  if (calm_) return;
  if (seat.dies_in && seat.dies_in->first-- <= 0) {
    trace("n{} is killed before {} {}", number, call_kind_name(call.kind), call.path);
    ++counts_["killed"];
    seat.node->machine().kill(seat.dies_in->second);
    seat.dies_in.reset();
    return;
  }
  if (depth_ < 3 && one_in(60)) others_go_on(seat);
  while (seat.node->machine().is_cut() && !seat.node->machine().is_killed() && problem_.empty()) {
    if (seat.heal_in-- <= 0) {
      trace("n{} is connected again", number);
      seat.node->machine().heal();
    } else {
      others_go_on(seat);
      if (one_in(4)) pass_working(static_cast<int64_t>(any(8)) * kSecondNs);
    }
  }
}

void Simulation::others_go_on(Seat& waits) {
  const AnotherMachine another;  // in builds that check the order of locks
  ++waits.busy;
  ++depth_;
  step();
  --depth_;
  --waits.busy;
}

template <class Work>
auto Simulation::within(Seat& seat, Work work) {
  const AnotherMachine another;  // perhaps: in a call of the volume that one waits for, where the claim of its node is held
  ++seat.busy;
  auto result = work();
  --seat.busy;
  if (!seat.node->machine().is_killed()) seat.seen_ns = server_->now_ns();
  bury_if_killed(seat);
  return result;
}

void Simulation::bury_if_killed(Seat& seat) {
  if (seat.busy > 0 || !seat.node->runs() || !seat.node->machine().is_killed()) return;
  std::erase_if(opened_, [&](const Opened& each) {
    if (each.node != seat.node->number) return false;
    seat.node->store().release(each.handle);
    return true;
  });
  seat.node->bury();
  seat.current = false;
  names_.crashed(seat.node->number);
}

void Simulation::start(Seat& seat) {
  trace("n{} starts", seat.node->number);
  ++counts_["starts"];
  seat.current = false;
  names_.has_read(seat.node->number, 0);
  const Status started = within(seat, [&] { return seat.node->start(); });
  if (started || seat.node->machine().is_killed() || is_fault(started.error(), seat)) return;
  wrong(fmt::format("n{} does not start: {}", seat.node->number, started.error().message));
}

void Simulation::pump(Seat& seat, int rounds) {
  within(seat, [&] {
    for (int i = 0; i < rounds && !seat.node->machine().is_killed(); ++i) seat.node->pump();
    return true;
  });
}

// --- steps ---

std::string Simulation::any_name(const Seat& seat) {
  const std::string directory = kDirectories[any(kDirectories.size())];
  if (one_in(3)) return fmt::format("{}own{}-{}", directory, seat.node->number, any(3));
  return fmt::format("{}{}", directory, any(kStartNames));
}

void Simulation::step() {
  if (!problem_.empty()) return;
  ++steps_;
  if (server_->is_full() && one_in(40)) {
    trace("there is room again");
    server_->set_full(false);
  }
  Seat& seat = seats_[any(seats_.size())];
  if (seat.busy > 0) return pass(static_cast<int64_t>(any(20)) * kMilliNs);
  if (!seat.node->runs()) {
    if (one_in(4)) start(seat);
    else pass_working(static_cast<int64_t>(any(2000)) * kMilliNs);
    return;
  }
  if (!seat.current && one_in(3)) return refresh(seat);
  const uint64_t what = any(100);
  if (what < 55) client_step(seat);
  else if (what < 80) pump(seat, 1 + static_cast<int>(any(4)));
  else if (what < 94) pass_working(static_cast<int64_t>(any(one_in(10) ? 5000 : 400)) * kMilliNs);
  else if (what < 97) refresh(seat);
  else if (plan_.faults) fault_step(seat);
  else if (one_in(3)) stop(seat);
}

// The node's machine stands still, for longer than its lease. Another one takes the node, as of another boot, with nothing but what is on the volume.
void Simulation::take_over(Seat& seat) {
  const unsigned number = seat.node->number;
  trace("n{} is taken over by another machine", number);
  ++counts_["taken over"];
  std::erase_if(opened_, [&](const Opened& each) {
    if (each.node == number) seat.node->store().release(each.handle);
    return each.node == number;
  });
  seat.dies_in.reset();
  seat.node->machine().cut();
  seat.node->machine().set_before({});
  zombies_.push_back(std::move(seat.node));
  seat.node = make_node(number, fmt::format("m{}", machines_));
  seat.current = false;
  names_.crashed(number);
  ++seat.busy;  // nobody starts it before
  pass_working(plan_.server.lease_ns + kSecondNs);
  --seat.busy;
  for (const std::string& path : server_->all_files()) {
    if (!path.starts_with(fmt::format("nodes/n{}/", number)) || !path.ends_with(".log")) continue;
    const uint64_t file = *server_->disk().find(path);
    Bytes start(kMaxHeaderBytes);
    server_->disk().inode(file).content.read(start, 0);
    auto decoded = decode_journal_header(start);
    if (!decoded) continue;  // cut short by a kill
    for (char& letter : decoded->header.boot_id) letter = letter == 'z' ? 'y' : 'z';
    static_cast<void>(server_->write(file, 0, encode_journal_header(decoded->header)));
  }
  if (seat.busy == 0 && problem_.empty()) start(seat);
}

// It goes on where it stood, and has to find out. Nothing that it does counts for anybody.
void Simulation::wake_zombie(size_t at) {
  const std::unique_ptr<Node> zombie = std::move(zombies_[at]);
  zombies_.erase(zombies_.begin() + static_cast<ptrdiff_t>(at));
  trace("the machine that was n{} goes on", zombie->number);
  ++counts_["zombies"];
  zombie->machine().heal();
  bool is_lost = false;
  zombie->store().set_node_lost([&is_lost] { is_lost = true; });
  const auto removed = zombie->list("");
  const Status unlinked = removed && !removed->empty() && S_ISREG(removed->front().type_bits) ? zombie->unlink(removed->front().name) : Status();
  const auto handle = zombie->create(fmt::format("late{}", ++bodies_));
  if (handle) {
    const Status written = zombie->write(*handle, make_body(bodies_, 50'000));
    const Status closed = zombie->close(*handle);
    if (written && closed && durability_ != Durability::kNone) wrong(fmt::format("n{}, which was taken over, says that it stored something", zombie->number));
  }
  for (int i = 0; i < 5; ++i) zombie->pump();
  if (zombie->drain()) wrong(fmt::format("n{}, which was taken over, says that all is stored", zombie->number));
  if (!is_lost) wrong(fmt::format("n{} does not find out that it was taken over", zombie->number));
  zombie->machine().kill();
  zombie->bury();
}

void Simulation::fault_step(Seat& seat) {
  if (!zombies_.empty() && depth_ == 0 && one_in(3)) return wake_zombie(any(zombies_.size()));
  if (plan_.takeovers && depth_ == 0 && one_in(3)) return take_over(seat);
  SimClient& machine = seat.node->machine();
  switch (any(9)) {
    case 0: case 1:
      if (machine.is_cut()) break;
      trace("n{} is cut off", seat.node->number);
      ++counts_["cut"];
      machine.cut();
      seat.heal_in = static_cast<int>(any(one_in(3) ? 60 : 10));
      break;
    case 2: case 3: case 4:
      if (!seat.dies_in) seat.dies_in = {static_cast<int>(any(one_in(2) ? 8 : 60)), static_cast<SimClient::LastRequest>(any(3))};
      break;
    case 5:
      trace("the machine of n{} loses power", seat.node->number);
      ++counts_["machines"];
      machine.lose_power(any(1000));
      bury_if_killed(seat);
      break;
    case 6:
      trace("the server restarts");
      ++counts_["server"];
      server_->crash(any(1000));
      if (plan_.server.async) {
        names_.server_lost_writes();
        server_lost_ = true;
        for (Seat& each : seats_) each.current = false;
      }
      for (Seat& each : seats_)
        if (one_in(3)) each.node->machine().repeat_next();
      break;
    case 7:
      if (server_->is_full()) break;
      trace("the volume is full");
      server_->set_full(true);
      ++counts_["full"];
      break;
    default: stop(seat);
  }
}

void Simulation::client_step(Seat& seat) {
  const std::string name = any_name(seat);
  switch (any(16)) {
    case 0: case 1: case 2: case 3: case 4: return write(seat, name);
    case 5: return remove(seat, name);
    case 6: return move(seat);
    case 7: case 8: case 9: return read(seat, one_in(3) ? any_name(seats_[any(seats_.size())]) : name);
    case 10: return list(seat);
    case 11: return open(seat, name);
    case 12: return opened_.empty() ? void() : read_opened(any(opened_.size()));
    case 13: case 14: return change_directory(seat);
    default: return drain(seat);
  }
}

// What need not be explained: the process was killed, the volume is full, the disk of an `async` export forgot.
bool Simulation::is_fault(const Error& error, const Seat& seat) const {
  if (error.code == Code::kCanceled || error.code == Code::kNoSpace || seat.node->machine().is_killed()) return true;
  return plan_.server.async && server_->starts() > 1;
}

// One that was cut off for longer than its lease may have lost LOCK, and goes on without: others take it for ended once its HEAD stands for 5 s.
bool Simulation::has_its_lock(const Seat& seat) const {
  const auto file = server_->disk().find(fmt::format("nodes/n{}/LOCK", seat.node->number));
  return file && server_->is_locked(*file);
}

// Through a temporary name, as engines do it, or in place.
void Simulation::write(Seat& seat, const std::string& name) {
  const int body = ++bodies_;
  writers_[body] = seat.node->number;
  const uint64_t bytes = one_in(3) ? 30 + any(400) : one_in(2) ? any(40'000) : any(300'000);
  const std::string content = make_body(body, bytes);
  const unsigned number = seat.node->number;
  const bool safe = durability_ != Durability::kNone;
  const bool by_rename = one_in(2);
  const std::string written = !by_rename ? name : one_in(3) ? name + ".tmp" : fmt::format("{}.tmp{}", name, number);
  trace("n{} writes {} ({} bytes) to {}", number, body, content.size(), written);
  ++counts_["write"];
  std::vector<Names::Change> parts = {names_.begin(number, written, kEmpty, !seat.current), names_.begin(number, written, body, !seat.current)};
  bool begun = false;
  const Status done = within(seat, [&]() -> Status {
    Node& node = *seat.node;
    auto handle = node.create(written);
    if (!handle && handle.error().code == Code::kExists) handle = node.open(written, {.read = true, .write = true, .truncate = true});
    KVC_TRY(handle);
    begun = true;
    Status put = node.write(*handle, content);
    const Status closed = node.close(*handle);
    return put ? closed : put;
  });
  using Outcome = Names::Outcome;
  const Outcome outcome = done ? Outcome::kDone : begun ? Outcome::kUnknown : Outcome::kNotDone;
  names_.settle(parts[0], done || !begun ? Outcome::kNotDone : Outcome::kUnknown, false);
  names_.settle(parts[1], outcome, safe);
  if (!done) {
    trace("  it does not: {}", done.error().message);
    const Code code = done.error().code;
    const bool fine = !begun && (code == Code::kNotFound || code == Code::kStale || code == Code::kIsDirectory || code == Code::kExists || code == Code::kNotDirectory);
    if (!fine && !is_fault(done.error(), seat)) wrong(fmt::format("n{} cannot write {}: {}", number, written, done.error().message));
    return;
  }
  if (!by_rename || !seat.node->runs()) return;
  trace("n{} renames {} to {}", number, written, name);
  const auto from = names_.begin(number, written, kAbsent, !seat.current, true), to = names_.begin(number, name, body, !seat.current);
  const Status renamed = within(seat, [&] { return seat.node->rename(written, name); });
  const Outcome moved = renamed ? Outcome::kDone : is_fault(renamed.error(), seat) ? Outcome::kUnknown : Outcome::kNotDone;
  names_.settle(from, moved, safe);
  names_.settle(to, moved, safe);
  if (!renamed) trace("  it does not: {}", renamed.error().message);
}

void Simulation::remove(Seat& seat, const std::string& name) {
  trace("n{} unlinks {}", seat.node->number, name);
  const auto change = names_.begin(seat.node->number, name, kAbsent, !seat.current);
  const Status removed = within(seat, [&] { return seat.node->unlink(name); });
  using Outcome = Names::Outcome;
  names_.settle(change, removed ? Outcome::kDone : is_fault(removed.error(), seat) ? Outcome::kUnknown : Outcome::kNotDone, durability_ != Durability::kNone);
}

// A node's own file to another name; what it means there is told by reading it first.
void Simulation::move(Seat& seat) {
  const std::string from = any_name(seat), to = any_name(seat);
  if (from == to) return;
  const auto content = within(seat, [&] { return seat.node->read(from); });
  if (!content || !seat.node->runs()) return;
  const int body = body_of(*content);
  judge(seat, from, body, "reads (to move it)");
  trace("n{} renames {} ({}) to {}", seat.node->number, from, body, to);
  const auto gone = names_.begin(seat.node->number, from, kAbsent, !seat.current, true), came = names_.begin(seat.node->number, to, body, !seat.current);
  const Status moved = within(seat, [&] { return seat.node->rename(from, to); });
  using Outcome = Names::Outcome;
  const Outcome outcome = moved ? Outcome::kDone : is_fault(moved.error(), seat) ? Outcome::kUnknown : Outcome::kNotDone;
  names_.settle(gone, outcome, durability_ != Durability::kNone);
  names_.settle(came, outcome, durability_ != Durability::kNone);
}

void Simulation::judge(Seat& seat, const std::string& name, int body, const char* how) {
  if (body == kAbsent && !seat.current) return;  // what is others' is not there yet
  if (!seat.node->runs()) return;
  if (!seat.current) names_.has_read(seat.node->number, 0);
  // What a client has open is what all on its node read, until it is closed.
  if (std::ranges::any_of(opened_, [&](const Opened& each) { return each.node == seat.node->number && each.name == name && each.body == body; })) return;
  if (std::string bad = names_.judge(seat.node->number, name, body); !bad.empty()) wrong(fmt::format("{}: {}", how, bad));
}

void Simulation::read(Seat& seat, const std::string& name) {
  const bool current = seat.current;
  const auto content = within(seat, [&] { return seat.node->read(name); });
  ++counts_["read"];
  if (content) {
    trace("n{} reads {}: {}", seat.node->number, name, body_of(*content));
    return judge(seat, name, body_of(*content), "reads");
  }
  trace("n{} reads {}: {}", seat.node->number, name, content.error().message);
  const Code code = content.error().code;
  if (code == Code::kNotFound || code == Code::kNotDirectory || code == Code::kIsDirectory) {
    if (current) judge(seat, name, kAbsent, "finds nothing");
    return;
  }
  if (!is_fault(content.error(), seat) && current && seat.current && has_its_lock(seat))
    wrong(fmt::format("n{} cannot read {}: {}", seat.node->number, name, content.error().message));
}

void Simulation::list(Seat& seat) {
  const std::string directory = kDirectories[any(kDirectories.size())];
  const auto items = within(seat, [&] { return seat.node->list(directory.empty() ? "" : directory.substr(0, directory.size() - 1)); });
  if (!items || !seat.node->runs()) return;
  std::set<std::string> names;
  for (const DirectoryItem& item : *items)
    if (!names.insert(item.name).second) wrong(fmt::format("n{} lists {}{} twice", seat.node->number, directory, item.name));
}

void Simulation::open(Seat& seat, const std::string& name) {
  if (opened_.size() > 6) return read_opened(any(opened_.size()));
  Handle* handle = nullptr;
  const auto content = within(seat, [&]() -> Result<std::string> {
    KVC_ASSIGN(handle, seat.node->open(name, {}));
    auto read = seat.node->read(handle);
    if (seat.node->machine().is_killed()) seat.node->store().release(std::exchange(handle, nullptr));  // it is buried next
    return read;
  });
  if (handle == nullptr || !seat.node->runs()) return;
  if (!content) return seat.node->store().release(handle);
  trace("n{} keeps {} open", seat.node->number, name);
  opened_.push_back({seat.node->number, handle, name, body_of(*content), server_->starts(), server_->now_ns()});
}

// It reads as it was opened, whatever happened to the name; from the volume, for what is in memory is dropped first.
void Simulation::read_opened(size_t at) {
  const Opened each = opened_[at];
  Seat& seat = seats_[each.node];
  if (seat.busy > 0 || !seat.node->runs()) return;
  opened_.erase(opened_.begin() + static_cast<ptrdiff_t>(at));
  const bool current = seat.current;
  const auto content = within(seat, [&] {
    seat.node->store().drop_caches();
    auto read = seat.node->read(each.handle);
    seat.node->store().release(each.handle);
    return read;
  });
  trace("n{} reads {} on: {}", each.node, each.name, content ? std::to_string(body_of(*content)) : content.error().message);
  ++counts_["read on"];
  if (content && body_of(*content) != each.body) {
    const auto writer = writers_.find(body_of(*content));  // in place, of a file that is this node's own
    const bool own_rewrite = body_of(*content) == kEmpty || (writer != writers_.end() && writer->second == each.node);
    if (!own_rewrite) wrong(fmt::format("n{} opened {} as {}, and reads {}", each.node, each.name, each.body, body_of(*content)));
  }
  const bool followed = current && seat.current && has_its_lock(seat) && seat.held_up_ns < each.opened_ns && each.server_starts == server_->starts();
  if (!content && followed && !is_fault(content.error(), seat))
    wrong(fmt::format("n{} cannot read {} on, which it has open: {}", each.node, each.name, content.error().message));
}

void Simulation::change_directory(Seat& seat) {
  const std::string directory = kDirectories[1 + any(kDirectories.size() - 1)];
  const std::string path = directory.substr(0, directory.size() - 1);
  const bool removes = one_in(4);
  trace("n{} {} {}", seat.node->number, removes ? "rmdir" : "mkdir", path);
  const Status done = within(seat, [&] { return removes ? seat.node->remove_directory(path) : seat.node->make_directory(path); });
  static_cast<void>(done);
}

void Simulation::drain(Seat& seat) {
  if (!seat.node->runs()) return;
  const Status drained = within(seat, [&] { return seat.node->drain(); });
  trace("n{} drains: {}", seat.node->number, drained ? "done" : drained.error().message);
  if (drained && seat.node->runs()) names_.all_safe(seat.node->number);
}

void Simulation::refresh(Seat& seat) {
  if (!seat.node->runs()) return;
  if (one_in(8))
    for (const auto& peer : seat.node->store().status().peers) {
      counts_["reloads seen"] += peer.reloads > 1;
      counts_["records left out"] += peer.records_left_out;
      counts_["peers silent"] += peer.state == "silent";
      counts_["peers absent"] += peer.state == "absent";
      if (peer.state != "live" && peer.state != "silent" && peer.state != "absent") counts_["peers " + std::string(peer.state)]++;
    }
  const int64_t begun_ns = server_->now_ns();
  const uint64_t until = names_.now();
  const Status refreshed = within(seat, [&] { return seat.node->refresh(); });
  trace("n{} refreshes: {}", seat.node->number, refreshed ? "done" : refreshed.error().message);
  ++counts_["refresh"];
  if (refreshed && seat.node->runs() && server_->now_ns() - begun_ns < kHeldUpNs) {
    if (!plan_.server.async) names_.has_read(seat.node->number, until);
    seat.current = true;
  }
}

void Simulation::stop(Seat& seat) {
  for (size_t at = opened_.size(); at-- > 0;)
    if (opened_[at].node == seat.node->number) {
      seat.node->store().release(opened_[at].handle);
      opened_.erase(opened_.begin() + static_cast<ptrdiff_t>(at));
    }
  trace("n{} ends", seat.node->number);
  ++counts_["ends"];
  const Status closed = within(seat, [&] { return seat.node->end(); });
  seat.current = false;
  if (closed) return names_.all_safe(seat.node->number);
  names_.crashed(seat.node->number);
  if (!is_fault(closed.error(), seat)) wrong(fmt::format("n{} does not end well: {}", seat.node->number, closed.error().message));
}

// --- what all see in the end ---

void Simulation::close_all() {
  for (const Opened& each : opened_)
    if (seats_[each.node].node->runs()) seats_[each.node].node->store().release(each.handle);
  opened_.clear();
}

void Simulation::settle() {
  calm_ = true;
  close_all();
  while (!zombies_.empty() && problem_.empty()) wake_zombie(0);
  server_->set_full(false);
  for (Seat& seat : seats_) {
    seat.dies_in.reset();
    if (seat.node->machine().is_cut()) seat.node->machine().heal();
    if (server_lost_ && seat.node->runs()) seat.node->machine().kill();  // what it holds in memory or in its index is not on the volume
    bury_if_killed(seat);
    if (!seat.node->runs()) start(seat);
  }
  server_lost_ = false;
  for (int round = 0; round < 3 && problem_.empty(); ++round) {
    for (Seat& seat : seats_) drain(seat);
    pass_working(kSecondNs);
    for (Seat& seat : seats_) refresh(seat);
  }
}

void Simulation::add_to_tree(Seat& seat, const std::string& below, std::map<std::string, int>& tree, uint64_t& bytes) {
  const auto items = seat.node->list(below.empty() ? "" : below.substr(0, below.size() - 1));
  if (!items) return wrong(fmt::format("n{} cannot list {}: {}", seat.node->number, below, items.error().message));
  for (const DirectoryItem& item : *items) {
    const std::string path = below + item.name;
    if (S_ISDIR(item.type_bits)) {
      tree[path + "/"] = kEmpty;
      add_to_tree(seat, path + "/", tree, bytes);
      continue;
    }
    const auto content = seat.node->read(path);
    if (!content && is_fault(content.error(), seat)) continue;
    if (!content) return wrong(fmt::format("n{} lists {} and cannot read it: {}", seat.node->number, path, content.error().message));
    tree[path] = body_of(*content);
    if (content->size() > kLargestInlineBytes) bytes += align_up(content->size(), kBlockBytes);
  }
}

std::map<std::string, int> Simulation::tree(Seat& seat, uint64_t& bytes) {
  std::map<std::string, int> tree;
  bytes = 0;
  if (!seat.node->runs()) return tree;
  seat.node->store().drop_caches();
  within(seat, [&] {
    add_to_tree(seat, "", tree, bytes);
    return true;
  });
  return tree;
}

void Simulation::compare() {
  settle();
  if (!problem_.empty()) return;
  if (plan_.server.async && server_->starts() > 1) return compare_what_is_left();
  std::map<std::string, int> agreed = tree(seats_[0], live_bytes_);
  for (size_t at = 1; at < seats_.size() && problem_.empty(); ++at) {
    uint64_t bytes = 0;
    const auto other = tree(seats_[at], bytes);
    for (const auto& [path, body] : agreed)
      if (!other.contains(path) || other.at(path) != body)
        return wrong(fmt::format("all are up to date; n0 has {} as {}, n{} {}; {}", path, body, at, other.contains(path) ? std::to_string(other.at(path)) : "not",
                                 names_.judge_agreed(path, kTorn)));
    for (const auto& [path, body] : other)
      if (!agreed.contains(path)) return wrong(fmt::format("all are up to date; n{} has {} as {}, n0 not; {}", at, path, body, names_.judge_agreed(path, kTorn)));
  }
  std::erase_if(agreed, [](const auto& each) { return each.first.ends_with('/'); });
  for (const auto& [path, body] : agreed)
    if (std::string bad = names_.judge_agreed(path, body); !bad.empty()) return wrong(bad);
  for (const std::string& path : names_.known())
    if (!agreed.contains(path))
      if (std::string bad = names_.judge_agreed(path, kAbsent); !bad.empty()) return wrong(bad);
  names_.agreed(agreed);
  ++counts_["comparisons"];
}

// An `async` server forgot parts of journals: each node has what it can still read of its own and the others' then, and what it reads was once written.
void Simulation::compare_what_is_left() {
  for (Seat& seat : seats_) {
    uint64_t bytes = 0;
    for (const auto& [path, body] : tree(seat, bytes))
      if (body == kTorn || (body > 0 && !writers_.contains(body))) wrong(fmt::format("n{} reads what nobody wrote under {}", seat.node->number, path));
  }
  names_.server_lost_writes();
  ++counts_["comparisons"];
}

// Nobody has anything open, all have heard of everything: what is on the server is what lives, and what each begins with.
void Simulation::check_space() {
  pass_working(30 * kSecondNs);
  compare();
  pass_working(30 * kSecondNs);
  for (Seat& seat : seats_) drain(seat);
  if (!problem_.empty() || plan_.server.nfs_version < 4 || plan_.server.async) return;  // v3: whole extents only
  uint64_t live_bytes = 0;  // also of what lost against a file of the same name
  for (Seat& seat : seats_) live_bytes += seat.node->store().status().live_bytes;
  const uint64_t taken = server_->allocated_bytes("/extents/");
  if (taken > live_bytes + live_bytes / 4 + 256 * kKiB * seats_.size())
    wrong(fmt::format("{} bytes of extents for {} that live", taken, live_bytes));
  if (live_bytes + 64 * kKiB < live_bytes_) wrong(fmt::format("nodes count {} bytes for {} that are read", live_bytes, live_bytes_));
}

std::string Simulation::run() {
  calm_ = true;
  for (Seat& seat : seats_) start(seat);
  for (Seat& seat : seats_) refresh(seat);
  pass_working(6 * kSecondNs);  // what the volume consists of is not young any more
  for (int round = 0; round < plan_.comparisons && problem_.empty(); ++round) {
    calm_ = false;
    const uint64_t until = steps_ + static_cast<uint64_t>(plan_.steps);
    while (steps_ < until && problem_.empty()) step();
    compare();
  }
  if (problem_.empty()) check_space();
  return problem_;
}

}  // namespace kvcachefs::testing

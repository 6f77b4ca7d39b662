#include "store/gc/collect_node.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "store/base/clock.h"
#include "store/base/node_name.h"
#include "store/base/units.h"
#include "store/gc/survey_node.h"
#include "store/index/index.h"
#include "store/journal/removed_nodes.h"
#include "store/peers/slot_reader.h"
#include "store/store.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kMemoryBytes = 256 * kMiB;  // nothing is cached
constexpr int64_t kReadPeersNs = 600'000'000'000;

class Collection {
 public:
  explicit Collection(const GcRequest& request) : request_(request) {}
  Result<GcReport> run();

 private:
  Result<bool> find();
  Status open();
  void read_peers();
  Status await_peers();
  Status settle();
  Status take_out();
  Status clear();
  void remove_index_and_peers(const std::string& directory);
  bool wait(const std::function<void(StatusCompletion)>& call, int64_t most_ns, Status& result);
  void work();
  bool is_over() const { return request_.ends && request_.ends(); }
  void tell(const std::string& line);
  std::string node_directory() const { return "nodes/" + request_.where.node; }

  const GcRequest& request_;
  GcReport report_;
  std::shared_ptr<Volume> volume_;
  std::unique_ptr<Store> store_;
  std::string index_directory_;  // that of a mount, if it is on this machine; else one for this command
  bool is_scratch_ = false;
  std::string told_;
};

void Collection::tell(const std::string& line) {
  if (line == told_) return;
  told_ = line;
  if (request_.tell) request_.tell(line);
}

// False: the volume has no such node, only leftovers of one that was taken out.
Result<bool> Collection::find() {
  auto node = open_offline_node(request_.where);
  if (!node && node.error().code == Code::kNotFound) {
    std::error_code error;
    const std::string root = std::filesystem::canonical(request_.where.volume, error).string();
    if (error) return std::unexpected(std::move(node).error());
    KVC_ASSIGN(volume_, open_posix_volume(root, {}));
    KVC_ASSIGN(const uint32_t removed, last_removed_epoch(*volume_, request_.where.node));
    if (removed == 0) return std::unexpected(std::move(node).error());
    return false;
  }
  if (!node) return std::unexpected(std::move(node).error());
  volume_ = node->volume;
  index_directory_ = node->index_directory;
  std::error_code error;
  is_scratch_ = request_.where.index_directory.empty() && node->volume->features().network && !std::filesystem::exists(index_directory_, error);
  if (is_scratch_) index_directory_ += "~gc";  // no node has such a name
  KVC_ASSIGN(const Cleared there, measure_tree(*volume_, node_directory()));
  report_.bytes_before = report_.bytes_after = there.bytes;
  if (!request_.dry_run) return true;
  KVC_TRY(check_lives_nowhere_else(*node->volume, node->identity, system_clock()));
  KVC_TRY(survey_node(*node, node->index_directory + "~gc-survey", report_));
  return true;
}

Status Collection::open() {
  StoreOptions options;
  options.node = request_.where.node;
  options.index_directory = index_directory_;
  options.memory_bytes = kMemoryBytes;
  options.evict = false;
  options.prefetch = false;
  options.scrub_bytes_per_s = 0;
  options.background = false;
  options.care = request_.remove && !request_.only_if_empty ? Care::kRetire : Care::kCollect;
  KVC_ASSIGN(store_, open_store(volume_, options, system_clock(), fmt::format("pid={} host={} command=gc", getpid(), node_name_of_host())));
  return {};
}

void Collection::work() {
  if (!store_->pump()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

// False: it did not complete in time.
bool Collection::wait(const std::function<void(StatusCompletion)>& call, int64_t most_ns, Status& result) {
  const auto answer = std::make_shared<std::optional<Status>>();
  call([answer](Status status) { *answer = std::move(status); });
  const int64_t until_ns = system_clock().monotonic_ns() + most_ns;
  while (!*answer && system_clock().monotonic_ns() < until_ns && !is_over()) work();
  if (*answer) result = std::move(**answer);
  return answer->has_value();
}

// Reads the peers; their statements about this node's files are answered as they are read.
void Collection::read_peers() {
  Status read;
  if (!wait([this](StatusCompletion done) { store_->refresh(std::move(done)); }, kReadPeersNs, read))
    report_.notes.push_back("not all of what other nodes said could be read in time");
  else if (!read)
    report_.notes.push_back("not all of what other nodes said was read: " + read.error().message);
}

// As in reclaim, silent nodes are not waited for.
Status Collection::await_peers() {
  const int64_t until_ns = system_clock().monotonic_ns() + request_.patience_ns;
  while (true) {
    const FollowedByPeers followed = store_->followed_by_peers();
    report_.waits_for = followed.waits_for;
    if (followed.waits_for.empty()) {
      if (request_.only_if_empty && !followed.left_behind.empty()) report_.waits_for = followed.left_behind.front();
      for (const std::string& node : followed.left_behind)
        report_.notes.push_back(fmt::format("node {} does not run and has not read all that was removed of it: that comes back where this node is gone", node));
      return {};
    }
    if (system_clock().monotonic_ns() >= until_ns || is_over()) return {};
    tell("waiting for " + followed.waits_for);
    for (int i = 0; i < 25; ++i) work();
  }
}

// Does all that a mount would give back in the background.
Status Collection::settle() {
  Status drained;
  const bool done = wait([this](StatusCompletion end) { store_->drain(true, std::move(end)); }, kReadPeersNs, drained);
  if (!done && is_over()) return {};
  if (!done) return fail(Code::kIo, fmt::format("volume {} did not take what was to be journaled", report_.root));
  KVC_TRY(std::move(drained));
  KVC_TRY(await_peers());
  constexpr int kMostRounds = 100'000;
  for (int round = 0; round < kMostRounds && store_->pump(); ++round) {
  }
  return {};
}

// Another daemon may have been started between the end of the store and this: then the node stays.
Status Collection::take_out() {
  const uint32_t epoch = store_->status().epoch;
  KVC_TRY(store_->close());
  store_.reset();
  KVC_ASSIGN(OfflineNode node, open_offline_node(request_.where));
  if (node.identity.epoch != epoch)
    return fail(Code::kBusy, fmt::format("node '{}' of volume {} was started meanwhile: it is not removed", request_.where.node, report_.root));
  KVC_TRY(set_node_aside(*volume_, node.identity));
  if (request_.where.index_directory.empty() && volume_->features().network) remove_index_and_peers(node.index_directory);
  report_.removed = true;
  return {};
}

Status Collection::clear() {
  KVC_ASSIGN(const Cleared cleared, clear_set_aside(*volume_, request_.where.node, /*remove=*/!request_.dry_run));
  report_.left_open = cleared.left;
  if (!report_.was_there) {
    report_.bytes_before = cleared.bytes;
    report_.bytes_after = request_.dry_run ? cleared.bytes : 0;
    report_.removed = true;
  }
  return {};
}

void Collection::remove_index_and_peers(const std::string& directory) {
  std::error_code ignored;
  if (Status removed = remove_index(directory); !removed) report_.notes.push_back(removed.error().message);
  std::filesystem::remove(directory, ignored);
  std::filesystem::remove_all(directory + "-peers", ignored);
}

Result<GcReport> Collection::run() {
  KVC_ASSIGN(report_.was_there, find());
  report_.root = volume_->root();
  if (!report_.was_there) {
    KVC_TRY(clear());
    return std::move(report_);
  }
  if (request_.dry_run) {
    report_.removed = request_.remove;
    return std::move(report_);
  }
  KVC_TRY(clear());  // of an earlier node of that name
  KVC_TRY(open());
  read_peers();
  KVC_TRY(settle());
  const StoreStatus status = store_->status();
  report_.files = status.objects_total;
  report_.directories = status.directories;
  report_.live_bytes = status.live_bytes;
  const bool leaves = request_.remove && !is_over() && !(request_.only_if_empty && report_.files > 0);
  if (leaves && report_.waits_for.empty()) {
    KVC_TRY(take_out());
    if (is_scratch_) remove_index_and_peers(index_directory_);
    KVC_TRY(clear());
    report_.bytes_after = 0;
    return std::move(report_);
  }
  KVC_TRY(store_->close());
  store_.reset();
  if (is_scratch_) remove_index_and_peers(index_directory_);
  KVC_ASSIGN(const Cleared there, measure_tree(*volume_, node_directory()));
  report_.bytes_after = there.bytes;
  return std::move(report_);
}

}  // namespace

Result<GcReport> collect_node(const GcRequest& request) {
  if (!is_node_name(request.where.node)) return fail(Code::kInvalid, fmt::format("'{}' is no name of a node", request.where.node));
  return Collection(request).run();
}

}  // namespace kvcachefs

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <unordered_set>

#include <fmt/format.h>

#include "store/base/units.h"
#include "store/base/unique_fd.h"
#include "store/check/body_check.h"
#include "store/check/check.h"
#include "store/check/dead_ranges.h"
#include "store/check/object_paths.h"
#include "store/check/recovered_index.h"
#include "store/check/repair.h"
#include "store/extent/extents.h"
#include "store/index/index.h"
#include "store/index/index_directory.h"
#include "store/journal/extent_header.h"
#include "store/journal/lost_records.h"
#include "store/journal/make_volume.h"

namespace kvcachefs {

namespace {

constexpr size_t kDifferencesShown = 20;
constexpr const char* kKept = "kept, because a record that was lost may have named it: --repair --remove-orphans removes it";
constexpr const char* kNeedsIndex = "; what was lost may be in an index elsewhere: --index DIR names that of the mount (its option index=). If there is none, mount the node, which goes on "
                                    "with all that is left, or give --repair --without-index";
constexpr size_t kRandomCharacters = 6;  // of mkdtemp

// A directory for scratch indexes, removed at the end. It lies beside the index (LMDB needs a local file system, and there is room) or,
// if no directory can be made there (no inodes are left, or it is read-only), in TMPDIR.
class Scratch {
 public:
  static Result<std::unique_ptr<Scratch>> make(const std::string& beside) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(beside).parent_path(), ignored);
    remove_old(beside);
    auto made = make_at(beside + ".fsck-XXXXXX");
    if (made) return made;
    const char* wanted = std::getenv("TMPDIR");
    const std::string elsewhere = wanted != nullptr && *wanted == '/' ? wanted : "/var/tmp";
    const std::string path = elsewhere + "/kvcachefs-fsck-XXXXXX";
    if (check_index_place(path))
      if (auto second = make_at(path)) return second;
    made.error().message += fmt::format("; nor can one be made in {}: set TMPDIR to a directory of a local file system with room for "
                                        "an index",
                                        elsewhere);
    return made;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string at(const char* name) const { return path_ + "/" + name; }

 private:
  // Removes directories of runs that were killed: the node's lock is held, so no other run uses them.
  static void remove_old(const std::filesystem::path& beside) {
    const std::string begin = beside.filename().string() + ".fsck-";
    std::vector<std::filesystem::path> old;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(beside.parent_path(), ignored)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(begin) && name.size() == begin.size() + kRandomCharacters && entry.symlink_status(ignored).type() == std::filesystem::file_type::directory)
        old.push_back(entry.path());
    }
    for (const std::filesystem::path& path : old) std::filesystem::remove_all(path, ignored);
  }
  explicit Scratch(std::string path) : path_(std::move(path)) {}
  // Replaces the last six characters of `path` so that the name is new.
  static Result<std::unique_ptr<Scratch>> make_at(std::string path) {
    if (mkdtemp(path.data()) == nullptr) return fail_errno(errno, "scratch directory " + path);
    std::unique_ptr<Scratch> made(new Scratch(path));
    // Tests with more files than two indexes have: the directory may have taken the last inode.
    constexpr int kFiles = 16;
    for (int i = 0; i < kFiles; ++i) {
      const std::string name = fmt::format("{}/{}", path, i);
      if (UniqueFd(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)).get() < 0)
        return fail_errno(errno, "scratch directory " + path);
    }
    for (int i = 0; i < kFiles; ++i) ::unlink(fmt::format("{}/{}", path, i).c_str());
    return made;
  }
  const std::string path_;
};

struct OrphanExtent {
  std::string path;
  ExtentId id;
  uint64_t allocated_bytes = 0;
};

// One run of the check; its steps in the order of the methods below.
class NodeCheck {
 public:
  NodeCheck(OfflineNode& node, const CheckOptions& options)
      : node_(node), options_(options), bodies_(node.volume, node.identity.node) {}

  Result<CheckReport> run() {
    KVC_TRY(check_index_directory(node_.index_directory));
    if (options_.repair) KVC_TRY(check_is_not_in_use(node_));
    KVC_TRY(check_volume_file());
    KVC_ASSIGN(scratch_, Scratch::make(node_.index_directory));
    KVC_ASSIGN(history_, read_history(node_));
    KVC_ASSIGN(lost_epoch_, epochs_with_lost_records(*node_.volume, node_.identity.node));
    if (!options_.remove_orphans) kept_epoch_ = lost_epoch_;
    KVC_TRY(check_journals());
    KVC_TRY(check_index());
    if (!options_.journals_only) {
      KVC_TRY(check_names());
      KVC_TRY(check_bodies());
      KVC_TRY(check_extent_files());
      const Status repaired = repairs() ? repair() : Status();
      if (!repaired) could_not_repair(repaired.error());
      repaired_ = repairs() && repaired;
      if (repaired) KVC_TRY(tell_dead_ranges());  // after a wrong index was removed: it may name ranges that are punched
      KVC_TRY(tell_bad_bodies());
    }
    tell_damage();
    recovered_.index.reset();
    return std::move(report_);
  }

 private:
  void could_not_repair(const Error& error) {
    for (Finding& finding : report_.findings) finding.repaired = finding.lost = false;
    found("could not be repaired: " + error.message);
  }

  void found(std::string text, bool repaired = false, bool lost = false) { report_.findings.push_back({std::move(text), repaired, lost}); }

  Status check_volume_file() {
    if (node_.lacks_volume_file.empty()) return {};
    const std::string id = format_uuid(node_.identity.volume_uuid);
    if (options_.repair) {
      const auto there = node_.volume->info(kVolumeFileName);
      const bool missing = !there && there.error().code == Code::kNotFound;
      const Status written = write_volume_file(*node_.volume, encode_volume_file(node_.header), /*replaces=*/!missing);
      if (!written && written.error().code != Code::kExists) return written;  // kExists: a mount elsewhere made it
    }
    found(options_.repair ? fmt::format("{}: made anew with the id that the other files name, {}", node_.lacks_volume_file, id) : node_.lacks_volume_file, options_.repair);
    return {};
  }

  Status check_journals() {
    KVC_ASSIGN(recovered_, recover_index(node_, history_, scratch_->at("recovered"), bodies_));
    const ReplayStatistics& statistics = recovered_.statistics;
    report_.journal_files = history_.journals.size();
    report_.batches = statistics.batches;
    report_.records = statistics.records;
    if (history_.checkpoint) report_.checkpoint_records = history_.checkpoint->records;
    journals_damaged_ = statistics.damaged_files > 0 || !history_.checkpoint_problems.empty();
    history_damaged_ = journals_damaged_ || !recovered_.impossible.empty();
    for (const std::string& line : recovered_.put_right) report_.notes.push_back(line + "; the next mount puts it right");
    for (const std::string& line : recovered_.dropped) report_.notes.push_back(line + "; the next mount leaves it out");
    return {};
  }

  Status check_index() {
    KVC_ASSIGN(ExistingIndex existing, catch_up_existing_index(node_, history_, recovered_, scratch_->at("existing"), bodies_));
    daemon_died_ = !existing.closed_cleanly;
    leftovers_ = std::move(existing.leftovers);
    if (existing.is_past_journals) index_past_ = existing.position;
    node_.identity.epoch = std::max(node_.identity.epoch, existing.position.epoch);  // the directory of that epoch may be gone
    history_damaged_ |= existing.is_past_journals;
    report_.index_has_more = existing.is_past_journals;
    index_stale_ = !existing.stale.empty() && !node_.index_is_named;
    if (!existing.wrong.empty()) {
      index_wrong_ = true;
      report_.index_differences = 1;
      const bool aside = repairs() && sets_index_aside();
      found(fmt::format("index {}: {}{}", node_.index_directory, existing.wrong, aside ? fmt::format("; set aside as {}.damaged", node_.index_directory) : ""), repairs());
    } else if (index_stale_) {
      report_.notes.push_back(fmt::format("index {}: {}: that of the mount lies elsewhere, or was removed", node_.index_directory, existing.stale));
    }
    index_absent_ = !existing.index && !index_wrong_;
    if (index_absent_) report_.notes.push_back(fmt::format("no index in {}: the next mount makes it", node_.index_directory));
    if (!existing.index) return {};
    KVC_ASSIGN(const auto differences, index_differences(*recovered_.index, *existing.index));
    if (index_past_) return go_by_index(std::move(existing), differences.size());
    if (!differences.empty() || journals_damaged_) {
      KVC_ASSIGN(const bool lack, may_lack(node_, history_, recovered_, existing, bodies_));
      if (lack) return go_by_index(std::move(existing), differences.size());
    }
    report_.index_differences = differences.size();
    index_wrong_ = !differences.empty();
    for (size_t at = 0; at < std::min(differences.size(), kDifferencesShown); ++at)
      found(fmt::format("index {}: {}", node_.index_directory, differences[at]), repairs());
    if (differences.size() > kDifferencesShown)
      found(fmt::format("index {}: ... and {} more rows", node_.index_directory, differences.size() - kDifferencesShown), repairs());
    return {};
  }

  // The index has the records that were damaged in the journals after it had read them: a mount goes by it, and a new checkpoint of it has them.
  // (Records that were damaged behind its position are lost; a mount goes by it all the same.)
  Status go_by_index(ExistingIndex existing, size_t differences) {
    if (differences > 0) {
      report_.notes.push_back(fmt::format("index {}: {} rows are not as the journals tell, which lack something; a mount goes by the index, and so does this check",
                                          node_.index_directory, differences));
      report_.index_has_more = true;
      index_differs_ = true;
    }
    recovered_.index = std::move(existing.index);
    index_has_all_ = !existing.is_behind_damage;
    // If the journals do not lead up to the index, no extent is removed only because the index does not name it.
    if (index_has_all_) history_damaged_ = index_past_ || !recovered_.impossible.empty();
    return {};
  }

  // The journal distinguishes damage from the torn end of a crash only by counts: if there is damage, all lines count as errors.
  void tell_damage() {
    const bool replaced = repaired_ && replaces_journals(), repaired = replaced && index_has_all_, lost = replaced && !index_has_all_;
    const char* const then = repaired           ? "; a checkpoint of the index is in its place now"
                             : index_has_all_   ? "; the index has what was in it"
                             : lost             ? "; what was in it is lost, and a checkpoint of all else is in its place now"
                             : needs_index()    ? kNeedsIndex
                             : node_.has_others ? "; what was in it is lost: mount the node, which writes a checkpoint of all else and tells the other nodes"
                                                : "; what was in it is lost: --repair writes a checkpoint of all else";
    if (report_.index_has_more && !journals_damaged_) found(fmt::format("node {}: its journals end early, or some are missing{}", node_.identity.node, then), repaired, lost);
    for (const std::string& problem : history_.checkpoint_problems) found("checkpoint " + problem + then, repaired, lost);
    for (const std::string& problem : recovered_.statistics.problems) {
      if (recovered_.statistics.damaged_files > 0) found("journal " + problem + then, repaired, lost);
      else report_.notes.push_back("journal " + problem);
    }
    const bool gone = replaced && !index_differs_;  // otherwise the checkpoint may have them, from the index
    for (const std::string& line : recovered_.impossible)
      found(line + (gone ? "; the checkpoint that is there now is without it" : needs_index() ? kNeedsIndex : "; a mount leaves it out, and with its next checkpoint it is gone"), false, gone);
  }

  Status check_names() {
    KVC_TRY(recovered_.index->scan_names([&](NameRecord&&) {
      ++report_.names;
      return true;
    }));
    KVC_ASSIGN(auto nameless, recovered_.index->scan_nameless());
    std::erase(nameless, kRootId);
    if (!nameless.empty())
      report_.notes.push_back(
          fmt::format("{} objects have no name: a crash came before it, the next mount that follows "
                      "an unclean end drops them",
                      nameless.size()));
    return {};
  }

  // Reads bodies in the order of the medium. Also finds overlaps: no two objects may share bytes.
  Status check_bodies() {
    std::vector<BodyRef> bodies;
    uint64_t total_bytes = 0;
    KVC_TRY(recovered_.index->scan_objects([&](ObjectRecord&& row) {
      ++((row.attributes.mode & S_IFMT) == S_IFDIR ? report_.directories : report_.files);
      report_.quarantined += row.body.quarantined;
      if (row.body.place.kind == PlaceKind::kNone) return true;
      bodies.push_back({row.body.place, row.id});
      if (row.body.place.kind == PlaceKind::kPacked || row.body.place.kind == PlaceKind::kSolo)
        total_bytes += row.body.size_bytes;
      return true;
    }));
    std::ranges::sort(bodies, {}, [](const BodyRef& body) { return std::pair{body.place.extent, body.place.offset}; });
    check_overlaps(bodies);
    KVC_TRY(check_pack_headers(bodies));
    KVC_TRY(check_dead_ranges(bodies));
    bodies_.start([&](BadBody bad) { bad_.push_back(std::move(bad)); });
    for (const BodyRef& body : bodies) {
      KVC_ASSIGN(const auto object, recovered_.index->find_object(body.object));
      if (object) KVC_TRY(bodies_.add(*object));
      if (options_.progress) options_.progress(bodies_.bytes(), total_bytes);
    }
    bodies_.finish();
    report_.bodies_read = bodies_.bodies();
    report_.bytes_read = bodies_.bytes();
    report_.bad_bodies = bad_.size();
    report_.missing_extents = bodies_.missing_extents().size();
    return {};
  }

  void check_overlaps(const std::vector<BodyRef>& bodies) {
    for (size_t at = 1; at < bodies.size(); ++at) {
      const BodyRef &before = bodies[at - 1], &body = bodies[at];
      if (!body.place.extent.valid() || before.place.extent != body.place.extent) continue;
      if (before.place.offset + before.place.length <= body.place.offset) continue;
      found(fmt::format("objects {} and {} share bytes of {} at {}", before.object.value, body.object.value,
                        extent_path(node_.identity.node, body.place.extent, body.place.kind), body.place.offset));
    }
  }

  Status check_pack_headers(const std::vector<BodyRef>& bodies) {
    ExtentId last;
    for (const BodyRef& body : bodies) {
      if (body.place.kind != PlaceKind::kPacked || body.place.extent == last) continue;
      last = body.place.extent;
      const std::string path = extent_path(node_.identity.node, last, PlaceKind::kPacked);
      auto file = node_.volume->open(path, {.writable = options_.repair});
      if (!file) continue;  // reported with its bodies
      Bytes block(kPackHeaderBytes);
      FileIdentity owner = node_.identity;
      owner.epoch = last.epoch;
      auto got = (*file)->read(block, 0);
      const Status good = !got ? std::unexpected(got.error()) : check_pack_header(block, owner, last.seq);
      if (good) continue;
      if (options_.repair) {
        const Bytes header = encode_pack_header({owner, last.seq});
        const ByteSpan piece(header);
        KVC_TRY((*file)->write({&piece, 1}, 0));
        KVC_TRY((*file)->sync_data());
      }
      found(fmt::format("{}: its header: {}", path, good.error().message), options_.repair);
    }
    return {};
  }

  Status check_dead_ranges(const std::vector<BodyRef>& bodies) {
    KVC_ASSIGN(dead_, find_dead_ranges(node_, bodies));
    for (const PackWithDeadRanges& pack : dead_) report_.dead_range_bytes += pack.dead_bytes;
    report_.packs_with_dead_ranges = dead_.size();
    return {};
  }

  // An extent that nothing names, or of which parts are not named, is kept if a lost record may have named it.
  bool is_kept(ExtentId id) const { return id.epoch <= kept_epoch_; }

  // A note, no error: the next mount that follows an unclean end gives the ranges back. No note if the volume cannot punch.
  Status tell_dead_ranges() {
    if (dead_.empty() || !node_.volume->features().punch_hole) return {};
    std::string what = fmt::format("{} packs hold {} that no record names", dead_.size(), format_size(report_.dead_range_bytes));
    if (recovered_.unclean) {  // the records that gave them up are not synced: after a power loss the ranges may be named again
      what += "; the next mount gives it back";
    } else if (history_damaged_) {
      what += "; kept, because damaged journals may have named it";
    } else if (node_.has_others && (!leftovers_ || leftovers_->in_packs)) {
      what += "; other nodes may read it still: the next mount gives it back";
    } else if (options_.repair) {
      uint64_t bytes = 0;
      for (const PackWithDeadRanges& pack : dead_) {
        if (is_kept(pack.extent)) continue;
        KVC_ASSIGN(const uint64_t came_back, give_back(node_, pack));
        bytes += came_back;
      }
      what += fmt::format("; {} given back", format_size(bytes));
    } else {
      what += "; --repair gives it back";
    }
    if (std::ranges::any_of(dead_, [this](const PackWithDeadRanges& pack) { return is_kept(pack.extent); })) what += fmt::format(" but for that in epochs up to {}, {}", kept_epoch_, kKept);
    report_.notes.push_back(std::move(what));
    return {};
  }

  // Not if records are not synced: after a power loss earlier records may hold again, which name these extents. The next
  // mount judges the records first, with knowledge that fsck does not have, and then sweeps.
  // A checkpoint of this repair states that all is synced, and comes before.
  bool may_remove_extents() const { return options_.repair && !history_damaged_ && (!recovered_.unclean || replaces_journals()); }

  // True for an extent that was removed but is kept for the other nodes of the volume, which may still read it. The index tells which ones
  // the last mount left; if it does not, every orphan may be one of them.
  bool is_held_for_others(ExtentId id) const {
    if (!leftovers_ || removes_index()) return node_.has_others;  // the index that is removed tells nobody any more
    return (leftovers_->unlisted && id.epoch > leftovers_->swept_epoch) ||
           std::ranges::any_of(leftovers_->extents, [&](const Leftovers::Extent& left) { return left.id == id; });
  }

  Status check_extent_files() {
    KVC_ASSIGN(const auto epochs, list_epochs(*node_.volume, node_.identity.node));
    for (uint32_t epoch : epochs) {
      const std::string root = epoch_directory(node_.identity.node, epoch) + "/extents";
      auto directories = node_.volume->list(root);
      if (!directories && directories.error().code == Code::kNotFound) continue;
      if (!directories) return std::unexpected(std::move(directories).error());
      for (const DirectoryEntry& directory : *directories)
        if (directory.is_directory) KVC_TRY(check_extent_directory(epoch, root + "/" + directory.name));
    }
    const bool removed = may_remove_extents();
    for (const OrphanExtent& orphan : orphans_) {
      const std::string text =
          fmt::format("{} ({}): nothing names it", orphan.path, format_size(orphan.allocated_bytes));
      // The journals alone do not show that a daemon died: a file that was begun after their last record has no record.
      if (history_damaged_ && replaces_journals())
        report_.notes.push_back(fmt::format("{}; {}", text, kKept));  // by LOST, which the repair writes
      else if (history_damaged_)
        found(text + "; kept, because damaged journals may have named it");
      else if (is_kept(orphan.id))
        report_.notes.push_back(fmt::format("{}; {}", text, kKept));
      else if (is_held_for_others(orphan.id))
        report_.notes.push_back(text + " any more; other nodes may read it still: the next mount removes it");
      else if (recovered_.unclean || (daemon_died_ && !removed))
        report_.notes.push_back(text + "; the next mount removes it");
      else
        found(text, removed);
    }
    report_.orphan_extents = orphans_.size();
    return {};
  }

  Status check_extent_directory(uint32_t epoch, const std::string& directory) {
    KVC_ASSIGN(const auto files, node_.volume->list(directory));
    for (const DirectoryEntry& file : files) {
      char* end = nullptr;
      const uint64_t seq = std::strtoull(file.name.c_str(), &end, 10);
      if (end == file.name.c_str() || *end != '.') continue;
      KVC_ASSIGN(const auto usage, recovered_.index->find_extent({epoch, seq}));
      const std::string path = directory + "/" + file.name;
      if (usage && usage->bodies > 0 && path == extent_path(node_.identity.node, {epoch, seq}, usage->kind)) continue;
      auto info = node_.volume->info(path);
      orphans_.push_back({path, {epoch, seq}, info ? info->allocated_bytes : 0});
    }
    return {};
  }

  // Notes lost records first, before the repair makes the journals look in order: later starts and checks cannot know of the loss.
  Status repair() {
    const bool aside = index_wrong_ && sets_index_aside();
    if (history_damaged_) KVC_TRY(note_lost_records(*node_.volume, node_.identity.node, node_.identity.epoch));
    if (aside) KVC_TRY(set_index_aside(node_.index_directory));  // before a checkpoint, which would make it an index that is only old
    if (replaces_journals()) KVC_TRY(write_checkpoint_of(node_, *recovered_.index, boot_of_journals()));
    std::vector<ObjectId> wrong;
    for (const BadBody& bad : bad_)
      if (bad.wrong) wrong.push_back(bad.object);
    if (!wrong.empty()) KVC_TRY(quarantine_bodies(node_, *recovered_.index, wrong, boot_of_journals()));
    if (may_remove_extents())
      for (const OrphanExtent& orphan : orphans_)
        if (!is_held_for_others(orphan.id) && !is_kept(orphan.id)) KVC_TRY(node_.volume->remove_file(orphan.path));
    if (options_.remove_orphans && may_remove_extents() && lost_epoch_ > 0) KVC_TRY(forget_lost_records(*node_.volume, node_.identity.node));
    if (removes_index() && !aside) KVC_TRY(remove_index(node_.index_directory));
    return {};
  }

  // Records are lost, and the index of the mount, which may have them, was not found: it may lie elsewhere. The repair changes nothing that rests on the journals.
  bool needs_index() const { return history_damaged_ && (index_absent_ || (index_stale_ && !index_has_all_)) && !options_.without_index; }
  bool repairs() const { return options_.repair && !needs_index(); }
  // Whether the repair puts a checkpoint of what a mount would serve in the place of the journals. If records are lost, other nodes may have read them: only a
  // mount takes them back from those, so it is left to that.
  bool replaces_journals() const { return options_.repair && (index_has_all_ || (history_damaged_ && !node_.has_others && !needs_index())); }
  // The index is older than such a checkpoint. The next mount makes it anew.
  bool removes_index() const { return options_.repair && (index_wrong_ || replaces_journals()); }
  // A wrong index may be the only trace of lost records.
  bool sets_index_aside() const { return index_past_ || history_damaged_; }

  std::string boot_of_journals() const { return history_.journals.empty() ? "" : history_.journals.back().boot_id; }

  Status tell_bad_bodies() {
    if (bad_.empty()) return {};
    std::unordered_set<ObjectId> objects;
    for (const BadBody& bad : bad_) objects.insert(bad.object);
    KVC_ASSIGN(const auto paths, object_paths(*recovered_.index, objects));
    for (const BadBody& bad : bad_) {
      const auto path = paths.find(bad.object);
      const bool repaired = repaired_ && bad.wrong;
      found(fmt::format("object {} ({}): {}{}", bad.object.value, path == paths.end() ? "no name" : path->second,
                        bad.why, repaired ? "; in quarantine now" : ""),
            repaired);
    }
    return {};
  }

  OfflineNode& node_;
  const CheckOptions& options_;
  CheckReport report_;
  BodyChecker bodies_;
  std::unique_ptr<Scratch> scratch_;  // before the index in it
  NodeHistory history_;
  RecoveredIndex recovered_;
  std::vector<BadBody> bad_;
  std::vector<OrphanExtent> orphans_;
  std::vector<PackWithDeadRanges> dead_;
  bool journals_damaged_ = false;  // a journal or a checkpoint is damaged
  bool history_damaged_ = false;   // ... and it is not known which records are lost, or some records are not believed
  bool index_has_all_ = false;     // the index has everything that was lost in the journals
  bool index_differs_ = false;     // ... or not everything, but the check goes by it, and it is not as the journals tell
  std::optional<JournalPosition> index_past_;  // position up to which the index has read, if the journals end before that
  bool repaired_ = false;
  bool index_wrong_ = false, index_absent_ = false, index_stale_ = false;
  bool daemon_died_ = false;  // before it closed the index
  std::optional<Leftovers> leftovers_;
  uint32_t lost_epoch_ = 0, kept_epoch_ = 0;  // records up to lost_epoch_ were lost once; extents up to kept_epoch_ stay if nothing names them
};

}  // namespace

uint64_t CheckReport::errors_left() const {
  return static_cast<uint64_t>(
      std::ranges::count_if(findings, [](const Finding& finding) { return !finding.repaired; }));
}

uint64_t CheckReport::errors_of_lost() const { return static_cast<uint64_t>(std::ranges::count_if(findings, &Finding::lost)); }

Result<CheckReport> check_node(OfflineNode& node, const CheckOptions& options) {
  return NodeCheck(node, options).run();
}

}  // namespace kvcachefs

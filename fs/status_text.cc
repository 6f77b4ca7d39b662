#include "fs/status_text.h"

#include <unistd.h>

#include <cmath>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "fs/driver.h"
#include "fs/offers.h"
#include "kvcachefs_version.h"
#include "store/base/log.h"

namespace kvcachefs {

namespace {

using Json = nlohmann::ordered_json;

Json features_json(const Driver& driver, const StoreStatus& s) {
  return {{"fuse_library", fuse_pkgversion()},
          {"passthrough", driver.passthrough.takes_extents()},
          {"memory_files", s.memory_files},
          {"fuse_io_uring", driver.ring_used()},
          {"fuse_io_uring_state", driver.ring_state()},
          {"fuse_enable_uring", std::string(1, ring_parameter())},
          {"direct_io_mmap", driver.direct_io_mmap.load()},
          {"volume_io_uring", s.io_uring},
          {"volume_direct_io", s.direct_io},
          {"volume_punch_hole", s.punch_hole},
          {"lost", driver.features()}};
}

// Rounded to 4 digits, or null.
Json ratio(const std::optional<double>& value) { return value ? Json(std::round(*value * 10'000) / 10'000) : Json(); }

Json options_json(const Driver& driver) {
  Json options;
  for (const OptionText& option : store_options_text(driver.store->options())) options[option.name] = option.value;
  for (const OptionText& option : driver.options_text()) options[option.name] = option.value;
  return options;
}

Json peers_json(const StoreStatus& status) {
  Json peers = Json::array();
  for (const StoreStatus::Peer& peer : status.peers)
    peers.push_back({{"node", peer.node}, {"host", peer.host}, {"state", peer.state}, {"reason", peer.reason}, {"epoch", peer.epoch},
                     {"silent_ms", peer.silent_ms}, {"bytes_behind", peer.bytes_behind}, {"objects", peer.objects},
                     {"physical_bytes", peer.physical_bytes}, {"claim_bytes", peer.claim_bytes}, {"polls", peer.polls},
                     {"batches", peer.batches}, {"reloads", peer.reloads}, {"records_left_out", peer.records_left_out}});
  return peers;
}

Json caretaker_json(const Driver& driver) {
  const CaretakerStatus s = driver.caretaker ? driver.caretaker->status() : CaretakerStatus();
  return {{"tends", s.tends}, {"turns", s.turns}, {"evicted_objects", s.evicted_objects}, {"evicted_bytes", s.evicted_bytes},
          {"returned_bytes", s.returned_bytes}, {"taken_out", s.taken_out}, {"problem", s.problem}};
}

}  // namespace

std::string status_json(Driver& driver) {
  const StoreStatus s = driver.store->status();
  Json json;
  json["version"] = KVCACHEFS_VERSION;
  json["pid"] = getpid();
  json["mountpoint"] = driver.mountpoint;
  json["volume"] = {{"root", s.volume_root}, {"filesystem", s.volume_filesystem}, {"uuid", s.volume_uuid},
                    {"network", s.network_volume}, {"state", s.state}, {"since", s.state_since_ns}, {"reason", s.state_reason}};
  json["node"] = s.node;
  json["epoch"] = s.epoch;
  json["index"] = s.index_directory;
  json["features"] = features_json(driver, s);
  json["options"] = options_json(driver);
  json["capacity"] = {{"limit_bytes", s.limit_bytes}, {"physical_bytes", s.physical_bytes}, {"live_bytes", s.live_bytes},
                      {"reclaimable_bytes", s.reclaimable_bytes}, {"staged_bytes", s.staged_bytes},
                      {"reserve_bytes", s.reserve_bytes}, {"claim_bytes", s.claim_bytes}, {"wish_bytes", s.wish_bytes},
                      {"unclaimed_bytes", s.unclaimed_bytes}, {"room_waits", s.room_waits}, {"room_wait_ms", s.room_wait_ms},
                      {"room_wait_max_ms", s.room_wait_longest_ms}};
  json["objects"] = {{"total", s.objects_total}, {"directories", s.directories}, {"inline", s.objects_inline},
                     {"packed", s.objects_packed}, {"solo", s.objects_solo}, {"raw", s.objects_raw},
                     {"quarantined", s.objects_quarantined}, {"in_ram", s.objects_in_ram}, {"open_handles", s.open_handles}};
  json["memory"] = {{"limit_bytes", s.memory_limit_bytes}, {"used_bytes", s.memory_used_bytes},
                    {"dirty_bytes", s.memory_dirty_bytes}, {"file_bytes", s.memory_file_bytes},
                    {"file_spare_bytes", s.memory_file_spare_bytes}, {"file_passed_bytes", s.memory_file_passed_bytes},
                    {"files_taken", s.memory_files_taken}, {"files_refused", s.memory_files_refused}, {"files_moved", s.memory_files_moved},
                    {"mapped_bytes", s.memory_mapped_bytes}, {"waiting_writes", s.waiting_writes},
                    {"waiting_bytes", s.waiting_bytes}, {"waiting_parked_bytes", s.waiting_parked_bytes}};
  json["probes"] = {{"hit", s.probe_hits}, {"miss", s.probe_misses}, {"miss_never_seen", s.probe_misses_never_seen},
                    {"miss_evicted", s.probe_misses_evicted}, {"miss_quarantined", s.probe_misses_quarantined},
                    {"before_store", s.lookups_before_store},
                    {"hit_1min_ratio", ratio(s.hit_ratio_minute)}, {"hit_1h_ratio", ratio(s.hit_ratio_hour)},
                    {"hit_1d_ratio", ratio(s.hit_ratio_day)}, {"miss_evicted_1min_ratio", ratio(s.evicted_ratio_minute)},
                    {"miss_evicted_1h_ratio", ratio(s.evicted_ratio_hour)},
                    {"miss_evicted_1d_ratio", ratio(s.evicted_ratio_day)}};
  json["reads"] = {{"requests", s.read_requests}, {"bytes_from_ram", s.read_bytes_from_ram},
                   {"bytes_from_volume", s.read_bytes_from_volume}, {"passthrough_opens", s.passthrough_opens},
                   {"memory_file_opens", s.memory_file_opens}, {"opens", s.opens}};
  json["prefetch"] = {{"read_bytes", s.prefetch_read_bytes}, {"used_bytes", s.prefetch_used_bytes},
                      {"wasted_bytes", s.prefetch_wasted_bytes}, {"late_bytes", s.prefetch_late_bytes},
                      {"kernel_bytes", s.prefetch_kernel_bytes}};
  json["writes"] = {{"requests", s.write_requests}, {"received_bytes", s.write_received_bytes},
                    {"volume_bytes", s.write_volume_bytes}, {"sealed_bodies", s.sealed_bodies},
                    {"deduplicated_bodies", s.deduplicated_bodies}, {"journal_bytes", s.journal_bytes},
                    {"journal_batches", s.journal_batches}, {"syncs", s.syncs}, {"index_commits", s.index_commits},
                    {"checkpoints", s.checkpoints}};
  json["reclaim"] = {{"bytes", s.reclaimed_bytes}, {"punched_ranges", s.punched_ranges}, {"removed_extents", s.removed_extents}, {"moved_bodies", s.moved_bodies}, {"moved_bytes", s.moved_bytes}, {"lost_names", s.lost_names}};
  Json& evictions = json["evictions"] = {{"objects", s.eviction_objects}, {"bytes", s.eviction_bytes}};
  for (const auto& [name, evicted] : std::initializer_list<std::pair<std::string, const StoreStatus::Evicted&>>{
           {"background", s.evicted_ahead}, {"direct", s.evicted_waited_for}, {"lease_broken", s.evicted_lease_broken},
           {"age_below_1min", s.evicted_below_minute}, {"age_below_1h", s.evicted_below_hour},
           {"age_below_1d", s.evicted_below_day}, {"age_above_1d", s.evicted_older}}) {
    evictions[name + "_objects"] = evicted.objects;
    evictions[name + "_bytes"] = evicted.bytes;
  }
  evictions["coldest_age_s"] = s.coldest_age_ms < 0 ? Json() : Json(s.coldest_age_ms / 1000);
  evictions.update({{"leases_broken", s.eviction_leases_broken}, {"refused", s.eviction_refused}, {"came_back", s.eviction_came_back},
                    {"remembered_units", s.eviction_remembered_units}, {"known_objects", s.eviction_known_objects},
                    {"known_units", s.eviction_known_units}, {"memory_bytes", s.eviction_memory_bytes}});
  json["leases"] = {{"objects", s.leased_objects}};
  json["pins"] = {{"objects", s.pinned_objects}, {"bytes", s.pinned_bytes}};
  json["scrub"] = {{"running", s.scrub_running}, {"passes", s.scrub_passes}, {"bodies", s.scrub_bodies}, {"bytes", s.scrub_bytes},
                   {"damaged", s.scrub_damaged}, {"unreadable", s.scrub_unreadable},
                   {"last_pass_s", s.scrub_ended_ns == 0 ? Json() : Json(s.scrub_ended_ns / 1'000'000'000)}};
  json["peers"] = peers_json(s);
  json["held_for_peers_bytes"] = s.held_for_peers_bytes;
  json["held_for_peer"] = s.held_for_peer;
  json["peers_problem"] = s.peers_problem;
  json["caretaker"] = caretaker_json(driver);
  json["errors"] = {{"checksum", s.errors_checksum}, {"volume_read", s.errors_volume_read}, {"volume_write", s.errors_volume_write},
                    {"journal", s.errors_journal}, {"index", s.errors_index}, {"no_space", s.errors_no_space}};
  json["recovery"] = {{"unclean_start", s.unclean_start}, {"index_rebuilt", s.index_rebuilt},
                      {"replayed_batches", s.replayed_batches}, {"verified_bodies", s.verified_bodies},
                      {"dropped_bodies", s.dropped_bodies}, {"records_left_out", s.records_left_out},
                      {"swept_files", s.swept_files}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

namespace {

// The value of a label, as Prometheus' text format writes it.
std::string label_text(const Json& value) {
  std::string escaped;
  for (const char c : value.get<std::string>()) {
    if (c == '\\' || c == '"') escaped += '\\';
    c == '\n' ? escaped += "\\n" : escaped += c;
  }
  return '"' + escaped + '"';
}

void add_metric(std::string& text, std::string_view name, std::string_view labels, const Json& value) {
  if (value.is_boolean()) text += fmt::format("kvcachefs_{}{} {}\n", name, labels, value.get<bool>() ? 1 : 0);
  else if (value.is_number()) text += fmt::format("kvcachefs_{}{} {}\n", name, labels, value.dump());
}

void add_metrics(std::string& text, std::string_view group, std::string_view labels, const Json& fields) {
  for (const auto& [field, value] : fields.items()) add_metric(text, fmt::format("{}_{}", group, field), labels, value);
}

}  // namespace

// A metric for each number and each truth value in the status, and for each state that an alert may ask for.
std::string metrics_text(Driver& driver) {
  const Json json = Json::parse(status_json(driver));
  std::string text = fmt::format("kvcachefs_info{{version={},node={},mountpoint={},volume={}}} 1\n", label_text(json["version"]), label_text(json["node"]),
                                 label_text(json["mountpoint"]), label_text(json["volume"]["root"]));
  add_metric(text, "volume_degraded", "", json["volume"]["state"] != "ok");
  add_metric(text, "peers_unknown", "", json["peers_problem"] != "");
  add_metric(text, "caretaker_failed", "", json["caretaker"]["problem"] != "");
  for (const auto& [name, value] : json.items()) value.is_object() ? add_metrics(text, name, "", value) : add_metric(text, name, "", value);
  std::map<std::string, std::string> of_peers;  // the lines of one metric stand together
  for (const Json& peer : json["peers"]) {
    const std::string labels = fmt::format("{{peer={}}}", label_text(peer["node"]));
    add_metric(of_peers["live"], "peer_live", labels, peer["state"] == "live");
    for (const auto& [field, value] : peer.items()) add_metric(of_peers[field], "peer_" + field, labels, value);
  }
  for (const auto& [field, lines] : of_peers) text += lines;
  return text;
}

std::string options_text(Driver& driver) {
  std::string text;
  for (const OptionText& option : store_options_text(driver.store->options())) text += option.name + "=" + option.value + "\n";
  for (const OptionText& option : driver.options_text()) text += option.name + "=" + option.value + "\n";
  return text;
}

}  // namespace kvcachefs

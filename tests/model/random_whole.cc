// What concerns the store as a whole: background work, drain, memory, remount; and comparing all of it.
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/model/random_client.h"
#include "tests/model/random_client_wait.h"

namespace kvcachefs::testing {

void RandomClient::pump_some() {
  for (uint64_t rounds = below(4); rounds > 0; --rounds) store_->pump();
}

void RandomClient::drain() {
  note("drain");
  const bool sync = one_in(2);
  auto done = wait<void>([&](auto reply) { store_->drain(sync, std::move(reply)); });
  same_code(code_of(done), Reference::kGood);
  for (const EntityPtr& entity : reference_.reachable()) {
    const bool written = std::any_of(open_.begin(), open_.end(), [&](const OpenFile& file) { return file.entity == entity && file.request.write; });
    if (!written && !entity->write_failed && !entity->bytes.empty()) entity->may_be_emptied = false;
  }
}

void RandomClient::drop_caches() {
  note("drop caches");
  store_->drop_caches();
}

void RandomClient::set_memory() {
  const char* const values[] = {"16M", "24M", "64M"};
  const char* value = values[below(3)];
  note(fmt::format("memory = {}", value));
  same_code(code_of(store_->set_option("memory", value)), Reference::kGood);
}

void RandomClient::check_figures() {
  note("status");
  const StoreStatus status = store_->status();
  auto same = [&](const char* what, uint64_t seen, uint64_t expected) {
    if (seen != expected) differ(fmt::format("status: {} {}, expected {}", seen, what, expected));
  };
  same("open handles", status.open_handles, open_.size());
  same("waiting writes", status.waiting_writes, 0);
  same("checksum errors", status.errors_checksum, 0);
  same("volume errors", status.errors_volume_read + status.errors_volume_write + status.errors_journal + status.errors_index, 0);
  same("quarantined", status.objects_quarantined, 0);
  if (!setting_.tight) same("errors for space", status.errors_no_space, 0);
  if (setting_.tight && status.physical_bytes > status.limit_bytes)
    differ(fmt::format("{} on the volume ({} live, {} reclaimable), the capacity is {}", status.physical_bytes,
                       status.live_bytes, status.reclaimable_bytes, status.limit_bytes));
  constexpr uint64_t kHeadersBytes = 256 * kKiB;  // of pack extents, which are not counted
  if (setting_.tight && store_.allocated_bytes() > status.limit_bytes + kHeadersBytes)
    differ(fmt::format("extents have {} bytes, the capacity is {}", store_.allocated_bytes(), status.limit_bytes));
}

// What a full volume kept from being written is given up: nothing promises it across a mount.
void RandomClient::before_unmount() {
  release_all();
  for (const EntityPtr& entity : reference_.reachable()) {
    if (!entity->write_failed || failed()) continue;
    SetAttributes change;
    change.size_bytes = 0;
    auto done = wait<Stat>([&](auto reply) { store_->set_attributes(entity->id, nullptr, change, caller(), std::move(reply)); });
    if (!same_code(code_of(done), Reference::kGood)) return;
    note_emptied(*entity);
    entity->perhaps_changed(start_ns_);
  }
}

void RandomClient::remount() {
  const bool without_index = one_in(2);
  note(without_index ? "remount, the index deleted" : "remount");
  before_unmount();
  if (failed()) return;
  store_.unmount();
  if (without_index) std::filesystem::remove_all(store_.root() + "/nodes/test/index");
  store_.mount();
  verify();
}

// Whatever the daemon was doing: what was drained is there again.
void RandomClient::crash_after_drain() {
  const bool without_index = one_in(2);
  note(without_index ? "drain and crash, the index deleted" : "drain and crash");
  before_unmount();
  if (failed()) return;
  drain();
  if (failed()) return;
  if (without_index) std::filesystem::remove_all(store_.root() + "/nodes/test/index");
  store_.crash();
  verify();
}

bool RandomClient::verify() {
  for (const EntityPtr& entity : reference_.reachable()) {
    if (failed()) break;
    auto stat = store_->stat(entity->id);
    if (!same_code(code_of(stat), Reference::kGood)) break;
    compare_stat(*entity, *stat);
    compare_xattrs(*entity);
    if (entity->is_directory()) compare_directory(entity);
    for (const auto& [name, child] : entity->names) {
      auto found = store_->lookup(entity->id, name, caller());
      if (!same_code(code_of(found), Reference::kGood)) return false;
      compare_stat(*child, *found);
    }
    if (entity->is_regular()) compare_content(entity);
  }
  return !failed() && !::testing::Test::HasFailure();
}

bool RandomClient::finish() {
  start_ns_ = now();
  note("the end: all removed");
  release_all();
  for (bool any = true; any && !failed();) {
    any = false;
    for (const EntityPtr& directory : reference_.directories())
      for (auto names = directory->names; const auto& [name, entity] : names) {
        if (entity->is_directory() && !entity->names.empty()) continue;
        any = true;
        auto done = wait<void>([&](auto reply) {
          if (entity->is_directory())
            store_->remove_directory(directory->id, name, std::move(reply));
          else
            store_->unlink(directory->id, name, caller(), std::move(reply));
        });
        if (!same_code(code_of(done), Reference::kGood)) return false;
        Reference::unlink(directory, name, start_ns_);
      }
  }
  drain();
  store_.settle();
  if (failed() || !verify()) return false;
  // What was being read ahead of a reader holds its memory until it arrives.
  for (int i = 0; i < 10'000 && store_->status().memory_used_bytes != 0; ++i)
    if (!store_->pump()) usleep(1000);
  const StoreStatus status = store_->status();
  if (status.live_bytes != 0) differ(fmt::format("{} live bytes in an empty store", status.live_bytes));
  if (status.staged_bytes != 0) differ(fmt::format("{} staged bytes in an empty store", status.staged_bytes));
  if (status.memory_used_bytes != 0) differ(fmt::format("{} bytes of memory used by an empty store", status.memory_used_bytes));
  if (status.objects_total != 0) differ(fmt::format("{} objects in an empty store", status.objects_total));
  check_figures();
  return !failed();
}

}  // namespace kvcachefs::testing

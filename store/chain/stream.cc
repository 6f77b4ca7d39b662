#include "store/chain/stream.h"

#include <algorithm>
#include <cstring>

#include "store/base/ascii.h"

namespace kvcachefs {

using ascii::is_alnum;
using ascii::is_digit;
using ascii::is_hex;
using ascii::is_letter;

namespace {

constexpr uint64_t mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  return x ^ (x >> 32);
}

uint64_t absorb(uint64_t seed, std::string_view text) {
  uint64_t h = mix(seed + text.size() * 0x9e3779b97f4a7c15ULL);
  while (text.size() >= 8) {
    uint64_t word;
    std::memcpy(&word, text.data(), 8);
    h = mix(h ^ word);
    text.remove_prefix(8);
  }
  uint64_t word = 0;
  if (!text.empty()) std::memcpy(&word, text.data(), text.size());
  return mix(h ^ word);
}

bool all_hex(std::string_view token) { return std::all_of(token.begin(), token.end(), is_hex); }
size_t count_digits(std::string_view token) {
  return static_cast<size_t>(std::count_if(token.begin(), token.end(), is_digit));
}

// 8-4-4-4-12
bool starts_with_uuid(std::string_view text) {
  if (text.size() < 36 || (text.size() > 36 && is_alnum(text[36]))) return false;
  for (size_t i = 0; i < 36; ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (dash ? text[i] != '-' : !is_hex(text[i])) return false;
  }
  return true;
}

// Long enough that no word or small number is taken for a hash: a model's "7b" or "3072" stays a word.
bool looks_like_hash(std::string_view token) {
  if (token.starts_with("0x") && token.size() > 8) token.remove_prefix(2);
  const size_t digits = count_digits(token);
  if (token.size() >= 6 && all_hex(token)) return digits > 0 || token.size() >= 16;
  return token.size() >= 20 && digits >= 3;  // other alphabets: base32, base58
}

// "tmp" and random digits: all such files of one writer still form one list.
bool is_random_temporary(std::string_view token) {
  return token.size() >= 9 && token.starts_with("tmp") && all_hex(token.substr(3));
}

// A rank, group, layer or k/v mark: up to four digits after up to four letters or "0x", or a single letter.
bool is_small_field(std::string_view token) {
  if (token.size() == 1) return true;
  size_t digits = 0;
  while (digits < token.size() && is_digit(token[token.size() - 1 - digits])) ++digits;
  const std::string_view head = token.substr(0, token.size() - digits);
  if (digits == 0 || digits > 4) return false;
  return head.size() <= 4 && std::all_of(head.begin(), head.end(), is_letter);
}
std::string_view small_field_head(std::string_view token) {
  if (token.size() == 1 && is_letter(token[0])) return {};
  while (!token.empty() && is_digit(token.back())) token.remove_suffix(1);
  return token;
}

struct Shape {
  NameStem stem;
  bool has_hash = false;
};

// Walks over the name's alphanumeric tokens and the separators between them.
Shape shape_of(NameStem parent, std::string_view name, bool directory) {
  Shape shape{{mix(parent.stem + 1), mix(parent.sibling + 1)}, false};
  const auto add = [&](std::string_view in_stem, std::string_view in_sibling) {
    shape.stem.stem = absorb(shape.stem.stem, in_stem);
    shape.stem.sibling = absorb(shape.stem.sibling, in_sibling);
  };
  // Fan-out: a directory that is, or begins with, two or three hexadecimal digits.
  size_t fan_out = 0;
  if (directory) {
    while (fan_out < name.size() && fan_out < 4 && is_hex(name[fan_out])) ++fan_out;
    const bool ends = fan_out == name.size() || name[fan_out] == '_' || name[fan_out] == '-';
    if (!ends || fan_out == 0 || fan_out > 3 || (fan_out == 1 && fan_out != name.size())) fan_out = 0;
  }
  for (size_t at = 0; at < name.size();) {
    const std::string_view rest = name.substr(at);
    size_t length = 1;
    if (!is_alnum(rest[0])) {
      add(rest.substr(0, 1), rest.substr(0, 1));
    } else {
      while (length < rest.size() && is_alnum(rest[length])) ++length;
      if (rest.starts_with("0x")) length = std::max<size_t>(length, 2);
      if (starts_with_uuid(rest)) length = 36;
      const std::string_view token = rest.substr(0, length);
      if (length == 36 || looks_like_hash(token) || (at == 0 && length == fan_out)) {
        shape.has_hash = true;
        add("*", token);
      } else if (token.starts_with("0x") && token.size() <= 6) {
        add(token, "0x#");
      } else if (is_random_temporary(token)) {
        add("tmp*", "tmp*");
      } else if (is_small_field(token)) {
        add(token, small_field_head(token));
        add("", "#");
      } else {
        add(token, token);
      }
    }
    at += length;
  }
  return shape;
}

uint64_t member_key(uint64_t stem, uint64_t member) { return mix(stem ^ mix(member + 0x5bd1e995)); }

}  // namespace

ChainKey chain_key(ObjectId parent, std::string_view name) {
  const uint64_t h = absorb(mix(parent.value), name);
  return ChainKey{h == 0 ? 1 : h};
}

NameStem directory_stem(NameStem parent, std::string_view name) { return shape_of(parent, name, true).stem; }

NameStem file_stem(NameStem parent, std::string_view name) {
  Shape shape = shape_of(parent, name, false);
  if (!shape.has_hash) {
    const size_t dot = name.rfind('.');
    std::string_view suffix = dot == std::string_view::npos || dot == 0 ? std::string_view{} : name.substr(dot);
    if (suffix.size() > 16 || count_digits(suffix) > 0) suffix = {};
    return NameStem{absorb(mix(parent.stem + 2), suffix), 0};
  }
  if (shape.stem.sibling == 0) shape.stem.sibling = 1;
  return shape.stem;
}

size_t StreamTable::KeyHash::operator()(const Key& key) const noexcept {
  return static_cast<size_t>(member_key(key.stem, key.thread_id));
}

StreamTable::StreamTable(size_t max_streams, size_t max_handles)
    : slots_(std::max<size_t>(max_streams, 1)), max_handles_(std::max<size_t>(max_handles, 1)) {
  by_key_.reserve(slots_.size());
}

void StreamTable::unlink(uint32_t slot) {
  const Slot& s = slots_[slot];
  (s.newer == kNone ? newest_ : slots_[s.newer].older) = s.older;
  (s.older == kNone ? oldest_ : slots_[s.older].newer) = s.newer;
}

void StreamTable::link_newest(uint32_t slot) {
  slots_[slot].newer = kNone;
  slots_[slot].older = newest_;
  (newest_ == kNone ? oldest_ : slots_[newest_].newer) = slot;
  newest_ = slot;
}

StreamId StreamTable::of(uint64_t thread_id, uint64_t stem) {
  const Key key{thread_id, stem};
  auto found = by_key_.find(key);
  if (found != by_key_.end()) {
    const uint32_t slot = found->second;
    if (newest_ != slot) {
      unlink(slot);
      link_newest(slot);
    }
    return StreamId{slot, slots_[slot].generation};
  }
  uint32_t slot;
  if (used_ < slots_.size()) {
    slot = used_++;
  } else {
    slot = oldest_;
    unlink(slot);
    by_key_.erase(slots_[slot].key);
  }
  slots_[slot].key = key;
  if (++slots_[slot].generation == 0) slots_[slot].generation = 1;
  link_newest(slot);
  by_key_.emplace(key, slot);
  return StreamId{slot, slots_[slot].generation};
}

bool StreamTable::live(StreamId stream) const {
  return stream.valid() && stream.slot < used_ && slots_[stream.slot].generation == stream.generation;
}

uint64_t StreamTable::stem(StreamId stream) const { return live(stream) ? slots_[stream.slot].key.stem : 0; }

void StreamTable::bind_handle(uint64_t handle, StreamId stream) {
  // A caller that never unbinds must not grow the table; a dropped handle falls back to (thread id, stem).
  if (handles_.size() >= max_handles_ && !handles_.contains(handle)) handles_.erase(handles_.begin());
  handles_[handle] = stream;
}

void StreamTable::unbind_handle(uint64_t handle) { handles_.erase(handle); }

StreamId StreamTable::of_handle(uint64_t handle) const {
  auto found = handles_.find(handle);
  return found != handles_.end() && live(found->second) ? found->second : StreamId{};
}

bool BurstClock::tick(int64_t now, int64_t min_gap_ns, int64_t first_gap_ns, int64_t max_gap_ns) {
  if (last_ == kNever) {
    last_ = now;
    mean_gap_ns_ = -1;
    return false;
  }
  const int64_t gap = std::max<int64_t>(now - last_, 0);
  last_ = now;
  const int64_t limit = mean_gap_ns_ < 0 ? first_gap_ns : std::clamp(10 * mean_gap_ns_, min_gap_ns, max_gap_ns);
  if (gap > limit) {
    mean_gap_ns_ = -1;
    return false;
  }
  mean_gap_ns_ = mean_gap_ns_ < 0 ? gap : (7 * mean_gap_ns_ + gap) / 8;
  return true;
}

CohortTracker::CohortTracker(int64_t joined_start_ns, int64_t idle_ns, size_t max_members)
    : joined_start_ns_(joined_start_ns), idle_ns_(idle_ns), max_members_(std::max<size_t>(max_members, 16)) {}

uint64_t CohortTracker::cohort(uint64_t stem, uint64_t member, int64_t now) {
  const uint64_t key = member_key(stem, member);
  auto found = members_.find(key);
  if (found != members_.end() && now - found->second.last_seen <= idle_ns_) {
    found->second.last_seen = now;
    return found->second.cohort;
  }
  if (members_.size() >= max_members_) forget_idle(now);
  Newest& newest = newest_[stem];
  if (newest.cohort == 0 || now - newest.last_start > joined_start_ns_) newest.cohort = next_cohort_++;
  newest.last_start = now;
  members_[key] = Member{newest.cohort, now};
  return newest.cohort;
}

void CohortTracker::forget_idle(int64_t now) {
  std::erase_if(members_, [&](const auto& entry) { return now - entry.second.last_seen > idle_ns_; });
  std::erase_if(newest_, [&](const auto& entry) { return now - entry.second.last_start > idle_ns_; });
  // All are active: start again rather than grow; each then starts a cohort of its own.
  if (members_.size() >= max_members_) {
    members_.clear();
    newest_.clear();
  }
}

}  // namespace kvcachefs

#include "store/tree/temporary_names.h"

#include <algorithm>
#include <array>
#include <functional>

#include "store/base/ascii.h"

namespace kvcachefs {

namespace {

constexpr std::array<std::string_view, 7> kTemporary = {"tmp", "temp", "part", "partial", "incomplete", "inprogress", "unfinished"};
constexpr std::array<std::string_view, 5> kLocked = {"lock", "lck", "pid", "mutex", "semaphore"};

template <class Is>
bool any_word(std::string_view name, const Is& is) {
  for (size_t begin = 0; begin < name.size();) {
    size_t end = begin;
    while (end < name.size() && ascii::is_alnum(name[end])) ++end;
    if (end > begin && is(name.substr(begin, end - begin))) return true;
    begin = end + 1;
  }
  return false;
}

template <class Words>
bool has_word(std::string_view name, const Words& words) {
  return any_word(name, [&](std::string_view word) {
    return std::any_of(words.begin(), words.end(), [&](std::string_view known) { return ascii::equal_but_for_case(word, known); });
  });
}

}  // namespace

// A leading dot hides a name, and does not begin an extension.
uint64_t TemporaryNames::kind_of(ObjectId parent, std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return std::hash<ObjectId>()(parent) | 1;
  return std::hash<std::string_view>()(name.substr(dot)) & ~uint64_t{1};
}

bool TemporaryNames::created(ObjectId parent, std::string_view name) {
  const uint64_t kind = kind_of(parent, name);
  bool learned = false;
  {
    std::lock_guard lock(mutex_);
    if (kinds_.size() >= kMostKinds && !kinds_.contains(kind)) kinds_.clear();
    Kind& known = kinds_[kind];
    learned = known.renamed >= kEnough && 2 * known.renamed >= known.created;
    if (++known.created >= kMostCounted) {  // so that later renames and creations count more
      known.created /= 2;
      known.renamed /= 2;
    }
  }
  return (learned || has_word(name, kTemporary)) && !has_word(name, kLocked);
}

bool TemporaryNames::may_be_renamed(std::string_view name) {
  return any_word(name, [](std::string_view word) {
    const auto is_word = [&](std::string_view known) { return ascii::equal_but_for_case(word, known); };
    if (std::any_of(kTemporary.begin(), kTemporary.end(), is_word) || ascii::equal_but_for_case(word.substr(0, 3), "tmp")) return true;
    return word.size() > 4 && ascii::equal_but_for_case(word.substr(0, 4), "temp") && ascii::is_digit(word[4]);
  });
}

bool TemporaryNames::is_expected_to_be_renamed(ObjectId parent, std::string_view name) const {
  if (!may_be_renamed(name)) return false;
  std::lock_guard lock(mutex_);
  const auto known = kinds_.find(kind_of(parent, name));
  return known == kinds_.end() || known->second.created < kKept || 16 * known->second.renamed >= known->second.created;
}

bool TemporaryNames::is_lock(std::string_view name) { return has_word(name, kLocked); }

void TemporaryNames::renamed(ObjectId parent, std::string_view from, ObjectId new_parent, std::string_view to) {
  const uint64_t kind = kind_of(parent, from);
  if (kind == kind_of(new_parent, to)) return;  // "log.1" becomes "log.2"
  std::lock_guard lock(mutex_);
  if (auto known = kinds_.find(kind); known != kinds_.end()) ++known->second.renamed;
}

}  // namespace kvcachefs

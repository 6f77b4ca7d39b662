#include "store/evict/reuse_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include <fmt/format.h>

namespace kvcachefs::evict {

namespace {
constexpr double kPseudoVisits = 20;        // weight of the class it leans on
constexpr double kRatioPseudoVisits = 10;   // the same for the ratio between the levels of a class and its parent
constexpr double kRemembered = 4096;        // visits: above this, counts are halved
constexpr double kPriorChance = 0.1;        // of re-use in the first bin, without data
constexpr double kPriorFade = 0.9;          // from bin to bin, so that without data least recently used wins
constexpr double kMostLean = 0.95;
constexpr size_t kUnfullClass = 3;
constexpr double kPriorUnfull = 0.1;        // of its parent's chance: the next request is for the longer unit in its place
constexpr int kSmooth = 2;                  // bins on either side
constexpr double kFirstBinMs = 50;
}  // namespace

ReuseModel::ReuseModel() {
  for (int bin = 1; bin <= kBins; ++bin) {
    start_ms_[static_cast<size_t>(bin)] =
        std::ldexp(kFirstBinMs * (1 + (bin - 1) % kPerDoubling / double{kPerDoubling}), (bin - 1) / kPerDoubling);
  }
  add_tree(-1);
  begin();
  while (!advance()) {
  }
}

// Adds classes in the order of class_in_tree(): parents before their children. `common` is the first class of the common tree, or -1 when
// adding that tree itself.
void ReuseModel::add_tree(int32_t common) {
  const auto first = static_cast<int32_t>(classes_.size());
  const auto add = [&](int32_t parent) {
    const auto own = static_cast<int32_t>(classes_.size()) - first;
    classes_.emplace_back().parent = common < 0 ? parent : common + own;
    return own;
  };
  const int32_t all = add(-1);
  const int32_t line = add(all);
  add(all);
  add(all);
  for (int turn = 0; turn < kTurns; ++turn) {
    const int32_t of_turn = add(line);
    for (int size = 0; size < kSizes; ++size) add(of_turn);
    if (turn == 0) continue;
    for (int size = 0; size < kSizes; ++size)
      for (int pause = 0; pause < kPauses; ++pause) add(of_turn + 1 + size);
  }
}

void ReuseModel::separate_stems() {
  if (stems_separated()) return;
  for (int stem = 0; stem < kStems; ++stem) add_tree(0);
  next_rates_.resize(classes_.size());
  for (size_t i = kClasses; i < classes_.size(); ++i) classes_[i].rate = classes_[i % kClasses].rate;
  propagated_ = classes_.size();  // a pass under way continues without the waiting nodes of the new classes
  for (size_t i = estimated_; i < kClasses; ++i) estimate(i);
  estimated_ = std::max(estimated_, kClasses);
}

int ReuseModel::bin_of(int64_t age_ms) {
  const uint64_t units = static_cast<uint64_t>(std::max<int64_t>(age_ms, 0)) / static_cast<uint64_t>(kFirstBinMs);
  if (units == 0) return 0;
  const int doubling = static_cast<int>(std::bit_width(units)) - 1;
  const uint64_t part = (doubling >= 1 ? units >> (doubling - 1) : units << 1) & 1;
  return std::min(1 + doubling * kPerDoubling + static_cast<int>(part), kBins - 1);
}

size_t ReuseModel::class_in_tree(const Past& past) {
  if (past.kind != NodeKind::kLine) return past.kind == NodeKind::kTrunk ? 2 : 3;
  const size_t turn = static_cast<size_t>(std::clamp<int>(past.turn, 1, kTurns) - 1);
  const size_t size = static_cast<size_t>(std::min(static_cast<int>(std::bit_width(past.fresh)), kSizes - 1));
  const size_t of_turn = 4 + turn * (1 + kSizes) + (turn > 1 ? turn - 1 : 0) * kSizes * kPauses;
  if (turn == 0) return of_turn + 1 + size;
  return of_turn + 1 + kSizes + size * kPauses + std::min<size_t>(past.pause, kPauses - 1);
}

size_t ReuseModel::class_of(const Past& past) const {
  const size_t own = class_in_tree(past);
  if (!stems_separated()) return own;
  return (1 + std::min<size_t>(past.stem, kStems - 1)) * kClasses + own;
}

void ReuseModel::count(const Past& past, int64_t age_ms, float weight, PerBin Class::*table) {
  const auto bin = static_cast<size_t>(bin_of(age_ms));
  for (auto at = static_cast<int32_t>(class_of(past)); at >= 0; at = classes_[static_cast<size_t>(at)].parent) {
    float& value = (classes_[static_cast<size_t>(at)].*table)[bin];
    value = std::max(0.0f, value + weight);
  }
  counted_ = std::max(0.0, counted_ + double{weight});
}

float ReuseModel::rate(const Past& past, int64_t age_ms) const {
  const auto bin = static_cast<size_t>(bin_of(age_ms));
  const auto& rate = classes_[class_of(past)].rate;
  const double part = (static_cast<double>(age_ms) - start_ms_[bin]) / (start_ms_[bin + 1] - start_ms_[bin]);
  return rate[bin] + (rate[bin + 1] - rate[bin]) * static_cast<float>(std::clamp(part, 0.0, 1.0));
}

void ReuseModel::begin() {
  const bool halve = counted_ > kRemembered;
  for (Class& c : classes_) {
    c.waiting = {};
    if (!halve) continue;
    for (float& value : c.hit) value /= 2;
    for (float& value : c.gone) value /= 2;
  }
  if (halve) counted_ /= 2;
  next_rates_.resize(classes_.size());
  propagated_ = 0;
  estimated_ = 0;
}

void ReuseModel::add_waiting(const Past& past, int64_t age_ms) {
  ++classes_[class_of(past)].waiting[static_cast<size_t>(bin_of(age_ms))];
}

bool ReuseModel::advance() {
  constexpr size_t kPropagatedAtOnce = 64;
  if (propagated_ < classes_.size()) {  // children before parents
    for (size_t n = 0; n < kPropagatedAtOnce && propagated_ < classes_.size(); ++n, ++propagated_) {
      const Class& c = classes_[classes_.size() - 1 - propagated_];
      if (c.parent < 0) continue;
      Class& parent = classes_[static_cast<size_t>(c.parent)];
      for (size_t bin = 0; bin < kBins; ++bin) parent.waiting[bin] += c.waiting[bin];
    }
    return false;
  }
  if (estimated_ < classes_.size()) estimate(estimated_++);
  if (estimated_ < classes_.size()) return false;
  for (size_t i = 0; i < classes_.size(); ++i) classes_[i].rate = next_rates_[i];
  return true;
}

// Computes the chance of re-use in each age bin, for nodes that reach it (a waiting node is censored at its age), then the index.
void ReuseModel::estimate(size_t index) {
  Class& c = classes_[index];
  const Class* parent = c.parent < 0 ? nullptr : &classes_[static_cast<size_t>(c.parent)];
  std::array<double, kBins> risk{};
  double reached = 0, hits = 0, expected = 0;
  for (size_t bin = kBins; bin-- > 0;) {
    const double left = double{c.gone[bin]} + double{c.waiting[bin]};
    risk[bin] = reached + double{c.hit[bin]} + left / 2;
    reached += double{c.hit[bin]} + left;
    hits += double{c.hit[bin]};
    if (parent != nullptr) expected += risk[bin] * double{parent->chance[bin]};
  }
  const double prior = index == kUnfullClass ? kPriorUnfull : 1;
  if (parent != nullptr && reached <= 0 && index != kUnfullClass) {
    c.chance = parent->chance;
    next_rates_[index] = next_rates_[static_cast<size_t>(c.parent)];
    return;
  }
  const double ratio = prior * (hits + kRatioPseudoVisits) / (prior * expected + kRatioPseudoVisits);
  for (int bin = 0; bin < kBins; ++bin) {
    double hit = 0, at_risk = 0;
    for (int near = std::max(0, bin - kSmooth); near <= std::min(kBins - 1, bin + kSmooth); ++near) {
      hit += double{c.hit[static_cast<size_t>(near)]};
      at_risk += risk[static_cast<size_t>(near)];
    }
    constexpr double kWindow = 2 * kSmooth + 1;
    const auto at = static_cast<size_t>(bin);
    const double lean = parent == nullptr ? kPriorFade * (bin > 0 ? double{c.chance[at - 1]} : kPriorChance)
                                          : std::min(kMostLean, ratio * double{parent->chance[at]});
    c.chance[at] = static_cast<float>((hit / kWindow + kPseudoVisits * lean) / (at_risk / kWindow + kPseudoVisits));
  }
  fill_rates(c, next_rates_[index]);
}

void ReuseModel::fill_rates(Class& c, std::array<float, kBins + 1>& rate) const {
  for (size_t age = 0; age < kBins; ++age) {
    double waits = 1, used = 0, time = 0, best = 0;
    for (size_t bin = age; bin + 1 < kBins; ++bin) {
      const double uses = waits * double{c.chance[bin]};
      used += uses;
      time += (waits - uses / 2) * (start_ms_[bin + 1] - start_ms_[bin]);
      waits -= uses;
      if (used > best * time) best = used / time;
    }
    rate[age] = static_cast<float>(best);
  }
  rate[kBins] = rate[kBins - 1];
}

// Saves the tables. Waiting nodes are counted as gone, since after a restart they come back as new.
void ReuseModel::save(ByteWriter& out) const {
  out.varint(classes_.size());
  out.varint(kBins);
  const auto put = [&](float value) { out.u32(std::bit_cast<uint32_t>(value)); };
  for (const Class& c : classes_) {
    uint64_t filled = 0;
    for (size_t bin = 0; bin < kBins; ++bin)
      if (c.hit[bin] > 0 || c.gone[bin] > 0 || c.waiting[bin] > 0) filled |= uint64_t{1} << bin;
    out.varint(filled);
    for (size_t bin = 0; bin < kBins; ++bin) {
      if ((filled >> bin & 1) == 0) continue;
      put(c.hit[bin]);
      put(c.gone[bin] + c.waiting[bin]);
    }
  }
}

Status ReuseModel::restore(ByteReader& in) {
  const uint64_t classes = in.varint(), bins = in.varint();
  if (!in.ok() || bins != kBins || (classes != kClasses && classes != kClasses * (1 + kStems))) {
    return fail(Code::kCorrupt, fmt::format("tables of {} classes and {} ages", classes, bins));
  }
  if (classes > kClasses) separate_stems();
  const auto get = [&](float& value) {
    value = std::bit_cast<float>(in.u32());
    return std::isfinite(value) && value >= 0 && value < 1e9f;
  };
  for (Class& c : classes_) {
    const uint64_t filled = in.varint();
    if (filled >> kBins != 0) return fail(Code::kCorrupt, "ages beyond the last");
    for (size_t bin = 0; bin < kBins; ++bin) {
      if ((filled >> bin & 1) != 0 && (!get(c.hit[bin]) || !get(c.gone[bin])))
        return fail(Code::kCorrupt, "a count that is none");
    }
  }
  if (!in.ok()) return fail(Code::kCorrupt, "tables cut short");
  counted_ = 0;  // so that begin() halves nothing: the tables are as they were saved
  begin();
  while (!advance()) {
  }
  for (size_t bin = 0; bin < kBins; ++bin) counted_ += double{classes_[0].hit[bin]} + double{classes_[0].gone[bin]};
  return {};
}

}  // namespace kvcachefs::evict

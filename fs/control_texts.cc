#include "fs/control_texts.h"

#include <mutex>
#include <utility>

namespace kvcachefs {

namespace {
// With what the two containers have beside it.
size_t bytes_of(const std::string& text) {
  constexpr size_t kNodesBytes = 128;
  return text.capacity() + kNodesBytes;
}
}  // namespace

ControlTexts::Texts ControlTexts::extract(Texts::iterator kept) {
  Texts extracted;
  bytes_ -= bytes_of(kept->text);
  by_file_.erase(kept->opened);
  extracted.splice(extracted.begin(), texts_, kept);
  return extracted;
}

void ControlTexts::keep(uint64_t opened, std::string text) {
  text.shrink_to_fit();
  Texts made, dropped;  // allocated and freed without the lock
  made.push_back({opened, std::move(text)});
  std::lock_guard lock(mutex_);
  if (!by_file_.emplace(opened, made.begin()).second) return;  // another request for the same file came first
  bytes_ += bytes_of(made.front().text);
  texts_.splice(texts_.end(), made);
  while (bytes_ > most_bytes_ && texts_.size() > 1) dropped.splice(dropped.end(), extract(texts_.begin()));
}

uint64_t ControlTexts::open(std::string text) {
  uint64_t opened = 0;
  {
    std::lock_guard lock(mutex_);
    opened = ++opened_;
  }
  keep(opened, std::move(text));
  return opened;
}

void ControlTexts::renew(uint64_t opened, std::string text) { keep(opened, std::move(text)); }

void ControlTexts::close(uint64_t opened) {
  Texts closed;
  std::lock_guard lock(mutex_);
  if (const auto found = by_file_.find(opened); found != by_file_.end()) closed = extract(found->second);
}

std::optional<std::string> ControlTexts::read(uint64_t opened, size_t offset, size_t size) const {
  std::lock_guard lock(mutex_);
  const auto found = by_file_.find(opened);
  if (found == by_file_.end()) return std::nullopt;
  const std::string& text = found->second->text;
  return offset < text.size() ? text.substr(offset, size) : std::string();
}

size_t ControlTexts::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace kvcachefs

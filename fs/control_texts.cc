#include "fs/control_texts.h"

#include <mutex>
#include <utility>

namespace kvcachefs {

uint64_t ControlTexts::open(std::string text) {
  uint64_t opened = 0;
  {
    std::lock_guard lock(mutex_);
    opened = ++opened_;
  }
  renew(opened, std::move(text));
  return opened;
}

void ControlTexts::renew(uint64_t opened, std::string text) {
  text.shrink_to_fit();
  const size_t bytes = text.capacity();
  Texts::List made = Texts::make(opened, bytes, std::move(text)), dropped;
  std::lock_guard lock(mutex_);
  if (!texts_.insert(made)) return;  // another request for the same file came first
  while (texts_.bytes() > most_bytes_ && texts_.count() > 1) dropped.splice(dropped.end(), texts_.extract_oldest());
}

void ControlTexts::close(uint64_t opened) {
  Texts::List closed;
  std::lock_guard lock(mutex_);
  closed = texts_.extract(opened);
}

std::optional<std::string> ControlTexts::read(uint64_t opened, size_t offset, size_t size) const {
  std::lock_guard lock(mutex_);
  const std::string* text = texts_.find(opened);
  if (text == nullptr) return std::nullopt;
  return offset < text->size() ? text->substr(offset, size) : std::string();
}

size_t ControlTexts::bytes() const {
  std::lock_guard lock(mutex_);
  return texts_.bytes();
}

}  // namespace kvcachefs

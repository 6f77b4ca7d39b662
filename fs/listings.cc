#include "fs/listings.h"

#include <mutex>
#include <utility>

namespace kvcachefs {

ListingPage::ListingPage(uint64_t after, const std::vector<DirectoryItem>& items) : after_(after) {
  size_t bytes = 0;
  for (const DirectoryItem& item : items) bytes += item.name.size() + 1;
  names_.reserve(bytes);
  items_.reserve(items.size());
  for (const DirectoryItem& item : items) {
    items_.push_back({item.id, item.cookie, item.type_bits, static_cast<uint32_t>(names_.size())});
    names_.insert(names_.end(), item.name.begin(), item.name.end());
    names_.push_back('\0');
  }
}

void ListingPage::pass() {
  after_ = items_[next_++].cookie;
  if (!empty()) return;
  next_ = 0;  // once the page is used up, only its cookie is kept
  std::vector<Item>().swap(items_);
  std::vector<char>().swap(names_);
}

uint64_t Listings::open() {
  std::lock_guard lock(mutex_);
  return ++opened_;
}

std::optional<ListingPage> Listings::take(uint64_t listing) {
  Pages::List taken;
  {
    std::lock_guard lock(mutex_);
    taken = pages_.extract(listing);
  }
  if (taken.empty()) return std::nullopt;
  return std::move(taken.front().value);
}

void Listings::keep(uint64_t listing, ListingPage page) {
  const size_t bytes = page.bytes();
  Pages::List made = Pages::make(listing, bytes, std::move(page)), dropped;
  std::lock_guard lock(mutex_);
  dropped = pages_.extract(listing);  // put there by a concurrent request
  pages_.insert(made);
  while (pages_.bytes() > most_bytes_) dropped.splice(dropped.end(), pages_.extract_oldest());
}

size_t Listings::bytes() const {
  std::lock_guard lock(mutex_);
  return pages_.bytes();
}

}  // namespace kvcachefs

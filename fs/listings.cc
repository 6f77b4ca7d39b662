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
  next_ = 0;  // of a page that was read only the cookie stays
  std::vector<Item>().swap(items_);
  std::vector<char>().swap(names_);
}

uint64_t Listings::open() {
  std::lock_guard lock(mutex_);
  return ++opened_;
}

// With what the two containers have beside it.
size_t Listings::bytes_of(const ListingPage& page) {
  constexpr size_t kNodesBytes = 128;
  return page.bytes() + kNodesBytes;
}

Listings::Pages Listings::extract(Pages::iterator kept) {
  Pages extracted;
  bytes_ -= bytes_of(kept->page);
  by_listing_.erase(kept->listing);
  extracted.splice(extracted.end(), pages_, kept);
  return extracted;
}

std::optional<ListingPage> Listings::take(uint64_t listing) {
  Pages taken;
  {
    std::lock_guard lock(mutex_);
    const auto found = by_listing_.find(listing);
    if (found == by_listing_.end()) return std::nullopt;
    taken = extract(found->second);
  }
  return std::move(taken.front().page);
}

void Listings::keep(uint64_t listing, ListingPage page) {
  Pages kept, dropped;  // dropped ones are freed without the lock
  kept.push_back({listing, std::move(page)});
  std::lock_guard lock(mutex_);
  if (const auto before = by_listing_.find(listing); before != by_listing_.end()) dropped = extract(before->second);  // of a request beside this one
  by_listing_.emplace(listing, kept.begin());
  bytes_ += bytes_of(kept.front().page);
  pages_.splice(pages_.end(), kept);
  while (bytes_ > most_bytes_) dropped.splice(dropped.end(), extract(pages_.begin()));
}

size_t Listings::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace kvcachefs

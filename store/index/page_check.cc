#include "store/index/page_check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include <fmt/format.h>

namespace kvcachefs {

namespace {

constexpr uint64_t kNoPage = ~uint64_t{0};
constexpr uint32_t kMagic = 0xBEEFC0DE;
constexpr uint32_t kDataVersion = 1;
constexpr size_t kPageHeader = 16, kNodeHeader = 8, kDatabaseBytes = 48;
constexpr size_t kMetaBytes = kPageHeader + 24 + 2 * kDatabaseBytes + 16;
constexpr uint16_t kBranch = 1, kLeaf = 2, kOverflow = 4, kMeta = 8;
constexpr uint16_t kBigData = 1, kSubTable = 2;
constexpr uint16_t kIntegerKey = 8;  // flag of the free list's keys
constexpr uint64_t kMaxDepth = 32;   // limit of LMDB's own cursors
constexpr uint64_t kMaxKeyBytes = 511;

template <class T>
T load(ByteSpan bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

// LMDB's record of a table: in the meta page for the free list and the main table, in a row of the main table for the others.
struct Database {
  uint16_t flags = 0, depth = 0;
  uint64_t branch_pages = 0, leaf_pages = 0, overflow_pages = 0, entries = 0, root = kNoPage;

  static Database parse(ByteSpan bytes) {
    return {load<uint16_t>(bytes, 4),  load<uint16_t>(bytes, 6),  load<uint64_t>(bytes, 8), load<uint64_t>(bytes, 16),
            load<uint64_t>(bytes, 24), load<uint64_t>(bytes, 32), load<uint64_t>(bytes, 40)};
  }
};

struct Node {
  ByteSpan key;
  ByteSpan data;       // of a leaf
  uint64_t child = 0;  // of a branch
  uint32_t data_bytes = 0;
  uint16_t flags = 0;
};

bool key_less(ByteSpan a, ByteSpan b, bool integers) {
  if (integers) return load<uint64_t>(a, 0) < load<uint64_t>(b, 0);
  return std::ranges::lexicographical_compare(a, b);
}

class Checker {
 public:
  Checker(const std::string& path, int fd, uint64_t file_bytes, const RowCheck& row)
      : path_(path), fd_(fd), file_bytes_(file_bytes), row_is_good_(row) {}
  ~Checker() { close(fd_); }
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  Result<uint64_t> check();

 private:
  enum class Kind : uint8_t { kFreeList, kMain, kNamed };
  struct Table {
    Kind kind;
    std::string name;
    Database expected;
    Database seen;
    Bytes last_key;
    bool any_key = false;
    bool integers() const { return kind == Kind::kFreeList; }
  };

  std::unexpected<Error> bad(uint64_t page, std::string_view why) const {
    return fail(Code::kCorrupt, fmt::format("index {}: page {}: {}", path_, page, why));
  }
  Status read(uint64_t page, uint64_t pages, Bytes& out) const;
  Status read_meta();
  Status claim(uint64_t page, uint64_t pages);
  Status check_table(Table& table);
  Status check_page(Table& table, uint64_t page, uint64_t depth, ByteSpan low, const ByteSpan* high);
  Status check_branch(Table& table, uint64_t page, uint64_t depth, ByteSpan bytes, ByteSpan low, const ByteSpan* high);
  Status check_leaf(Table& table, uint64_t page, ByteSpan bytes, ByteSpan low, const ByteSpan* high);
  Status check_row(Table& table, uint64_t page, const Node& node);
  Status check_free_list(uint64_t page, ByteSpan list);
  Result<Node> node(const Table& table, uint64_t page, ByteSpan bytes, size_t index, bool leaf) const;
  static size_t nodes(ByteSpan bytes) { return (load<uint16_t>(bytes, 12) - kPageHeader) / 2; }

  const std::string& path_;
  const int fd_;
  const uint64_t file_bytes_;
  const RowCheck& row_is_good_;
  uint64_t page_bytes_ = 0;
  uint64_t last_page_ = 0;
  uint64_t transaction_ = 0;
  Database free_list_, main_;
  std::vector<Table> named_;
  std::vector<bool> claimed_;
  uint64_t unclaimed_ = 0;
  uint64_t unused_bytes_ = 0;
};

Status Checker::read(uint64_t page, uint64_t pages, Bytes& out) const {
  out.resize(pages * page_bytes_);
  for (size_t done = 0; done < out.size();) {
    const ssize_t got = pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(page * page_bytes_ + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno(errno, fmt::format("index {}: reading page {}", path_, page));
    if (got == 0) return bad(page, "the file ends before it");
    done += static_cast<size_t>(got);
  }
  return {};
}

// There are two meta pages, written in turn; LMDB takes the one of the newer transaction and refuses the file if either is malformed.
Status Checker::read_meta() {
  uint64_t offset = 0;
  for (uint64_t which = 0; which < 2; ++which) {
    Bytes meta(kMetaBytes);
    if (pread(fd_, meta.data(), meta.size(), static_cast<off_t>(offset)) != static_cast<ssize_t>(meta.size())) {
      return bad(which, "the meta page cannot be read");
    }
    const size_t databases = kPageHeader + 24;
    const uint64_t page_bytes = load<uint32_t>(meta, databases);
    const bool sound = load<uint64_t>(meta, 0) == which && load<uint16_t>(meta, 10) == kMeta &&
                       load<uint32_t>(meta, kPageHeader) == kMagic &&
                       load<uint32_t>(meta, kPageHeader + 4) == kDataVersion && page_bytes >= 4096 &&
                       page_bytes <= 65536 && page_bytes % 4096 == 0 && (which == 0 || page_bytes == page_bytes_);
    if (!sound) return bad(which, "not a meta page of LMDB data version 1");
    page_bytes_ = offset = page_bytes;
    const uint64_t transaction = load<uint64_t>(meta, kMetaBytes - 8);
    if (which == 1 && transaction <= transaction_) continue;
    transaction_ = transaction;
    last_page_ = load<uint64_t>(meta, kMetaBytes - 16);
    free_list_ = Database::parse(ByteSpan(meta).subspan(databases, kDatabaseBytes));
    main_ = Database::parse(ByteSpan(meta).subspan(databases + kDatabaseBytes, kDatabaseBytes));
  }
  if (last_page_ < 1 || last_page_ >= file_bytes_ / page_bytes_)
    return bad(last_page_, "is the last one, but not there");
  return {};
}

Status Checker::claim(uint64_t page, uint64_t pages) {
  if (page < 2 || page > last_page_ || pages > last_page_ - page + 1) return bad(page, "is out of the file");
  for (uint64_t at = page; at < page + pages; ++at) {
    if (claimed_[at]) return bad(at, "is used twice");
    claimed_[at] = true;
  }
  unclaimed_ -= pages;
  return {};
}

Result<uint64_t> Checker::check() {
  KVC_TRY(read_meta());
  claimed_.resize(last_page_ + 1);
  unclaimed_ = last_page_ - 1;  // all pages but the meta pages
  Table free_list{Kind::kFreeList, "", free_list_, {}, {}, false};
  Table main{Kind::kMain, "", main_, {}, {}, false};
  KVC_TRY(check_table(free_list));
  KVC_TRY(check_table(main));
  for (Table& table : named_) KVC_TRY(check_table(table));
  if (unclaimed_ == 0) return unused_bytes_;
  const auto lost = std::find(claimed_.begin() + 2, claimed_.end(), false);
  return bad(static_cast<uint64_t>(lost - claimed_.begin()), "belongs to nobody");
}

Status Checker::check_table(Table& table) {
  const Database& expected = table.expected;
  if (expected.flags != (table.integers() ? kIntegerKey : 0) || expected.depth > kMaxDepth) {
    return bad(expected.root, "has a table of unknown kind");
  }
  if (expected.root != kNoPage) {
    KVC_TRY(check_page(table, expected.root, 1, {}, nullptr));
  } else if (expected.depth != 0) {
    return bad(expected.root, "has no root");
  }
  const Database& seen = table.seen;
  if (seen.branch_pages == expected.branch_pages && seen.leaf_pages == expected.leaf_pages &&
      seen.overflow_pages == expected.overflow_pages && seen.entries == expected.entries) {
    return {};
  }
  return bad(expected.root, fmt::format("has a table of {} rows that claims {}", seen.entries, expected.entries));
}

// Checks the page and all below it. Its keys must lie in [low, *high).
Status Checker::check_page(Table& table, uint64_t page, uint64_t depth, ByteSpan low, const ByteSpan* high) {
  KVC_TRY(claim(page, 1));
  Bytes bytes;
  KVC_TRY(read(page, 1, bytes));
  const bool leaf = depth == table.expected.depth;
  const auto lower = load<uint16_t>(bytes, 12);
  const uint32_t upper = load<uint16_t>(bytes, 14);
  if (load<uint64_t>(bytes, 0) != page || load<uint16_t>(bytes, 10) != (leaf ? kLeaf : kBranch) ||
      depth > table.expected.depth || lower % 2 != 0 || lower <= kPageHeader || lower > upper || upper > page_bytes_) {
    return bad(page, "has a bad header");
  }
  if (leaf) return check_leaf(table, page, bytes, low, high);
  return check_branch(table, page, depth, bytes, low, high);
}

Result<Node> Checker::node(const Table& table, uint64_t page, ByteSpan bytes, size_t index, bool leaf) const {
  const size_t at = load<uint16_t>(bytes, kPageHeader + 2 * index);
  if (at < load<uint16_t>(bytes, 14) || at % 2 != 0 || at + kNodeHeader > bytes.size()) {
    return bad(page, "has a node outside of it");
  }
  Node node;
  const uint64_t low = load<uint16_t>(bytes, at), high = load<uint16_t>(bytes, at + 2);
  node.flags = load<uint16_t>(bytes, at + 4);
  const size_t key_bytes = load<uint16_t>(bytes, at + 6);
  const size_t key_at = at + kNodeHeader;
  // The first key of a branch page stands for all lower keys; it is empty or ignored.
  const bool any_key = !leaf && index == 0;
  if (key_bytes > bytes.size() - key_at || key_bytes > kMaxKeyBytes || (key_bytes == 0 && !any_key) ||
      (table.integers() && key_bytes != 8 && !(any_key && key_bytes == 0))) {
    return bad(page, "has a bad key");
  }
  node.key = bytes.subspan(key_at, key_bytes);
  if (!leaf) {
    node.child = low | high << 16 | static_cast<uint64_t>(node.flags) << 32;
    return node;
  }
  node.data_bytes = static_cast<uint32_t>(low | high << 16);
  const uint64_t stored = node.flags & kBigData ? sizeof(uint64_t) : node.data_bytes;
  if (stored > bytes.size() - key_at - key_bytes) return bad(page, "has a row that leaves it");
  node.data = bytes.subspan(key_at + key_bytes, stored);
  return node;
}

Status Checker::check_branch(Table& table, uint64_t page, uint64_t depth, ByteSpan bytes, ByteSpan low,
                             const ByteSpan* high) {
  table.seen.branch_pages += 1;
  const size_t count = nodes(bytes);
  if (count < 2) return bad(page, "has a single child");
  KVC_ASSIGN(Node current, node(table, page, bytes, 0, false));
  current.key = low;
  for (size_t i = 0; i < count; ++i) {
    if (i + 1 == count) return check_page(table, current.child, depth + 1, current.key, high);
    KVC_ASSIGN(const Node next, node(table, page, bytes, i + 1, false));
    const bool ascending = (current.key.empty() || key_less(current.key, next.key, table.integers())) &&
                           (high == nullptr || key_less(next.key, *high, table.integers()));
    if (!ascending) return bad(page, "has keys out of order");
    KVC_TRY(check_page(table, current.child, depth + 1, current.key, &next.key));
    current = next;
  }
  return {};
}

Status Checker::check_leaf(Table& table, uint64_t page, ByteSpan bytes, ByteSpan low, const ByteSpan* high) {
  table.seen.leaf_pages += 1;
  unused_bytes_ += load<uint16_t>(bytes, 14) - load<uint16_t>(bytes, 12);  // the gap between the page's table of rows and its rows
  for (size_t i = 0, count = nodes(bytes); i < count; ++i) {
    KVC_ASSIGN(const Node row, node(table, page, bytes, i, true));
    const bool in_range = (low.empty() || !key_less(row.key, low, table.integers())) &&
                          (high == nullptr || key_less(row.key, *high, table.integers())) &&
                          (!table.any_key || key_less(table.last_key, row.key, table.integers()));
    if (!in_range) return bad(page, "has keys out of order");
    table.last_key.assign(row.key.begin(), row.key.end());
    table.any_key = true;
    table.seen.entries += 1;
    KVC_TRY(check_row(table, page, row));
  }
  return {};
}

Status Checker::check_row(Table& table, uint64_t page, const Node& row) {
  const uint16_t allowed = table.kind == Kind::kMain ? kSubTable : kBigData;
  if (row.flags & static_cast<uint16_t>(~allowed)) return bad(page, "has a row of unknown kind");
  Bytes run;
  ByteSpan value = row.data;
  if (row.flags & kBigData) {
    const auto first = load<uint64_t>(row.data, 0);
    const uint64_t pages = (kPageHeader + row.data_bytes + page_bytes_ - 1) / page_bytes_;
    KVC_TRY(claim(first, pages));
    KVC_TRY(read(first, pages, run));
    const bool sound =
        load<uint64_t>(run, 0) == first && load<uint16_t>(run, 10) == kOverflow && load<uint32_t>(run, 12) == pages;
    if (!sound) return bad(first, "is not the start of the run of pages it should be");
    table.seen.overflow_pages += pages;
    value = ByteSpan(run).subspan(kPageHeader, row.data_bytes);
  }
  switch (table.kind) {
    case Kind::kFreeList:
      if (load<uint64_t>(row.key, 0) > transaction_) return bad(page, "was freed in the future");
      return check_free_list(page, value);
    case Kind::kMain:
      if (!(row.flags & kSubTable) || value.size() != kDatabaseBytes) return bad(page, "has a bad table");
      named_.push_back({Kind::kNamed, std::string(as_text(row.key)), Database::parse(value), {}, {}, false});
      return {};
    case Kind::kNamed: break;
  }
  if (!row_is_good_(table.name, row.key, value)) return bad(page, fmt::format("has a bad row of {}", table.name));
  return {};
}

// A list is a count, then that many page numbers, descending.
Status Checker::check_free_list(uint64_t page, ByteSpan list) {
  if (list.size() < sizeof(uint64_t)) return bad(page, "has a bad list of free pages");
  const auto count = load<uint64_t>(list, 0);
  if (count > list.size() / sizeof(uint64_t) - 1) return bad(page, "has a bad list of free pages");
  uint64_t last = kNoPage;
  for (uint64_t i = 1; i <= count; ++i) {
    const auto free_page = load<uint64_t>(list, i * sizeof(uint64_t));
    if (free_page >= last) return bad(page, "has a bad list of free pages");
    last = free_page;
    KVC_TRY(claim(free_page, 1));
    unused_bytes_ += page_bytes_;
  }
  return {};
}

}  // namespace

Result<uint64_t> check_pages(const std::string& path, const RowCheck& row_is_good) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  struct stat info = {};
  if (fd < 0 || fstat(fd, &info) != 0) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return fail_errno(error, fmt::format("index {}: opening it to check it", path));
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return fail(Code::kCorrupt, fmt::format("index {}: is no file", path));
  }
  return Checker(path, fd, static_cast<uint64_t>(info.st_size), row_is_good).check();
}

}  // namespace kvcachefs

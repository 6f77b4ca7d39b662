// Checks a data.mdb that nobody has open, page by page, with a bounds-checked reader of its own: LMDB trusts the pages it maps, so
// a damaged page makes it answer wrongly, loop, or write out of bounds when it copies the page. After a check that
// passed, every row is found under its key, and LMDB meets no damaged page.
//
// Knows the layout of LMDB 0.9 data files (data version 1), 64-bit little endian. Reads with pread and maps nothing;
// memory use is a few bytes a page.
#pragma once

#include <functional>
#include <string>

#include "store/base/bytes.h"
#include "store/base/result.h"

namespace kvcachefs {

// Called for every row of a named table; false: the row is bad.
using RowCheck = std::function<bool(std::string_view table, ByteSpan key, ByteSpan value)>;

// kCorrupt with the page and the reason if anything is wrong: meta pages, page headers, node bounds, order of keys over
// the whole tree, overflow runs, counts, the free list, pages with no owner or with two. Returns the number of unused bytes:
// free pages, and free space in pages of rows.
Result<uint64_t> check_pages(const std::string& path, const RowCheck& row_is_good);

}  // namespace kvcachefs

// What the fuzz targets do with an input. The same functions run under libFuzzer (fuzz preset) and, on a fixed set of
// mutations of the corpus, as a plain test. A broken property ends the process.
#pragma once

#include "store/base/bytes.h"

namespace kvcachefs {

// The bytes of a batch, an object, a name and a successors row.
void fuzz_record_codec(ByteSpan input);
// First byte even: the rest is a journal file. Odd: the rest is a script of frame payloads and garbage, which is given
// a valid header and valid checksums, so that what lies behind them is reached.
void fuzz_journal(ByteSpan input);
void fuzz_checkpoint(ByteSpan input);  // the same for a checkpoint
// First byte even: the rest is the file (block). Odd: the rest is put into a header with valid checksums.
void fuzz_volume_file(ByteSpan input);
void fuzz_extent_header(ByteSpan input);
// First byte: 0 and 1 a HEAD, 2 and 3 an ACKS file; even: the rest is the file. Odd: the rest is what a slot says, which is given a
// valid header and checksums.
void fuzz_head_file(ByteSpan input);
// First byte even: the rest is what a policy of eviction kept over a restart. Odd: the rest is its tables, which are given a
// valid header and checksum.
void fuzz_evict_tables(ByteSpan input);

struct FuzzCase {
  const char* name;  // of the target and of its directory in corpus/
  void (*run)(ByteSpan input);
};
inline constexpr FuzzCase kFuzzCases[] = {
    {"record_codec", fuzz_record_codec},   {"journal", fuzz_journal},
    {"checkpoint", fuzz_checkpoint},       {"volume_file", fuzz_volume_file},
    {"extent_header", fuzz_extent_header}, {"evict_tables", fuzz_evict_tables},
    {"head_file", fuzz_head_file},
};

}  // namespace kvcachefs

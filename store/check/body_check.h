// Reads bodies from their extents and verifies them against the checksums of their records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/base/records.h"
#include "store/base/result.h"
#include "store/base/types.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// The place of one body, for reading in the order of the medium.
struct BodyRef {
  Place place;
  ObjectId object;
};

struct BadBody {
  ObjectId object;
  Place place;
  std::string why;    // names extent and offset
  bool wrong = true;  // the bytes are wrong or gone; false: the medium did not give them, they may be good
  bool is_no_file = false;  // wrong because the name is not a plain file; a mount keeps the record: the obstacle may be removed
};

// One thread. Blocks on the volume.
class BodyChecker {
 public:
  BodyChecker(std::shared_ptr<Volume> volume, std::string node);
  ~BodyChecker();

  // Verifies one body at once; nullopt if it is good. If there is no memory to read it, it counts as not given by the medium.
  std::optional<BadBody> check(const ObjectRecord& object);

  // Verifies many: add() each once, in any order but best by place, then finish(). `bad` gets each bad body once, with its worst fault.
  // An error of add(): there is no memory to read with.
  void start(std::function<void(BadBody)> bad);
  Status add(const ObjectRecord& object);
  void finish();

  uint64_t bodies() const { return bodies_; }
  uint64_t bytes() const { return bytes_; }
  const std::map<ExtentId, uint64_t>& missing_extents() const { return missing_; }  // with the bodies in them

 private:
  struct Piece;
  Result<FilePtr> open(const Place& place);
  Status take_buffer();
  void report(const ObjectRecord& object, std::string why, bool wrong);  // a piece of the object is bad
  void tell();
  bool check_without_reading(const ObjectRecord& object);  // true: settled
  void flush();
  void verify(const Piece& piece);

  const std::shared_ptr<Volume> volume_;
  const std::string node_;
  std::function<void(BadBody)> bad_;
  std::byte* buffer_ = nullptr;  // for a window, aligned for direct I/O; made for the first body that is read
  std::vector<Piece> window_;
  size_t used_bytes_ = 0;
  std::optional<BadBody> judged_;  // the last bad body; further pieces of it may follow
  ExtentId open_extent_;
  FilePtr open_file_;
  std::map<ExtentId, uint64_t> missing_;
  uint64_t bodies_ = 0, bytes_ = 0;
};

}  // namespace kvcachefs

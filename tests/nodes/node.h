// One node of the simulation: a store, driven by hand, on a machine of its own (SimClient), with a clock that is wrong by some hours.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/base/clock.h"
#include "store/store.h"
#include "store/volume/testing/sim_client.h"

namespace kvcachefs::testing {

class Node {
 public:
  // `wrap` may put something between the store and its machine. `pass` lets time pass for all.
  using Wrap = std::function<std::shared_ptr<Volume>(std::shared_ptr<Volume>)>;
  Node(unsigned number, const std::string& machine, std::shared_ptr<SimServer> server, StoreOptions options, int64_t clock_off_ns, Wrap wrap, std::function<void(int64_t)> pass);
  ~Node();

  const unsigned number;
  SimClient& machine() { return *machine_; }
  ManualClock& clock() { return clock_; }
  Store& store() { return *store_; }
  bool runs() const { return store_ != nullptr; }

  Status start();
  Status end();   // in order
  void bury();    // the process was killed: what is left of it here goes
  bool pump();
  // Calls of a client. kCanceled: never answered, or the process was killed.
  Result<Handle*> create(const std::string& path);
  Result<Handle*> open(const std::string& path, OpenRequest request);
  Status write(Handle* handle, const std::string& bytes);
  Status close(Handle* handle);  // flush and release
  Result<std::string> read(Handle* handle);
  Result<std::string> read(const std::string& path);
  Status rename(const std::string& from, const std::string& to);
  Status unlink(const std::string& path);
  Status make_directory(const std::string& path);
  Status remove_directory(const std::string& path);
  Status drain();
  Status refresh();
  Result<bool> exists(const std::string& path);
  Result<std::vector<DirectoryItem>> list(const std::string& path);

 private:
  Result<ObjectId> resolve(const std::string& path);
  Result<std::pair<ObjectId, std::string>> parent_of(const std::string& path);
  template <class T, class Call>
  Result<T> wait(Call call);

  const std::shared_ptr<SimClient> machine_;
  StoreOptions options_;
  ManualClock clock_;
  Wrap wrap_;
  std::function<void(int64_t)> pass_;
  std::string directory_;
  std::unique_ptr<Store> store_;
};

}  // namespace kvcachefs::testing

// A volume that stalls on order: chosen requests are held until they are let go, however long that takes. For tests
// that must know what is under way, without a clock.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "store/volume/volume.h"

namespace kvcachefs::testing {

class HoldingVolume final : public Volume {
 public:
  using Rule = std::function<bool(const IoRequest&)>;

  explicit HoldingVolume(std::shared_ptr<Volume> inner) : inner_(std::move(inner)) {}

  // From now on requests that `rule` is true for are held. It must not call back.
  void hold(Rule rule) {
    const std::lock_guard lock(mutex_);
    rule_ = std::move(rule);
  }
  // Everything held goes on, and nothing is held any more.
  void let_go() {
    std::vector<IoRequest> requests;
    {
      const std::lock_guard lock(mutex_);
      rule_ = {};
      requests = std::exchange(held_, {});
      going_ += requests.size();
    }
    const size_t count = requests.size();
    inner_->submit(std::move(requests));
    const std::lock_guard lock(mutex_);
    going_ -= count;
    changed_.notify_all();
  }
  // Whether `enough` is true of the requests held now.
  bool holds(const std::function<bool(const std::vector<IoRequest>&)>& enough) {
    const std::lock_guard lock(mutex_);
    return enough(held_);
  }
  // Waits until that is so, however long it takes: for reads that clients wait for. Those ahead may rightly not come.
  void wait_until_held(const std::function<bool(const std::vector<IoRequest>&)>& enough) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return enough(held_); });
  }

  // From now on opens of paths that contain `part` block, until they are let go of.
  void hold_opens(std::string part) {
    const std::lock_guard lock(mutex_);
    held_opens_ = std::move(part);
  }
  void let_opens_go() {
    const std::lock_guard lock(mutex_);
    held_opens_.clear();
    changed_.notify_all();
  }
  bool wait_until_an_open_is_held(std::chrono::seconds most) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, most, [&] { return opens_held_ > 0; });
  }

  const VolumeFeatures& features() const override { return inner_->features(); }
  const std::string& root() const override { return inner_->root(); }
  Result<FilePtr> open(const std::string& path, OpenOptions options) override {
    {
      std::unique_lock lock(mutex_);
      const auto is_held = [&] { return !held_opens_.empty() && path.find(held_opens_) != std::string::npos; };
      if (is_held()) {
        ++opens_held_;
        changed_.notify_all();
        changed_.wait(lock, [&] { return !is_held(); });
        --opens_held_;
      }
    }
    return inner_->open(path, options);
  }
  Status make_directory(const std::string& path) override { return inner_->make_directory(path); }
  Status make_directories(const std::string& path) override { return inner_->make_directories(path); }
  Status remove_file(const std::string& path) override { return inner_->remove_file(path); }
  Status remove_directory(const std::string& path) override { return inner_->remove_directory(path); }
  Status rename(const std::string& from, const std::string& to) override { return inner_->rename(from, to); }
  Status publish(const std::string& from, const std::string& to) override { return inner_->publish(from, to); }
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override { return inner_->list(path); }
  Result<FileInfo> info(const std::string& path) override { return inner_->info(path); }
  Status sync_directory(const std::string& path) override { return inner_->sync_directory(path); }
  Status sync_everything() override { return inner_->sync_everything(); }
  Result<SpaceInfo> space() override { return inner_->space(); }
  Result<std::unique_ptr<VolumeLock>> lock(const std::string& path) override { return inner_->lock(path); }

  void submit(std::vector<IoRequest> requests) override {
    std::vector<IoRequest> at_once;
    {
      const std::lock_guard lock(mutex_);
      for (IoRequest& request : requests) (rule_ && rule_(request) ? held_ : at_once).push_back(std::move(request));
    }
    changed_.notify_all();
    inner_->submit(std::move(at_once));
  }
  void drain() override {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return held_.empty() && going_ == 0; });
    }
    inner_->drain();
  }
  void expect_reads_for(std::chrono::nanoseconds time) override {
    expected_reads_ += time.count() > 0;
    inner_->expect_reads_for(time);
  }
  int expected_reads() const { return expected_reads_; }  // times they were announced

 private:
  const std::shared_ptr<Volume> inner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Rule rule_;
  std::vector<IoRequest> held_;
  std::string held_opens_;
  size_t opens_held_ = 0;
  size_t going_ = 0;  // let go, and not with the wrapped volume yet
  std::atomic<int> expected_reads_{0};
};

}  // namespace kvcachefs::testing

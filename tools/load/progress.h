// A progress bar on stderr when that is a terminal; silent otherwise.
#pragma once

#include <cstddef>
#include <string>

namespace kvcachefs {

class Progress {
 public:
  explicit Progress(size_t steps, bool quiet = false);
  ~Progress();  // wipes the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows the step that is about to start.
  void show(const std::string& what);
  void advance(size_t steps = 1);

 private:
  void draw() const;

  bool on_;
  size_t steps_;
  size_t done_ = 0;
  std::string what_;
};

}  // namespace kvcachefs

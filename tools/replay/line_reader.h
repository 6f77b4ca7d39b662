// Lines of a text file, plain or gzip, by number.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "store/base/result.h"

namespace kvcachefs {

// One thread. Memory is bounded by the longest line.
class LineReader {
 public:
  static Result<LineReader> open(const std::string& path);

  // Reads the next line without its newline; false at the end. A file cut short inside compressed data is an error that names
  // the last whole line.
  Result<bool> next(std::string& line);
  // "trace.jsonl:17": for messages.
  std::string place() const { return path_ + ":" + std::to_string(line_number_); }

 private:
  struct File;  // hides zlib
  struct CloseFile {
    void operator()(File* file) const;
  };

  LineReader(std::string path, std::unique_ptr<File, CloseFile> file);
  Status check_end() const;

  std::string path_;
  std::unique_ptr<File, CloseFile> file_;
  uint64_t line_number_ = 0;  // of the line returned last, from 1
};

}  // namespace kvcachefs

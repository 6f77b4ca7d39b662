#include "tools/load/cold_start.h"

#include "tools/load/cache_control.h"

namespace kvcachefs {
namespace {

void add_notes(const Notes& notes, Report& report) {
  for (const std::string& note : notes) report.note(note);
}

}  // namespace

Status drain_writes(const std::vector<std::string>& directories, Report& report) {
  for (const std::string& directory : directories) {
    KVC_ASSIGN(const Notes notes, drain_writes(directory));
    add_notes(notes, report);
  }
  return {};
}

Status cold_start(const std::vector<std::string>& directories, bool keep_caches, Report& report) {
  KVC_ASSIGN(const Notes exchanged, exchange_changes(directories));
  add_notes(exchanged, report);
  if (keep_caches) {
    report.note("caches were kept (--keep-caches): \"cold\" reads may be warm");
    return {};
  }
  for (const std::string& directory : directories) {
    KVC_ASSIGN(const Notes notes, drop_caches(directory));
    add_notes(notes, report);
  }
  return {};
}

Status cold_start(const std::string& directory, bool keep_caches, Report& report) {
  return cold_start(std::vector{directory}, keep_caches, report);
}

}  // namespace kvcachefs

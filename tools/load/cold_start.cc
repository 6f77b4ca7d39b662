#include "tools/load/cold_start.h"

#include "tools/load/cache_control.h"

namespace kvcachefs {

Status drain_writes(const std::string& directory, Report& report) {
  KVC_ASSIGN(const Notes notes, drain_writes(directory));
  for (const std::string& note : notes) report.note(note);
  return {};
}

Status cold_start(const std::string& directory, bool keep_caches, Report& report) {
  if (keep_caches) {
    report.note("caches were kept (--keep-caches): \"cold\" reads may be warm");
    return {};
  }
  KVC_ASSIGN(const auto notes, drop_caches(directory));
  for (const std::string& note : notes) report.note(note);
  return {};
}

}  // namespace kvcachefs

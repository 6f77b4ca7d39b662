#include "store/index/checkpoint_rows.h"

#include <utility>

namespace kvcachefs {

Status for_each_checkpoint_record(const Index& index, const std::function<Status(Record)>& add) {
  Status status;
  const auto add_next = [&](Record record) {
    status = add(std::move(record));
    return status.has_value();
  };
  KVC_TRY(index.scan_objects([&](ObjectRecord&& row) { return add_next(PutRecord{std::move(row)}); }));
  KVC_TRY(status);
  KVC_TRY(index.scan_names([&](NameRecord&& row) { return add_next(std::move(row)); }));
  KVC_TRY(status);
  KVC_TRY(index.scan_successors([&](SuccessorsRecord&& row) { return add_next(std::move(row)); }));
  KVC_TRY(status);
  KVC_TRY(index.scan_peer_records(add_next));
  KVC_TRY(status);
  if (index.damaged()) return fail(Code::kCorrupt, "a checkpoint was begun of an index that is damaged");
  return {};
}

}  // namespace kvcachefs

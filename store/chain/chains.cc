#include "store/chain/chains.h"

namespace kvcachefs {

Chains::Chains(ChainsOptions options, SuccessorTable::Loader loader)
    : options_(options),
      streams_(options.max_streams),
      successors_(options.successor_memory_bytes, std::move(loader)),
      planner_(options.planner, streams_, successors_, announcements_, accounting_) {}

void Chains::on_probe(uint64_t thread_id, NameStem name, ChainKey key, ObjectId id, uint64_t size_bytes, int64_t now) {
  planner_.on_probe(streams_.of(thread_id, name.stem), key, id, size_bytes, now);
}

void Chains::on_open(uint64_t thread_id, NameStem name, uint64_t handle, ObjectId id, uint64_t size_bytes,
                     int64_t now) {
  const StreamId stream = streams_.of(thread_id, name.stem);
  if (handle != 0) streams_.bind_handle(handle, stream);
  planner_.on_open(stream, id, size_bytes, now);
}

void Chains::on_read(uint64_t handle, ObjectId id, uint64_t offset, uint64_t length, int64_t now) {
  planner_.on_read(streams_.of_handle(handle), id, offset, length, now);
}

void Chains::on_close(uint64_t handle, ObjectId id, int64_t now) {
  planner_.on_close(streams_.of_handle(handle), id, now);
  streams_.unbind_handle(handle);
}

void Chains::on_made(uint64_t thread_id, NameStem name, ChainKey key) {
  planner_.on_made(streams_.of(thread_id, name.stem), key);
}

uint64_t Chains::on_create(uint64_t thread_id, NameStem name, int64_t now) {
  return write_sequences_.on_create(name.stem, thread_id, now);
}

void Chains::on_publish(ChainKey key, NameStem name, ObjectId id) {
  std::vector<std::pair<ObjectId, ObjectId>> links;
  announcements_.resolve(key, id, links);
  for (const auto& [before, after] : links) successors_.learn(before, after);
  if (name.sibling == 0) return;
  auto [found, inserted] = sibling_names_.try_emplace(name.sibling, id);
  if (!inserted) {
    successors_.link_siblings(found->second, id);
    found->second = id;
    return;
  }
  sibling_order_.push_back(name.sibling);
  while (sibling_order_.size() > options_.max_sibling_names) {
    sibling_names_.erase(sibling_order_.front());
    sibling_order_.pop_front();
  }
}

std::vector<ObjectId> Chains::lay_out(std::span<const LayoutItem> items) {
  LayoutOrder laid = order_of(items);
  learn(laid.write_links);
  return std::move(laid.order);
}

void Chains::learn(std::span<const std::pair<ObjectId, ObjectId>> write_links) {
  for (const auto& [before, after] : write_links) successors_.learn(before, after);
}

void Chains::on_loaded(ObjectId id, uint64_t bytes, int64_t latency_ns, int64_t now) {
  planner_.on_loaded(id, bytes, latency_ns, now);
}

}  // namespace kvcachefs

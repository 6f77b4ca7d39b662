#include "store/upkeep/drainer.h"

#include <chrono>
#include <future>
#include <memory>
#include <utility>

namespace kvcachefs {

void Drainer::drain(bool for_room) {
  auto promise = std::make_shared<std::promise<Status>>();
  std::future<Status> answer = promise->get_future();
  auto done = [promise](Status status) { promise->set_value(std::move(status)); };
  for_room ? parts_.bulk.drain_for_room(std::move(done)) : parts_.bulk.drain(/*sync=*/false, std::move(done));
  if (parts_.committer.is_running()) {
    while (!stopping_ && answer.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    }
    return;
  }
  constexpr int kMaxRounds = 10'000;
  for (int i = 0; i < kMaxRounds && answer.wait_for(std::chrono::seconds(0)) != std::future_status::ready; ++i) {
    parts_.bulk.step(/*force=*/!for_room);
    parts_.urgent.step();
    parts_.committer.step();
  }
}

}  // namespace kvcachefs

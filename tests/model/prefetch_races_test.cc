// Bodies that are being read ahead while they are unlinked, replaced, changed in place, pushed out of RAM, and while
// the store is closed. Readers must find whole bodies, owners the bytes they wrote. Meant for the sanitizers as well.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/volume/fault_volume.h"
#include "tests/model/threaded_store.h"

namespace kvcachefs::testing {
namespace prefetch_races_test {

constexpr uint64_t kChains = 4, kChunks = 16;  // shared by all: replaced and unlinked as wholes
constexpr uint64_t kOwners = 2, kOwnChunks = 12;  // of one thread each: changed in place
constexpr int kLives = 6;                         // of the store, between mount and close

std::chrono::milliseconds life() {
  if (std::getenv("KVCACHEFS_LONG") != nullptr) return std::chrono::milliseconds(30'000);
  if (std::getenv("KVCACHEFS_QUICK") != nullptr) return std::chrono::milliseconds(300);
  return std::chrono::milliseconds(700);
}

uint64_t number_of(uint64_t chain, uint64_t chunk) { return chain * 1000 + chunk; }
std::string shared_name(uint64_t chain, uint64_t chunk) { return fmt::format("c{:04x}@{:06x}.kv", chain, chunk); }
std::string own_name(uint64_t owner, uint64_t chunk) { return fmt::format("own{:04x}@{:06x}.kv", owner, chunk); }

// Packed bodies of one and of several units, and solo ones.
uint64_t random_bytes(Client& client) {
  switch (client.below(4)) {
    case 0: return sizeof(BodyHead) + client.below(60'000);
    case 1: return 300'000;
    case 2: return sizeof(BodyHead) + client.below(900'000);
    default: return kMiB + client.below(600'000);
  }
}

struct World {
  explicit World(const StoreOptions& options)
      : store(options, [this](std::shared_ptr<Volume> inner) {
          return make_fault_volume(std::move(inner), [this](const VolumeCall& call) { return slow_reads(call); });
        }) {}

  // Some reads take longer, so that things happen meanwhile.
  Fault slow_reads(const VolumeCall& call) {
    if (call.kind != VolumeCall::Kind::kRead || reads.fetch_add(1) % 3 != 0) return {};
    return {.delay_ns = static_cast<int64_t>(reads.load() % 7) * 1'000'000};
  }
  void mount() {
    store.mount();
    static_cast<void>(store->expect_passthrough());  // with files in RAM where this machine has them
  }

  std::atomic<uint64_t> reads{0}, version{0}, passed{0};
  std::atomic<bool> stop{false};
  ThreadedStore store;
  // What the owners wrote. Each string is touched by its owner's thread only.
  std::vector<std::vector<std::string>> own{kOwners, std::vector<std::string>(kOwnChunks)};
};

bool over(const World& world) { return world.stop || ::testing::Test::HasFailure(); }

// As the driver reads what is passed through: from the backing file, which nothing may change while it is held.
void read_passed_through(World& world, Client& client, ObjectId id, uint64_t number) {
  const BackingFile file = world.store->backing_file(id);
  if (file.descriptor < 0) return;
  world.store->count_passthrough_open(id, client.below(8) == 0, file.in_memory);
  std::string body(4 * kMiB, 0);
  auto* const aligned = static_cast<char*>(std::aligned_alloc(kBlockBytes, body.size()));
  const ssize_t got = ::pread(file.descriptor, aligned, body.size(), 0);  // perhaps a direct descriptor
  ASSERT_GE(got, static_cast<ssize_t>(sizeof(BodyHead)));
  BodyHead head;
  std::memcpy(&head, aligned, sizeof head);
  body.assign(aligned, std::min<uint64_t>(head.size_bytes, static_cast<uint64_t>(got)));
  std::free(aligned);
  EXPECT_TRUE(is_whole(body, number));
  ++world.passed;
}

// Asks for a chain's names, then reads it in order, perhaps not to its end.
void read_chain(World& world, Client& client, uint64_t chain) {
  const uint64_t last = client.below(3) == 0 ? client.below(kChunks) : kChunks;
  if (client.below(3) > 0)
    for (uint64_t chunk = 0; chunk < kChunks; ++chunk)
      static_cast<void>(world.store->lookup(kRootId, shared_name(chain, chunk), client.caller()));
  for (uint64_t chunk = 0; chunk < last && !over(world); ++chunk) {
    Handle* handle = client.open(kRootId, shared_name(chain, chunk), {});
    if (handle == nullptr) continue;
    if (client.below(4) == 0)
      read_passed_through(world, client, world.store->object_of(handle), number_of(chain, chunk));
    const std::string body = client.read_all(handle);
    EXPECT_TRUE(is_whole(body, number_of(chain, chunk))) << shared_name(chain, chunk);
    world.store->release(handle);
  }
}

// Has bodies read ahead that their owner changes meanwhile. What is seen of them may be any mixture.
void read_beginning_of_own(World& world, Client& client) {
  const uint64_t owner = client.below(kOwners);
  for (uint64_t chunk = 0; chunk < kOwnChunks; ++chunk)
    static_cast<void>(world.store->lookup(kRootId, own_name(owner, chunk), client.caller()));
  for (uint64_t chunk = 0; chunk < 2; ++chunk) {
    Handle* handle = client.open(kRootId, own_name(owner, chunk), {});
    if (handle == nullptr) continue;
    client.read_all(handle);
    world.store->release(handle);
  }
}

void read_something(World& world, Client& client) {
  client.below(4) > 0 ? read_chain(world, client, client.below(kChains)) : read_beginning_of_own(world, client);
}

void publish_shared(World& world, Client& client, uint64_t chain, uint64_t chunk) {
  const BodyHead head{number_of(chain, chunk), ++world.version, random_bytes(client)};
  client.publish(kRootId, shared_name(chain, chunk), head);
}

void write_chain(World& world, Client& client, uint64_t chain) {
  std::vector<uint64_t> order(kChunks);
  for (uint64_t chunk = 0; chunk < kChunks; ++chunk) {
    order[chunk] = chunk;
    static_cast<void>(world.store->lookup(kRootId, shared_name(chain, chunk), client.caller()));
  }
  if (client.below(2) == 0)
    for (uint64_t i = kChunks - 1; i > 0; --i) std::swap(order[i], order[client.below(i + 1)]);
  for (const uint64_t chunk : order)
    publish_shared(world, client, chain, chunk);
}

void disturb(World& world, Client& client) {
  Store& store = *world.store.operator->();
  const uint64_t chain = client.below(kChains), chunk = client.below(kChunks);
  switch (client.below(10)) {
    case 0: case 1: case 2: {
      const Code code = client.unlink(kRootId, shared_name(chain, chunk));
      EXPECT_TRUE(code == Code::kNoData || code == Code::kNotFound) << code_name(code);
      return;
    }
    case 3: case 4: case 5:
      return publish_shared(world, client, chain, chunk);
    case 6: return store.drop_caches();
    case 7: {
      const char* const sizes[] = {"16M", "20M", "48M"};
      EXPECT_TRUE(store.set_option("memory", sizes[client.below(3)]));
      return;
    }
    case 8: {
      EXPECT_TRUE(store.set_option("prefetch", client.below(3) == 0 ? "off" : "on"));
      EXPECT_TRUE(store.set_option("prefetch_ahead", client.below(2) == 0 ? "1M" : "256M"));
      return;
    }
    default: return write_chain(world, client, chain);
  }
}

// Nothing, or how the bytes that were read differ from those expected.
std::string difference(const std::string& got, const std::string& expected) {
  if (got == expected) return {};
  const auto [in_got, in_expected] = std::mismatch(got.begin(), got.end(), expected.begin(), expected.end());
  const auto first = static_cast<size_t>(in_got - got.begin());
  size_t others = 0, zeros = 0;
  for (size_t at = first; at < std::min(got.size(), expected.size()); ++at) {
    others += got[at] != expected[at];
    zeros += got[at] != expected[at] && got[at] == 0;
  }
  return fmt::format("{} bytes, {} expected; the first other one at {}, {} others in all, {} of them zero", got.size(),
                     expected.size(), first, others, zeros);
}

std::string read_own(World& world, Client& client, uint64_t owner, uint64_t chunk) {
  Handle* handle = client.open(kRootId, own_name(owner, chunk), {});
  if (handle == nullptr) return {};
  std::string body = client.read_all(handle);
  world.store->release(handle);
  return body;
}

void change_own(World& world, Client& client, uint64_t owner, uint64_t chunk) {
  Store& store = *world.store.operator->();
  std::string& expected = world.own[owner][chunk];
  Handle* handle = client.open(kRootId, own_name(owner, chunk), {.read = true, .write = true});
  if (handle == nullptr) {
    auto made = store.create(kRootId, own_name(owner, chunk), 0644, {.read = true, .write = true}, client.caller());
    ASSERT_TRUE(made) << made.error().message;
    handle = made->second;
    expected.clear();
  }
  switch (client.below(4)) {
    case 0: {  // anew
      const std::string body = make_body({owner, ++world.version, random_bytes(client)});
      SetAttributes cut;
      cut.size_bytes = 0;
      ASSERT_EQ(code_of(await<Stat>([&](auto done) {
                  store.set_attributes(store.object_of(handle), handle, cut, client.caller(), std::move(done));
                })),
                Code::kNoData);
      ASSERT_EQ(client.write_all(handle, body), Code::kNoData);
      expected = body;
      break;
    }
    case 1: {  // cut or extended
      const uint64_t size = client.below(1'200'000);
      SetAttributes cut;
      cut.size_bytes = size;
      ASSERT_EQ(code_of(await<Stat>([&](auto done) {
                  store.set_attributes(store.object_of(handle), handle, cut, client.caller(), std::move(done));
                })),
                Code::kNoData);
      expected.resize(size, 0);
      break;
    }
    default: {  // a range
      const uint64_t at = client.below(expected.size() + 1);
      const std::string piece = make_body({owner, ++world.version, sizeof(BodyHead) + client.below(200'000)});
      ASSERT_EQ(client.write_at(handle, at, piece), Code::kNoData);
      if (expected.size() < at + piece.size()) expected.resize(at + piece.size(), 0);
      expected.replace(at, piece.size(), piece);
      break;
    }
  }
  ASSERT_EQ(client.close(handle), Code::kNoData);
}

void be_owner(World& world, Client& client, uint64_t owner) {
  const uint64_t chunk = client.below(kOwnChunks);
  if (client.below(2) == 0) change_own(world, client, owner, chunk);
  EXPECT_EQ(difference(read_own(world, client, owner, chunk), world.own[owner][chunk]), "") << own_name(owner, chunk);
  if (client.below(16) == 0) {
    ASSERT_EQ(code_of(await<void>([&](auto done) { world.store->drain(false, std::move(done)); })), Code::kNoData);
  }
}

void check_everything(World& world) {
  Client client(*world.store.operator->(), 1);
  for (uint64_t owner = 0; owner < kOwners; ++owner)
    for (uint64_t chunk = 0; chunk < kOwnChunks; ++chunk)
      EXPECT_EQ(difference(read_own(world, client, owner, chunk), world.own[owner][chunk]), "") << own_name(owner, chunk);
  for (uint64_t chain = 0; chain < kChains; ++chain) read_chain(world, client, chain);
  const StoreStatus status = world.store->status();
  EXPECT_EQ(status.errors_checksum + status.errors_volume_read, 0u);
  EXPECT_EQ(status.errors_volume_write + status.errors_journal, 0u);
  EXPECT_EQ(status.objects_quarantined, 0u);
  EXPECT_EQ(status.open_handles, 0u);
}

TEST(PrefetchRaces, BodiesThatAreReadAheadMayBeRemovedReplacedChangedOrPushedOut) {
  StoreOptions options;
  options.memory_bytes = 16 * kMiB;
  options.flush_interval_ms = 5;
  options.pack_below_bytes = kMiB;
  options.extent_bytes = 16 * kMiB;
  World world(options);
  static_cast<void>(world.store->expect_passthrough());
  const uint64_t seed = first_seed() * 1000;
  fmt::print("KVCACHEFS_SEED={}\n", first_seed());
  {
    Client client(*world.store.operator->(), seed);
    for (uint64_t chain = 0; chain < kChains; ++chain) write_chain(world, client, chain);
    for (uint64_t owner = 0; owner < kOwners; ++owner)
      for (uint64_t chunk = 0; chunk < kOwnChunks; ++chunk) change_own(world, client, owner, chunk);
  }
  uint64_t read_ahead = 0, used = 0, actions = 0;
  std::atomic<uint64_t> helped{0};
  for (int round = 0; round < kLives && !HasFailure(); ++round) {
    world.store.close();
    world.mount();
    world.stop = false;
    std::atomic<uint64_t> done{0};
    {
      std::vector<std::jthread> clients;
      clients.emplace_back([&, seed_of_round = seed + static_cast<uint64_t>(round)] {  // as a thread that polls for requests
        Client chance(*world.store.operator->(), seed_of_round);
        while (!over(world)) {
          helped += world.store->help();
          if (chance.below(64) == 0) world.store->leave_off();
          if (chance.below(4) == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
        world.store->leave_off();
      });
      for (uint64_t thread = 0; thread < 3 + kOwners + 1; ++thread)
        clients.emplace_back([&, thread] {
          Client client(*world.store.operator->(), seed + static_cast<uint64_t>(round) * 100 + thread);
          while (!over(world)) {
            if (thread < 3)
              read_something(world, client);
            else if (thread < 3 + kOwners)
              be_owner(world, client, thread - 3);
            else
              disturb(world, client);
            ++done;
          }
        });
      std::this_thread::sleep_for(life());
      world.stop = true;
    }
    const StoreStatus status = world.store->status();
    read_ahead += status.prefetch_read_bytes;
    used += status.prefetch_used_bytes;
    actions += done;
    // The close that follows comes while loads are under way.
    Client client(*world.store.operator->(), seed);
    EXPECT_TRUE(world.store->set_option("prefetch", "on"));
    world.store->drop_caches();
    for (uint64_t chain = 0; chain < kChains; ++chain)
      for (uint64_t chunk = 0; chunk < kChunks; ++chunk)
        static_cast<void>(world.store->lookup(kRootId, shared_name(chain, chunk), client.caller()));
  }
  fmt::print("{} actions, {} MiB read ahead, {} MiB of it used, {} passed through\n", actions, read_ahead >> 20,
             used >> 20, world.passed.load());
  EXPECT_GT(used, 0u) << "nothing was read ahead: this has tested nothing";
  EXPECT_GT(world.passed, 0u);
  EXPECT_GT(helped, 0u);
  world.store.close();
  world.mount();
  check_everything(world);
}

}  // namespace prefetch_races_test
}  // namespace kvcachefs::testing

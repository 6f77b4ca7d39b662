#include "fs/dispatch.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <set>

#include "fs/control.h"

namespace kvcachefs {
namespace dispatch_test {

using Ops = fuse_lowlevel_ops;
using Slots = std::array<const void*, sizeof(Ops) / sizeof(void*)>;

Slots slots(const Ops& operations) { return std::bit_cast<Slots>(operations); }
template <class Handler>
size_t slot(Handler Ops::* operation) {
  const Ops operations{};
  return static_cast<size_t>(reinterpret_cast<const char*>(&(operations.*operation)) - reinterpret_cast<const char*>(&operations)) /
         sizeof(void*);
}

TEST(Dispatch, EveryOperationOfTheStoreHasOneOfTheControlNodesBesideIt) {
  const std::set<size_t> same_for_both = {slot(&Ops::forget), slot(&Ops::forget_multi), slot(&Ops::statfs), slot(&Ops::ioctl)};
  const Slots store = slots(store_operations()), control = slots(control_operations()), chosen = slots(dispatching_operations());
  for (size_t i = 0; i < store.size(); ++i) {
    SCOPED_TRACE("slot " + std::to_string(i));
    if (store[i] == nullptr || same_for_both.contains(i)) {
      EXPECT_EQ(control[i], nullptr);
      EXPECT_EQ(chosen[i], store[i]);
      continue;
    }
    EXPECT_NE(control[i], nullptr);
    EXPECT_NE(chosen[i], store[i]);
    EXPECT_NE(chosen[i], control[i]);
  }
}

TEST(Dispatch, ControlNodesAndNamesAreTold) {
  const fuse_ino_t inside = ObjectId::make(kControlOrdinal, 0, 1).value;
  const fuse_ino_t chunk = ObjectId::make(0, 7, 1).value, alias = ObjectId::make(255, 7, 1).value;
  EXPECT_TRUE(is_control_node(inside));
  EXPECT_FALSE(is_control_node(chunk));
  EXPECT_FALSE(is_control_node(alias));
  EXPECT_FALSE(is_control_node(FUSE_ROOT_ID));
  EXPECT_TRUE(is_control_name(FUSE_ROOT_ID, ".kvcachefs"));
  EXPECT_TRUE(is_control_name(inside, "any"));
  EXPECT_FALSE(is_control_name(FUSE_ROOT_ID, ".kvcachefs-not"));
  EXPECT_FALSE(is_control_name(chunk, ".kvcachefs"));
}

}  // namespace dispatch_test
}  // namespace kvcachefs

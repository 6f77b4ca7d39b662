// Two nodes of one simulated server, for tests of single cases.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "store/base/log.h"
#include "tests/nodes/names.h"
#include "tests/nodes/node.h"

namespace kvcachefs::testing {

class TwoNodes : public ::testing::Test {
 protected:
  explicit TwoNodes(SimServerOptions of_server = {}, StoreOptions options = node_options())
      : server(std::make_shared<SimServer>(of_server)),
        a{0, "m0", server, options, 0, {}, [this](int64_t ns) { pass(ns); }},
        b{1, "m1", server, options, 0, {}, [this](int64_t ns) { pass(ns); }} {}
  static StoreOptions node_options() {
    StoreOptions options;
    options.memory_bytes = 32 * kMiB;
    options.evict = false;
    return options;
  }
  void SetUp() override {
    log::set_level(log::Level::kOff);
    ASSERT_TRUE(a.start());
    ASSERT_TRUE(b.start());
  }
  void pass(int64_t ns) {
    server->advance_ns(ns);
    for (Node* node : {&a, &b}) node->clock().advance_ns(ns);
  }
  static Status write(Node& node, const std::string& name, const std::string& content) {
    KVC_ASSIGN(Handle* const handle, node.create(name));
    Status written = node.write(handle, content);
    const Status closed = node.close(handle);
    return written ? closed : written;
  }

  const std::shared_ptr<SimServer> server;
  Node a, b;
};

}  // namespace kvcachefs::testing

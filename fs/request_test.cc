// An exception of a handler is answered once: here, or by the code to which the handler had passed the request.
#include "fs/request.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <vector>

#include "fs/side_thread.h"

namespace kvcachefs {
namespace request_test {

class RequestTest : public ::testing::Test {
 protected:
  // The request is this test: its answers are kept here.
  RequestTest() : raw_(reinterpret_cast<fuse_req_t>(this)) {}
  void run(const std::function<void(const Request&)>& handler) {
    const Request request(raw_, [](fuse_req_t raw, int error) { reinterpret_cast<RequestTest*>(raw)->answers_.push_back(error); });
    run_handler(request, [&] { handler(request); });
  }
  void answer(const Request& request, int error) {
    request.answered();
    answers_.push_back(error);
  }
  const fuse_req_t raw_;
  std::vector<int> answers_;
};

TEST_F(RequestTest, AHandlerThatAnswersIsNotAnsweredAgain) {
  run([&](const Request& request) { answer(request, 0); });
  EXPECT_EQ(answers_, std::vector{0});
}

TEST_F(RequestTest, WithoutMemoryTheAnswerIsENOMEM) {
  run([](const Request&) { throw std::bad_alloc(); });
  EXPECT_EQ(answers_, std::vector{ENOMEM});
}

TEST_F(RequestTest, AnythingElseIsEIO) {
  run([](const Request&) { throw std::length_error("too long"); });
  EXPECT_EQ(answers_, std::vector{EIO});
}

TEST_F(RequestTest, ACompletionThatIsLostOnTheWayLeavesTheAnswerHere) {
  run([&](const Request& request) {
    const std::function<void()> completion = [&, request] { answer(request, 0); };
    throw std::bad_alloc();
  });
  EXPECT_EQ(answers_, std::vector{ENOMEM});
}

TEST_F(RequestTest, ACompletionThatIsKeptAnswers) {
  std::function<void()> kept;
  run([&](const Request& request) {
    kept = [&, request] { answer(request, 0); };
    throw std::bad_alloc();
  });
  EXPECT_TRUE(answers_.empty());
  kept();
  EXPECT_EQ(answers_, std::vector{0});
}

TEST_F(RequestTest, ACompletionThatIsDroppedLaterLeavesTheAnswerToItsEnd) {
  std::function<void()> kept;
  run([&](const Request& request) {
    kept = [&, request] { answer(request, 0); };
    throw std::bad_alloc();
  });
  EXPECT_TRUE(answers_.empty());
  kept = nullptr;
  EXPECT_EQ(answers_, std::vector{ENOMEM});
}

// As if a handler waits for room, and runs once there is some.
TEST_F(RequestTest, WhatRunsLaterIsAnsweredIfItThrows) {
  std::function<void()> later;
  run([&](const Request& request) {
    later = [request] { run_handler(request, [] { throw std::bad_alloc(); }); };
  });
  later();
  later = nullptr;
  EXPECT_EQ(answers_, std::vector{ENOMEM});
}

// ... which may be before the handler that waited has returned.
TEST_F(RequestTest, WhatRunsLaterIsAnsweredIfItThrowsInsideTheCall) {
  run([&](const Request& request) {
    const std::function<void()> later = [request] { run_handler(request, [] { throw std::bad_alloc(); }); };
    later();
  });
  EXPECT_EQ(answers_, std::vector{ENOMEM});
}

// As a copy goes on once the volume has answered. The next job finds the thread alive.
TEST_F(RequestTest, AJobOfTheSideThreadIsAnsweredIfItThrows) {
  SideThread side_thread;
  run([&](const Request& request) {
    side_thread.run([request] { run_handler(request, [] { throw std::bad_alloc(); }); });
  });
  run([&](const Request& request) {
    side_thread.run([this, request] { run_handler(request, [&] { answer(request, 0); }); });
  });
  side_thread.stop();
  EXPECT_EQ(answers_, (std::vector{ENOMEM, 0}));
}

TEST_F(RequestTest, WhatFailsAfterTheAnswerIsNoOther) {
  run([&](const Request& request) {
    answer(request, 0);
    throw std::bad_alloc();
  });
  EXPECT_EQ(answers_, std::vector{0});
}

}  // namespace request_test
}  // namespace kvcachefs

// What a handler throws is answered once: here, or by the one that it had handed the request on to.
#include "fs/request.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <vector>

namespace kvcachefs {
namespace request_test {

class RequestTest : public ::testing::Test {
 protected:
  void run(const std::function<void(const Request&)>& handler) {
    const Request request(nullptr);
    run_handler(request, [&] { handler(request); }, [&](const Request& left, int error) { answer(left, error); });
  }
  void answer(const Request& request, int error) {
    request.answered();
    answers_.push_back(error);
  }
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

TEST_F(RequestTest, WhatFailsAfterTheAnswerIsNoOther) {
  run([&](const Request& request) {
    answer(request, 0);
    throw std::bad_alloc();
  });
  EXPECT_EQ(answers_, std::vector{0});
}

}  // namespace request_test
}  // namespace kvcachefs

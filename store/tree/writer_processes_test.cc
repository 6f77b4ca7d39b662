// Which process a thread belongs to.
#include "store/tree/writer_processes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <thread>

#include "store/object/object.h"

namespace kvcachefs {
namespace writer_processes_test {

uint32_t as_a_thread_that_ends(const std::function<void(uint32_t thread_id)>& work) {
  pid_t thread_id = 0;
  std::thread([&] {
    thread_id = gettid();
    work(static_cast<uint32_t>(thread_id));
  }).join();
  while (kill(thread_id, 0) == 0) std::this_thread::yield();
  return static_cast<uint32_t>(thread_id);
}

TEST(WriterProcesses, EachThreadIsOfItsProcessWhicheverCalledBefore) {
  const auto own = static_cast<uint32_t>(getpid()), parent = static_cast<uint32_t>(getppid());
  EXPECT_EQ(process_of(own), own);
  for (int i = 0; i < 3; ++i) {
    as_a_thread_that_ends([&](uint32_t thread) {
      for (const uint32_t each : {thread, own, thread}) EXPECT_EQ(process_of(each), own);
      EXPECT_EQ(process_of(parent), parent);
      EXPECT_EQ(process_of(thread), own);
    });
  }
  EXPECT_EQ(process_of(0), 0u) << "of a process that cannot be seen here";
}

TEST(WriterProcesses, WhatAThreadBelongedToIsNotKnownAfterItsEnd) {
  const uint32_t ended = as_a_thread_that_ends([](uint32_t thread) { EXPECT_EQ(process_of(thread), static_cast<uint32_t>(getpid())); });
  EXPECT_EQ(process_of(ended), ended);
}

TEST(WriterProcesses, AWriterHasEndedOnceItsProcessHas) {
  constexpr uint32_t kEnded = 1'000'000'000;  // more than any thread has
  Object object(ObjectId{5}, {});
  const uint32_t ended = as_a_thread_that_ends([&](uint32_t thread) { note_writer(object, thread); });
  EXPECT_EQ(object.writer_thread, ended);
  EXPECT_EQ(object.writer_process, static_cast<uint32_t>(getpid()));
  EXPECT_FALSE(writer_has_ended(object));
  object.writer_process = kEnded;
  EXPECT_TRUE(writer_has_ended(object));
}

}  // namespace writer_processes_test
}  // namespace kvcachefs

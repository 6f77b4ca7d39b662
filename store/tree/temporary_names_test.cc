#include "store/tree/temporary_names.h"

#include <gtest/gtest.h>

#include <string>

namespace kvcachefs {
namespace temporary_names_test {

constexpr ObjectId kHere{10}, kThere{11};

TEST(TemporaryNames, AWordTells) {
  TemporaryNames names;
  for (const char* name : {"c.tmp", ".tmp", "chunk.tmp.1", "a_tmp", "x.TMP", "model.part", "x-incomplete", "tmp"})
    EXPECT_TRUE(names.created(kHere, name)) << name;
  for (const char* name : {"x", "x.lock", "log.txt", "a.db", "attempt", "templates", "tmpfile.txt", "", ".", "é"})
    EXPECT_FALSE(names.created(kHere, name)) << name;
}

TEST(TemporaryNames, OneThatMayBeRenamedIsGuessedWider) {
  for (const char* name : {"c.tmp", "c.bin.tmp1a2b3c4d", "c.tmp140243", "tmpx3k9", "TMP_1", "tmp_obj_a1b2", "x.temp7", "x.part"})
    EXPECT_TRUE(TemporaryNames::may_be_renamed(name)) << name;
  for (const char* name : {"x", "0123abcd.bin", "temperature.bin", "template", "particle", "attmp", ""})
    EXPECT_FALSE(TemporaryNames::may_be_renamed(name)) << name;
  EXPECT_TRUE(TemporaryNames::is_lock("index.lock") && TemporaryNames::is_lock("daemon.pid"));
  EXPECT_FALSE(TemporaryNames::is_lock("block.bin") || TemporaryNames::is_lock("clock"));
}

TEST(TemporaryNames, ALockIsNone) {
  TemporaryNames names;
  for (const char* name : {"x.tmp.lock", "x.lock.tmp", "daemon.pid", "tmp.lck"}) EXPECT_FALSE(names.created(kHere, name)) << name;
  for (int i = 0; i < 20; ++i) {  // as git does
    names.created(kHere, "index.lock");
    names.renamed(kHere, "index.lock", kHere, "index");
  }
  EXPECT_FALSE(names.created(kHere, "index.lock"));
}

TEST(TemporaryNames, IsLearnedByExtensionInAllDirectories) {
  TemporaryNames names;
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(names.created(kHere, std::to_string(i) + ".fresh"), i >= 4) << i;
    names.renamed(kHere, std::to_string(i) + ".fresh", kHere, std::to_string(i) + ".data");
  }
  EXPECT_TRUE(names.created(kThere, "x.fresh"));
  EXPECT_FALSE(names.created(kThere, "x.data"));
  EXPECT_FALSE(names.created(kThere, "x"));
}

TEST(TemporaryNames, IsLearnedByDirectoryWithoutAnExtension) {
  TemporaryNames names;
  for (int i = 0; i < 8; ++i) {
    names.created(kHere, std::to_string(i));
    names.renamed(kHere, std::to_string(i), kThere, std::to_string(i));
  }
  EXPECT_TRUE(names.created(kHere, "x"));
  EXPECT_FALSE(names.created(kThere, "x"));
}

TEST(TemporaryNames, WhatMostlyStaysIsNone) {
  TemporaryNames names;
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(names.created(kHere, std::to_string(i) + ".log"));
    if (i % 10 == 0) names.renamed(kHere, std::to_string(i) + ".log", kHere, std::to_string(i) + ".old");
  }
  for (int i = 0; i < 100; ++i) names.renamed(kHere, "a.log", kHere, "b.log");  // the same kind: tells nothing
  EXPECT_FALSE(names.created(kHere, "x.log"));
}

TEST(TemporaryNames, AWordOfFinalNamesIsSeenByManyThatNobodyRenames) {
  TemporaryNames names;
  EXPECT_TRUE(names.is_expected_to_be_renamed(kHere, "0_-tmp-model"));
  EXPECT_FALSE(names.is_expected_to_be_renamed(kHere, "0_-model"));
  for (int i = 0; i < 100; ++i) {
    names.created(kHere, std::to_string(i) + "_-tmp-model");
    names.created(kThere, std::to_string(i) + "_-tmp-model");
    names.renamed(kThere, std::to_string(i) + "_-tmp-model", kHere, std::to_string(i));
  }
  EXPECT_FALSE(names.is_expected_to_be_renamed(kHere, "x_-tmp-model"));
  EXPECT_TRUE(names.is_expected_to_be_renamed(kThere, "x_-tmp-model"));
  EXPECT_TRUE(names.is_expected_to_be_renamed(kHere, "x.tmp")) << "another kind";
}

}  // namespace temporary_names_test
}  // namespace kvcachefs

#include "store/evict/unit_name.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvcachefs::evict {
namespace unit_name_test {

const std::string kHash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const std::string kOther = "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752";

void expect_one_unit(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) EXPECT_EQ(unit_of_path(path), unit_of_path(paths[0])) << path;
}
void expect_apart(const std::string& a, const std::string& b) {
  EXPECT_NE(unit_of_path(a).unit, unit_of_path(b).unit) << a << " and " << b;
}

TEST(UnitName, RanksAndGroupsOfDirectoriesPerRank) {
  const auto path = [](const std::string& rank, const std::string& group, const std::string& hash) {
    return "Qwen3-8B_0a1b2c3d4e5f_r" + rank + "/" + hash.substr(0, 3) + "/" + hash.substr(3, 2) + "_g" + group + "/" +
           hash + ".bin";
  };
  expect_one_unit({path("0", "0", kHash), path("1", "0", kHash), path("11", "0", kHash), path("3", "12", kHash)});
  expect_apart(path("0", "0", kHash), path("0", "0", kOther));
  EXPECT_EQ(unit_of_path(path("0", "0", kHash)).stem, unit_of_path(path("7", "1", kOther)).stem);
}

TEST(UnitName, RanksLayersAndSidecarsOfQuotedKeys) {
  const std::string h = "-3f2a90c1d4e5b677";
  const auto path = [&](const std::string& fan, const std::string& rank, const std::string& layer) {
    return fan + "Qwen%2FQwen3-8B@4@" + rank + "@" + h + "@bfloat16@" + layer + ".kvcache.safetensors";
  };
  expect_one_unit({path("3f/2a/", "0", "0"), path("3f/2a/", "3", "0"), path("b1/07/", "2", "31"),
                   path("3f/2a/", "0", "0") + ".metadata", path("b1/07/", "12", "5") + ".metadata"});
}

TEST(UnitName, FlatLayouts) {
  expect_one_unit({"meta-llama/Llama-3.1-70B@8@0@" + kHash + ".data", "meta-llama/Llama-3.1-70B@8@7@" + kHash + ".data"});
  expect_one_unit({"model@0x0a@0@" + kHash + ".data", "model@0x09@1@" + kHash + ".data", "model@0x1f@1@" + kHash + ".data"});
  expect_one_unit({kHash + "_Qwen3-32B_0_4.bin", kHash + "_Qwen3-32B_3_4.bin"});
  expect_one_unit({"00/" + kHash + "_Qwen3-32B_0_4_k", "00/" + kHash + "_Qwen3-32B_0_4_v", "00/" + kHash + "_Qwen3-32B_2_4_v"});
  expect_one_unit({"a7/" + kHash + ".pt", "a7/" + kHash + ".pt.metadata"});
  expect_one_unit({"ab/cd/" + kHash, "ab/cd/" + kHash});
  // A decimal hash also counts as the longest run.
  expect_one_unit({"m@1@0@1234567890123456789@half.pt", "m@1@2@1234567890123456789@half.pt"});
  expect_apart("m@1@0@1234567890123456789@half.pt", "m@1@0@1234567890123456788@half.pt");
}

TEST(UnitName, ModelsAreApart) {
  expect_apart("Llama-3.1-8B@1@0@" + kHash + ".data", "Llama-3.1-70B@1@0@" + kHash + ".data");
  expect_apart("Llama@1@0@" + kHash + ".data", "Qwen@1@0@" + kHash + ".data");
  expect_apart("llama/" + kHash + ".bin", "qwen/" + kHash + ".bin");
  EXPECT_NE(unit_of_path("llama/" + kHash + ".bin").stem, unit_of_path("qwen/" + kHash + ".bin").stem);
}

TEST(UnitName, StemsIgnoreFanOut) {
  EXPECT_EQ(unit_of_path("m/3f/2a/" + kHash).stem, unit_of_path("m/b1/07/" + kOther).stem);
  EXPECT_EQ(unit_of_path("m/9f8/6d_g0/" + kHash).stem, unit_of_path("m/603/03_g1/" + kOther).stem);
}

TEST(UnitName, AnyNameHasAUnit) {
  for (const char* name : {"", "x", "config.json", "zzz", "0", "f", ".metadata", "0x", "0xz", "%%%", "a/", "/a", "//"})
    EXPECT_TRUE(unit_of_path(name).unit.valid()) << name;
  expect_apart("x", "y");
  expect_apart("notes-1.txt", "notes-2.txt");
}

}  // namespace unit_name_test
}  // namespace kvcachefs::evict

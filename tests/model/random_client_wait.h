// RandomClient::wait(), for the files that RandomClient is spread over.
#pragma once

#include <cstdio>

#include "tests/model/await.h"
#include "tests/model/random_client.h"

namespace kvcachefs::testing {

template <class T, class Call>
Result<T> RandomClient::wait(Call call) {
  return await<T>(*store_.operator->(), std::move(call), [this] {
    std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(seed_));
    for (const std::string& line : log_) std::fprintf(stderr, "  %s\n", line.c_str());
  });
}

}  // namespace kvcachefs::testing

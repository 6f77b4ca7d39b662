// chain_sim TRACE [chunk_bytes=N] [ram=F] [workers=N] [threads=N] [pattern=serial|pool|contiguous] [probe=0|1]
//           [random=0|1] [bandwidth=BYTES/S] [latency_us=N] [requests=N]: simulates prefetch on that trace.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "store/chain/chain_sim.h"

namespace {

using kvcachefs::chain_sim::Config;
using kvcachefs::chain_sim::ReadPattern;

bool set_option(Config& config, const std::string& name, const std::string& value) {
  if (name == "pattern") {
    if (value != "serial" && value != "pool" && value != "contiguous") return false;
    config.pattern = value == "serial" ? ReadPattern::kSerial
                     : value == "pool" ? ReadPattern::kPool
                                       : ReadPattern::kContiguous;
    return true;
  }
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0' || number < 0) return false;
  if (name == "chunk_bytes")
    config.chunk_bytes = static_cast<uint64_t>(number);
  else if (name == "ram")
    config.ram_fraction = number;
  else if (name == "workers")
    config.workers = static_cast<size_t>(number);
  else if (name == "threads")
    config.threads = static_cast<size_t>(number);
  else if (name == "probe")
    config.probe = number != 0;
  else if (name == "random")
    config.random_store_order = number != 0;
  else if (name == "bandwidth")
    config.volume_bytes_per_s = number;
  else if (name == "latency_us")
    config.volume_latency_ns = static_cast<int64_t>(number * 1000);
  else if (name == "requests")
    config.max_requests = static_cast<size_t>(number);
  else
    return false;
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: chain_sim TRACE [name=value ...]\n");
    return 2;
  }
  Config config;
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    if (equals == std::string::npos || !set_option(config, argument.substr(0, equals), argument.substr(equals + 1))) {
      std::fprintf(stderr, "chain_sim: %s: unknown option or bad value\n", argv[i]);
      return 2;
    }
  }
  auto requests = kvcachefs::chain_sim::read_trace(argv[1]);
  if (!requests) {
    std::fprintf(stderr, "chain_sim: %s\n", requests.error().message.c_str());
    return 1;
  }
  std::printf("%s\n", kvcachefs::chain_sim::run(*requests, config).text().c_str());
  return 0;
}

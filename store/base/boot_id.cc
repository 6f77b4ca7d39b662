#include "store/base/boot_id.h"

#include <fstream>

namespace kvcachefs {

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace kvcachefs

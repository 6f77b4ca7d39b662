# Finds every library by pkg-config and offers it as kvcachefs::<name>. Optional ones are checked where they are used.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

set(KVCACHEFS_INSTALL_HINT "run mount-scripts/install-deps.sh")

# kvcachefs_dependency(NAME MODULE...): the imported target kvcachefs::NAME from the pkg-config modules.
function(kvcachefs_dependency name)
  pkg_check_modules(KVCACHEFS_DEP_${name} QUIET IMPORTED_TARGET GLOBAL ${ARGN})
  if(NOT KVCACHEFS_DEP_${name}_FOUND)
    message(FATAL_ERROR "pkg-config does not find ${ARGN}; ${KVCACHEFS_INSTALL_HINT}")
  endif()
  add_library(kvcachefs::${name} ALIAS PkgConfig::KVCACHEFS_DEP_${name})
endfunction()

kvcachefs_dependency(uring liburing)
kvcachefs_dependency(xxhash libxxhash)
kvcachefs_dependency(lmdb lmdb)
kvcachefs_dependency(fmt fmt)
kvcachefs_dependency(spdlog spdlog)
kvcachefs_dependency(cli11 CLI11)
kvcachefs_dependency(json nlohmann_json)
include(KvcachefsFuse)

option(KVCACHEFS_TESTS "Build the tests and benchmarks (needs GoogleTest and Google Benchmark)" ON)
if(KVCACHEFS_TESTS)
  pkg_check_modules(KVCACHEFS_TEST_LIBRARIES QUIET gtest gtest_main benchmark)
  if(KVCACHEFS_TEST_LIBRARIES_FOUND)
    kvcachefs_dependency(gtest gtest)
    kvcachefs_dependency(gtest_main gtest_main)
    kvcachefs_dependency(benchmark benchmark)
  else()
    message(STATUS "No GoogleTest or Google Benchmark: the tests are not built (mount-scripts/install-deps.sh --tests)")
    set(KVCACHEFS_TESTS OFF) # for this run only: the cache entry stays
  endif()
endif()

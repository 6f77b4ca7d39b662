# Language level, warnings, build types, sanitizers and ccache: everything that goes into a compiler command line.

set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug or Sanitize" FORCE)
endif()

# -g1 keeps line tables for profilers and backtraces at a tenth of the size of -g. No -march: the code picks its
# instruction set at run time where that matters, so one binary serves every x86-64 and arm64 machine.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g -D_GLIBCXX_ASSERTIONS")
set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g1 -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS")

option(KVCACHEFS_WERROR "Treat warnings as errors" ON)
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor -Woverloaded-virtual -Wundef
                    -Wimplicit-fallthrough)
if(KVCACHEFS_WERROR)
  add_compile_options(-Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # False positives inside std::string::assign and operator+ at -O2 (GCC bug 105651).
  add_compile_options(-Wno-restrict -Wno-maybe-uninitialized)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 19)
  # libstdc++ offers std::expected only to compilers that claim C++20 concepts in full, which clang does from 19 on.
  message(FATAL_ERROR "clang ${CMAKE_CXX_COMPILER_VERSION} cannot compile std::expected; use g++ >= 12 or clang >= 19")
endif()

# The order in which locks are taken is checked where speed is not asked for (store/base/mutex.h).
if(NOT CMAKE_BUILD_TYPE STREQUAL "Release")
  add_compile_definitions(KVCACHEFS_CHECK_LOCKS)
endif()

# Long-file interfaces everywhere (32-bit off_t would truncate extents).
add_compile_definitions(_FILE_OFFSET_BITS=64)

set(KVCACHEFS_SANITIZE "" CACHE STRING "Sanitizers: empty, address,undefined or thread")
if(KVCACHEFS_SANITIZE)
  add_compile_options(-fsanitize=${KVCACHEFS_SANITIZE})
  add_link_options(-fsanitize=${KVCACHEFS_SANITIZE})
  find_program(KVCACHEFS_MOLD mold)
  if(KVCACHEFS_MOLD)
    add_link_options(-fuse-ld=mold) # a sanitized test program in 0.3 s instead of 1.4
  endif()
  if(KVCACHEFS_SANITIZE MATCHES "undefined")
    # Without this an undefined behaviour is only a line on stderr and the test passes.
    add_compile_options(-fno-sanitize-recover=all)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # A null pointer that is used ends under AddressSanitizer anyway, and with the check of alignments (which the fuzz
      # preset has) these two are a quarter of what compiling takes.
      add_compile_options(-fno-sanitize=null,alignment)
    endif()
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Instrumentation confuses g++'s flow analysis; the uninstrumented presets keep these warnings. GCC has no model
    # of std::atomic_thread_fence under ThreadSanitizer and says so wherever a header uses one.
    add_compile_options(-Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-array-bounds)
    if(KVCACHEFS_SANITIZE MATCHES "thread")
      add_compile_options(-Wno-tsan)
    endif()
  endif()
endif()
if(KVCACHEFS_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "KVCACHEFS_FUZZ needs clang, but the compiler is ${CMAKE_CXX_COMPILER}")
  endif()
  # std::stable_sort of libstdc++ 12 uses what the same library calls deprecated.
  add_compile_options(-Wno-deprecated-declarations)
  # Coverage feedback for the libraries under test; the fuzzer's main() is linked into the targets only.
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_link_options(-fsanitize=fuzzer-no-link)
endif()

# Presets whose objects nobody makes one by one compile each library as one file (CMAKE_UNITY_BUILD): what a room's headers take is
# paid once. So two files of a library have no name in common in their anonymous namespaces, unless they are overloads that cannot be
# confused. That each file includes what it uses is checked by the presets that build without.
if(CMAKE_UNITY_BUILD)
  add_compile_options(-Wno-shadow) # of a name that another file of the library has for itself
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-subobject-linkage) # takes every file that is included for a header
  endif()
endif()

option(KVCACHEFS_PRECOMPILE "Precompile the standard headers" OFF)
find_program(KVCACHEFS_CCACHE ccache)
if(KVCACHEFS_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${KVCACHEFS_CCACHE}")
  if(KVCACHEFS_PRECOMPILE)
    # What ccache's manual asks for with precompiled headers.
    list(PREPEND CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros)
  endif()
endif()
if(KVCACHEFS_PRECOMPILE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-fpch-preprocess)
  # With precompiled headers g++ 12 inlines otherwise, and reports accesses within std::string that cannot happen.
  add_compile_options(-Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
endif()

# kvcachefs::fuse3: the newest libfuse there is. One that mount-scripts/install-deps.sh built under the user's cache, when
# it is newer than the system's, linked statically; else the system's, with a line that says what is lost.

set(KVCACHEFS_LIBFUSE "auto" CACHE STRING "libfuse to use: auto, system, or the prefix of a libfuse installation")

# The cache may lie on a home directory shared by machines: a static archive fits only the system it was built on.
if(DEFINED ENV{XDG_CACHE_HOME} AND NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
  set(kvcachefs_cache "$ENV{XDG_CACHE_HOME}/kvcachefs")
else()
  set(kvcachefs_cache "$ENV{HOME}/.cache/kvcachefs")
endif()
cmake_host_system_information(RESULT kvcachefs_distribution QUERY DISTRIB_INFO)
set(kvcachefs_fuse_tag
    "${kvcachefs_distribution_ID}${kvcachefs_distribution_VERSION_ID}-${CMAKE_HOST_SYSTEM_PROCESSOR}")

# Points pkg-config at one prefix for one lookup; what was there before is put back.
function(kvcachefs_find_fuse_in prefix)
  set(saved "$ENV{PKG_CONFIG_PATH}")
  set(ENV{PKG_CONFIG_PATH} "${prefix}/lib/pkgconfig")
  pkg_check_modules(KVCACHEFS_FUSE_BUILT QUIET fuse3)
  set(ENV{PKG_CONFIG_PATH} "${saved}")
  if(NOT KVCACHEFS_FUSE_BUILT_FOUND)
    message(FATAL_ERROR "no usable fuse3.pc under ${prefix}/lib/pkgconfig; remove ${prefix} and ${KVCACHEFS_INSTALL_HINT}")
  endif()
  add_library(kvcachefs_fuse3 INTERFACE)
  target_include_directories(kvcachefs_fuse3 SYSTEM INTERFACE ${KVCACHEFS_FUSE_BUILT_STATIC_INCLUDE_DIRS})
  target_compile_options(kvcachefs_fuse3 INTERFACE ${KVCACHEFS_FUSE_BUILT_STATIC_CFLAGS_OTHER})
  # The archive by its path: -lfuse3 could find the system's shared library. What the archive itself needs follows it.
  set(libraries ${KVCACHEFS_FUSE_BUILT_STATIC_LIBRARIES})
  list(REMOVE_ITEM libraries fuse3)
  target_link_libraries(kvcachefs_fuse3 INTERFACE "${prefix}/lib/libfuse3.a" ${libraries} Threads::Threads
                                                  ${CMAKE_DL_LIBS})
  add_library(kvcachefs::fuse3 ALIAS kvcachefs_fuse3)
  set(KVCACHEFS_FUSE_VERSION "${KVCACHEFS_FUSE_BUILT_VERSION}" PARENT_SCOPE)
endfunction()

set(kvcachefs_fuse_prefix "")
if(KVCACHEFS_LIBFUSE STREQUAL "auto")
  file(GLOB kvcachefs_fuse_built "${kvcachefs_cache}/libfuse-*-${kvcachefs_fuse_tag}/lib/pkgconfig/fuse3.pc")
  list(SORT kvcachefs_fuse_built COMPARE NATURAL ORDER DESCENDING)
  if(kvcachefs_fuse_built)
    pkg_check_modules(KVCACHEFS_FUSE_SYSTEM QUIET fuse3)
    list(GET kvcachefs_fuse_built 0 kvcachefs_fuse_newest)
    string(REGEX REPLACE "^.*/(libfuse-([0-9.]+)-[^/]*)/lib/pkgconfig/fuse3.pc$" "${kvcachefs_cache}/\\1;\\2"
           kvcachefs_fuse_newest "${kvcachefs_fuse_newest}")
    list(GET kvcachefs_fuse_newest 1 kvcachefs_fuse_newest_version)
    if(NOT KVCACHEFS_FUSE_SYSTEM_FOUND OR KVCACHEFS_FUSE_SYSTEM_VERSION VERSION_LESS kvcachefs_fuse_newest_version)
      list(GET kvcachefs_fuse_newest 0 kvcachefs_fuse_prefix)
    endif()
  endif()
elseif(NOT KVCACHEFS_LIBFUSE STREQUAL "system")
  set(kvcachefs_fuse_prefix "${KVCACHEFS_LIBFUSE}")
endif()

if(kvcachefs_fuse_prefix)
  kvcachefs_find_fuse_in("${kvcachefs_fuse_prefix}")
  message(STATUS "libfuse ${KVCACHEFS_FUSE_VERSION}, static, from ${kvcachefs_fuse_prefix}")
else()
  kvcachefs_dependency(fuse3 fuse3)
  set(KVCACHEFS_FUSE_VERSION "${KVCACHEFS_DEP_fuse3_VERSION}")
  if(KVCACHEFS_FUSE_VERSION VERSION_LESS 3.17)
    message(STATUS "libfuse ${KVCACHEFS_FUSE_VERSION} of the system: no passthrough reads, no FUSE over io_uring "
                   "(${KVCACHEFS_INSTALL_HINT} to build a newer one)")
  elseif(KVCACHEFS_FUSE_VERSION VERSION_LESS 3.18)
    message(STATUS "libfuse ${KVCACHEFS_FUSE_VERSION} of the system: no FUSE over io_uring")
  else()
    message(STATUS "libfuse ${KVCACHEFS_FUSE_VERSION} of the system")
  endif()
endif()

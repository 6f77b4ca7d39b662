# Writes generated/kvcachefs_version.h. Include it from one .cc file only: it changes with every commit.

set(KVCACHEFS_GIT_DESCRIBE "")
find_package(Git QUIET)
if(Git_FOUND AND EXISTS "${PROJECT_SOURCE_DIR}/.git")
  execute_process(COMMAND "${GIT_EXECUTABLE}" -C "${PROJECT_SOURCE_DIR}" describe --always --tags
                  OUTPUT_VARIABLE KVCACHEFS_GIT_DESCRIBE OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  # A commit appends to this log, so the next build configures anew and the header tells the truth.
  execute_process(COMMAND "${GIT_EXECUTABLE}" -C "${PROJECT_SOURCE_DIR}" rev-parse --path-format=absolute
                          --git-path logs/HEAD
                  OUTPUT_VARIABLE kvcachefs_git_log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(kvcachefs_git_log AND EXISTS "${kvcachefs_git_log}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${kvcachefs_git_log}")
  endif()
endif()
configure_file("${CMAKE_CURRENT_LIST_DIR}/kvcachefs_version.h.in" "${PROJECT_BINARY_DIR}/generated/kvcachefs_version.h"
               @ONLY)

/* Preloaded into a command: listing the threads of a process fails after the first one (and "." and ".."), as when the process ends meanwhile. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int is_task(DIR *directory) {
  char link[64], path[64] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd(directory));
  const ssize_t length = readlink(link, path, sizeof path - 1);
  return length > 5 && strncmp(path, "/proc/", 6) == 0 && strcmp(path + length - 5, "/task") == 0;
}

static void *next(DIR *directory, const char *name) {
  static int listed;
  if (!is_task(directory) || listed++ < 3) return ((void *(*)(DIR *))dlsym(RTLD_NEXT, name))(directory);
  errno = ENOENT;
  return NULL;
}

struct dirent *readdir(DIR *directory) { return next(directory, "readdir"); }
struct dirent64 *readdir64(DIR *directory) { return next(directory, "readdir64"); }

/* Preloaded into a daemon: stat() of the root of a FUSE file system fails with EIO, or, with KVCACHEFS_TEST_STAT=hang, never
 * returns. Everything else is as ever. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* By the name that a 64-bit off_t makes of it. */
int stat64(const char *path, struct stat64 *info) {
  int (*real)(const char *, struct stat64 *) = (int (*)(const char *, struct stat64 *))dlsym(RTLD_NEXT, "stat64");
  const int result = real(path, info);
  struct statfs space;
  if (result != 0 || info->st_ino != 1 || statfs(path, &space) != 0 || space.f_type != 0x65735546) return result;
  const char *what = getenv("KVCACHEFS_TEST_STAT");
  while (what != NULL && strcmp(what, "hang") == 0) pause();
  errno = EIO;
  return -1;
}

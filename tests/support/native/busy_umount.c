/* Preloaded into `kvcachefs umount`: the mount is busy the first KVCACHEFS_TEST_BUSY times, as when something holds it for a moment. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int umount2(const char *path, int flags) {
  static int tries;
  const char *busy = getenv("KVCACHEFS_TEST_BUSY");
  if (busy != NULL && tries++ < atoi(busy)) {
    errno = EBUSY;
    return -1;
  }
  return (int)syscall(SYS_umount2, path, flags);
}

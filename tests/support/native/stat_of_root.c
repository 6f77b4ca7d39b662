/* Preloaded into a daemon: stat() of the root of a FUSE file system fails with EIO; with KVCACHEFS_TEST_STAT=hang it never
 * returns; with "linger" it is slow to tell that the mount is dead, and no process asks to be killed with its parent; with "race" the
 * first read of a device that is gone says what one says that had taken a request just then. Everything else is as ever. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

static int wanted(const char *what) {
  const char *asked = getenv("KVCACHEFS_TEST_STAT");
  return asked != NULL && strcmp(asked, what) == 0;
}

static int lingers(void) { return wanted("linger"); }

int prctl(int option, ...) {
  va_list list;
  va_start(list, option);
  unsigned long argument[4];
  for (int i = 0; i < 4; ++i) argument[i] = va_arg(list, unsigned long);
  va_end(list);
  if (lingers() && option == PR_SET_PDEATHSIG && (int)argument[0] == SIGKILL) return 0;
  return (int)syscall(SYS_prctl, option, argument[0], argument[1], argument[2], argument[3]);
}

ssize_t read(int descriptor, void *buffer, size_t size) {
  static int raced;
  const ssize_t got = syscall(SYS_read, descriptor, buffer, size);
  if (got < 0 && errno == ENODEV && wanted("race") && !__atomic_exchange_n(&raced, 1, __ATOMIC_SEQ_CST)) errno = ECONNABORTED;
  return got;
}

/* By the name that a 64-bit off_t makes of it. */
int stat64(const char *path, struct stat64 *info) {
  int (*real)(const char *, struct stat64 *) = (int (*)(const char *, struct stat64 *))dlsym(RTLD_NEXT, "stat64");
  /* Asked before: a mount that is taken away in between has not been answered for. */
  struct statfs space;
  const int is_mount = statfs(path, &space) == 0 && space.f_type == 0x65735546;
  const int result = real(path, info);
  if (lingers() && result != 0 && (errno == ENOTCONN || errno == ECONNABORTED)) usleep(700 * 1000);
  if (!is_mount) return result;
  while (wanted("hang")) pause();
  if (result != 0 || info->st_ino != 1 || lingers() || wanted("race")) return result;
  errno = EIO;
  return -1;
}

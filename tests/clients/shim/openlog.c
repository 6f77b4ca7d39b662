// Preloaded into every client process: counts the opens that ask for O_DIRECT under one directory.
//
// Some clients fall back to buffered I/O without a word when O_DIRECT is refused, and a test that only compares bytes
// would then pass without having tested anything. The counters let a test insist that O_DIRECT was asked for and that
// it was never refused. Only open(2) and its kin of the C library are seen, which is what all tested clients use.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

static atomic_ulong direct_granted;
static atomic_ulong direct_refused;

unsigned long openlog_direct_granted(void) { return atomic_load(&direct_granted); }
unsigned long openlog_direct_refused(void) { return atomic_load(&direct_refused); }

static int below_watched_dir(const char *path) {
  const char *dir = getenv("CLIENTS_DIR");
  return dir != NULL && path != NULL && strncmp(path, dir, strlen(dir)) == 0;
}

// Counts a finished open. A missing name (ENOENT, EEXIST) is an ordinary answer and no refusal of O_DIRECT.
static int count_open(const char *path, int flags, int fd) {
  const int saved = errno;
  if ((flags & O_DIRECT) != 0 && below_watched_dir(path)) {
    if (fd >= 0) {
      atomic_fetch_add(&direct_granted, 1);
    } else if (saved != ENOENT && saved != EEXIST) {
      atomic_fetch_add(&direct_refused, 1);
    }
  }
  errno = saved;
  return fd;
}

static mode_t mode_argument(int flags, va_list args) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? (mode_t)va_arg(args, int) : 0;
}

#define DEFINE_OPEN(name)                                               \
  int name(const char *path, int flags, ...) {                          \
    static int (*real)(const char *, int, ...);                         \
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, #name);        \
    va_list args;                                                       \
    va_start(args, flags);                                              \
    const mode_t mode = mode_argument(flags, args);                     \
    va_end(args);                                                       \
    return count_open(path, flags, real(path, flags, mode));            \
  }

#define DEFINE_OPENAT(name)                                             \
  int name(int dir_fd, const char *path, int flags, ...) {              \
    static int (*real)(int, const char *, int, ...);                    \
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, #name);        \
    va_list args;                                                       \
    va_start(args, flags);                                              \
    const mode_t mode = mode_argument(flags, args);                     \
    va_end(args);                                                       \
    return count_open(path, flags, real(dir_fd, path, flags, mode));    \
  }

DEFINE_OPEN(open)
DEFINE_OPEN(open64)
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)

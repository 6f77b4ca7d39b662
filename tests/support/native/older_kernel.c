/* Preloaded: system calls fail as in a kernel that does not have them. KVCACHEFS_TEST_KERNEL: "6.4" has no mount beneath another one,
 * "5.1" no mount that is made before it is put in its place. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

long syscall(long number, ...) {
  static long (*real)(long, ...);
  long words[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; ++i) words[i] = va_arg(list, long);
  va_end(list);
  const char *kernel = getenv("KVCACHEFS_TEST_KERNEL");
  const int is_old = kernel != NULL && strcmp(kernel, "5.1") == 0;
  if (kernel != NULL && number == SYS_move_mount && (words[4] & 0x200) != 0) return errno = EINVAL, -1;
  if (is_old && (number == SYS_fsopen || number == SYS_open_tree)) return errno = ENOSYS, -1;
  if (real == NULL) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

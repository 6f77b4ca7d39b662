// Stands in for libcufile.so where there is no GPU. Registrations succeed and do nothing; a read or write goes through
// one page-aligned buffer, as cuFile's own compatibility mode does, and is ONE pread or pwrite of the whole request.
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

typedef struct {
  int err;
  int cu_err;
} Status;

typedef struct {
  int type;
  union {
    int fd;
    void *handle;
  } handle;
  const void *fs_ops;
} Descr;

enum { kPage = 4096, kInternalError = 5030 };

static const Status kSuccess = {0, 0};

Status cuFileDriverOpen(void) { return kSuccess; }
Status cuFileDriverClose(void) { return kSuccess; }

Status cuFileBufRegister(const void *buffer, size_t length, int flags) {
  (void)buffer;
  (void)length;
  (void)flags;
  return kSuccess;
}

Status cuFileBufDeregister(const void *buffer) {
  (void)buffer;
  return kSuccess;
}

// The handle owns a copy of the descriptor number, not the descriptor.
Status cuFileHandleRegister(void **handle, const Descr *descr) {
  int *fd = malloc(sizeof *fd);
  if (fd == NULL) return (Status){kInternalError, 0};
  *fd = descr->handle.fd;
  *handle = fd;
  return kSuccess;
}

void cuFileHandleDeregister(void *handle) { free(handle); }

static void *aligned_buffer(size_t size) {
  void *buffer = NULL;
  if (posix_memalign(&buffer, kPage, size) != 0) return NULL;
  return buffer;
}

ssize_t cuFileRead(void *handle, void *base, size_t size, off_t file_offset, off_t device_offset) {
  void *buffer = aligned_buffer(size);
  if (buffer == NULL) return -ENOMEM;
  const ssize_t got = pread(*(int *)handle, buffer, size, file_offset);
  if (got > 0) memcpy((char *)base + device_offset, buffer, (size_t)got);
  const int error = errno;
  free(buffer);
  return got < 0 ? -error : got;
}

ssize_t cuFileWrite(void *handle, const void *base, size_t size, off_t file_offset, off_t device_offset) {
  void *buffer = aligned_buffer(size);
  if (buffer == NULL) return -ENOMEM;
  memcpy(buffer, (const char *)base + device_offset, size);
  const ssize_t put = pwrite(*(int *)handle, buffer, size, file_offset);
  const int error = errno;
  free(buffer);
  return put < 0 ? -error : put;
}

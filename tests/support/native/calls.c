/* The calls python cannot make itself: libaio with all requests of a batch in one io_submit, and io_uring with or without a polling kernel
 * thread. Loaded by kvc_native.py through ctypes, which gives up python's lock for the duration of a call. Every function returns 0 or -errno of
 * the machinery; the outcome of each request (bytes or -errno) is in results[]. */
#define _GNU_SOURCE
#include <errno.h>
#include <libaio.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

int kvc_aio_batch(int count, const int* fds, void** buffers, const size_t* sizes, const long long* offsets, int is_write, long long* results) {
  io_context_t context = 0;
  int rc = io_setup(count, &context);
  if (rc < 0) return rc;
  struct iocb* blocks = calloc((size_t)count, sizeof(*blocks));
  struct iocb** list = calloc((size_t)count, sizeof(*list));
  struct io_event* events = calloc((size_t)count, sizeof(*events));
  for (int i = 0; i < count; ++i) {
    if (is_write)
      io_prep_pwrite(&blocks[i], fds[i], buffers[i], sizes[i], offsets[i]);
    else
      io_prep_pread(&blocks[i], fds[i], buffers[i], sizes[i], offsets[i]);
    blocks[i].data = (void*)(size_t)i;
    list[i] = &blocks[i];
  }
  rc = io_submit(context, count, list);
  if (rc >= 0 && rc != count) rc = -EAGAIN; /* a batch taken in part is a failure of the machinery, not of a request */
  if (rc == count) {
    int done = 0;
    rc = 0;
    while (done < count && rc >= 0) {
      rc = io_getevents(context, 1, count - done, events, NULL);
      if (rc == -EINTR) rc = 0;
      for (int i = 0; i < rc; ++i) results[(size_t)events[i].data] = (long long)(long)events[i].res;
      if (rc > 0) done += rc;
    }
    if (rc > 0) rc = 0;
  }
  io_destroy(context);
  free(events);
  free(list);
  free(blocks);
  return rc;
}

int kvc_uring_batch(int count, const int* fds, void** buffers, const size_t* sizes, const long long* offsets, int is_write, int polled,
                    long long* results) {
  struct io_uring ring;
  struct io_uring_params parameters;
  memset(&parameters, 0, sizeof(parameters));
  if (polled) {
    parameters.flags = IORING_SETUP_SQPOLL;
    parameters.sq_thread_idle = 50;
  }
  unsigned entries = 1;
  while (entries < (unsigned)count) entries *= 2;
  int rc = io_uring_queue_init_params(entries, &ring, &parameters);
  if (rc < 0) return rc;
  for (int i = 0; i < count; ++i) {
    struct io_uring_sqe* sqe = io_uring_get_sqe(&ring);
    if (is_write)
      io_uring_prep_write(sqe, fds[i], buffers[i], (unsigned)sizes[i], (unsigned long long)offsets[i]);
    else
      io_uring_prep_read(sqe, fds[i], buffers[i], (unsigned)sizes[i], (unsigned long long)offsets[i]);
    io_uring_sqe_set_data(sqe, (void*)(size_t)i);
  }
  rc = io_uring_submit(&ring);
  for (int done = 0; rc >= 0 && done < count;) {
    struct io_uring_cqe* cqe = NULL;
    rc = io_uring_wait_cqe(&ring, &cqe);
    if (rc == -EINTR) {
      rc = 0;
      continue;
    }
    if (rc < 0) break;
    results[(size_t)io_uring_cqe_get_data(cqe)] = cqe->res;
    io_uring_cqe_seen(&ring, cqe);
    ++done;
  }
  io_uring_queue_exit(&ring);
  return rc < 0 ? rc : 0;
}

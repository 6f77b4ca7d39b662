// Writes small chunks into one flat directory from several threads, each straight under its name.
// Arguments: DIRECTORY FIRST COUNT THREADS. The size (64 to 4096 bytes) and the bytes of a chunk follow from its number:
// its name again and again. million.py computes the same.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int directory;
static long first, count, threads;

static void* put(void* argument) {
  char body[4096 + 64], name[64];
  for (long i = first + (long)(size_t)argument; i < first + count; i += threads) {
    const int length = snprintf(name, sizeof name, "chunk-%026ld.bin", i);
    const size_t size = 64 + (size_t)(i * 977 % 63) * 64;
    for (size_t at = 0; at < size; at += (size_t)length) memcpy(body + at, name, (size_t)length);
    const int file = openat(directory, name, O_CREAT | O_WRONLY | O_EXCL, 0644);
    if (file < 0 || write(file, body, size) != (ssize_t)size || close(file) != 0) {
      perror(name);
      exit(1);
    }
  }
  return NULL;
}

int main(int argc, char** argv) {
  if (argc != 5 || (directory = open(argv[1], O_RDONLY | O_DIRECTORY)) < 0) return 2;
  first = atol(argv[2]);
  count = atol(argv[3]);
  threads = atol(argv[4]);
  if (threads < 1 || threads > 64) return 2;
  pthread_t running[64];
  for (long i = 0; i < threads; ++i)
    if (pthread_create(&running[i], NULL, put, (void*)(size_t)i) != 0) return 3;
  for (long i = 0; i < threads; ++i) pthread_join(running[i], NULL);
  return 0;
}

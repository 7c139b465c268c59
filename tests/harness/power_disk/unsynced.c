// Syncs without effect for paths that contain the text in ROLLOUT_TEST_UNSYNCED.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_ignored(int fd) {
  const char *part = getenv("ROLLOUT_TEST_UNSYNCED");
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (part == NULL || length < 0) return 0;
  path[length] = 0;
  return strstr(path, part) != NULL;
}

int fsync(int fd) { return is_ignored(fd) ? 0 : (int)syscall(SYS_fsync, fd); }
int fdatasync(int fd) { return is_ignored(fd) ? 0 : (int)syscall(SYS_fdatasync, fd); }

/* A disk that fails or is slow, for one process: stands before its fdatasync and fsync (LD_PRELOAD).
 *
 * The file named by LK_FAULTS_SHIM is shared memory of five 32-bit numbers, as shim.rs has them. The test changes them
 * while the process runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct control {
    int32_t delay_ms; /* each sync takes so much longer */
    int32_t fail_in;  /* n: the n-th sync from now on fails, and all after it; 0: none does */
    int32_t error;    /* with this errno */
    int32_t syncs;    /* counted: all that were asked for */
    int32_t failed;   /* counted: those that failed */
};

static volatile struct control *control;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("LK_FAULTS_SHIM");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *shared = fd < 0 ? MAP_FAILED : mmap(0, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED)
        _exit(99);
    close(fd);
    control = shared;
}

/* 0 if the sync may go on. */
static int fault(void)
{
    __sync_fetch_and_add(&control->syncs, 1);
    int32_t delay = control->delay_ms;
    if (delay > 0) {
        struct timespec time = {delay / 1000, delay % 1000 * 1000000L};
        nanosleep(&time, 0);
    }
    int32_t left = control->fail_in;
    if (left == 0 || (left > 1 && __sync_sub_and_fetch(&control->fail_in, 1) >= 1))
        return 0;
    __sync_fetch_and_add(&control->failed, 1);
    errno = control->error;
    return -1;
}

int fdatasync(int fd)
{
    static int (*real)(int);
    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return fault() ? -1 : real(fd);
}

int fsync(int fd)
{
    static int (*real)(int);
    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return fault() ? -1 : real(fd);
}

/* Faults for one process (LD_PRELOAD): a disk whose syncs fail, lie or are slow, and clocks that are wrong.
 *
 * The file named by LK_RIG_SHIM is shared memory: the numbers of shim.rs, 64 bits each. The test changes them while the
 * process runs. CLOCK_MONOTONIC is never changed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control {
    int64_t delay_ms;  /* extra duration of each sync */
    int64_t fail_in;   /* n: the n-th sync from now on fails, and all after it; 0: none does */
    int64_t error;     /* errno of failing syncs */
    int64_t syncs;     /* counter of all calls of sync */
    int64_t failed;    /* counter of failed syncs */
    int64_t ahead_sec; /* lead of the wall clock over the true time */
    int64_t lie;       /* not 0: a sync says that it was done, and is not */
    int64_t boot_ppm;  /* what CLOCK_BOOTTIME runs faster than the true time, in millionths */
    int64_t boot_from; /* when that began, in ns of the true CLOCK_BOOTTIME */
    int64_t wall_ppm;  /* the same for the wall clock */
    int64_t wall_from; /* in ns of the true wall clock */
};

static volatile struct control *control;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("LK_RIG_SHIM");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *shared = fd < 0 ? MAP_FAILED : mmap(0, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED)
        _exit(99);
    close(fd);
    control = shared;
}

/* Returns 0 if the sync may proceed, 1 if it must not and succeeds all the same. */
static int fault(void)
{
    __sync_fetch_and_add(&control->syncs, 1);
    int64_t delay = control->delay_ms;
    if (delay > 0) {
        struct timespec time = {delay / 1000, delay % 1000 * 1000000L};
        nanosleep(&time, 0);
    }
    int64_t left = control->fail_in;
    if (left == 0 || (left > 1 && __sync_sub_and_fetch(&control->fail_in, 1) >= 1))
        return control->lie ? 1 : 0;
    __sync_fetch_and_add(&control->failed, 1);
    errno = control->error;
    return -1;
}

int fdatasync(int fd)
{
    static int (*real)(int);
    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    int faulty = fault();
    return faulty < 0 ? -1 : faulty ? 0 : real(fd);
}

int fsync(int fd)
{
    static int (*real)(int);
    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    int faulty = fault();
    return faulty < 0 ? -1 : faulty ? 0 : real(fd);
}

/* Other libraries may read the clock before begin() has run. */
static int64_t ahead(void)
{
    return control ? control->ahead_sec : 0;
}

/* What a clock shows that runs faster than the true time by `ppm` millionths since `from`. */
static void run_faster(struct timespec *time, int64_t ppm, int64_t from)
{
    int64_t now = time->tv_sec * 1000000000L + time->tv_nsec;
    now += (int64_t)((__int128)(now - from) * ppm / 1000000);
    time->tv_sec = now / 1000000000L;
    time->tv_nsec = now % 1000000000L;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real ? real(clock, time) : (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        if (control && control->wall_ppm)
            run_faster(time, control->wall_ppm, control->wall_from);
        time->tv_sec += ahead();
    }
    if (result == 0 && clock == CLOCK_BOOTTIME && control && control->boot_ppm)
        run_faster(time, control->boot_ppm, control->boot_from);
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    (void)zone;
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

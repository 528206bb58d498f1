// What cannot be done to a machine under test, done to one process tree by LD_PRELOAD:
//   CLOCK_FILE    once this file exists, the time of day is an hour earlier (the monotonic clock goes on)
//   SLOW_FOLDER   each write, fsync and rename of a file under this folder takes SLOW_SECONDS longer
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

template <typename F> static F real(const char* name) { return reinterpret_cast<F>(dlsym(RTLD_NEXT, name)); }

static time_t stepped() {
    static const char* file = getenv("CLOCK_FILE");
    return file && access(file, F_OK) == 0 ? 3600 : 0;
}

static void wait_if_slow(const char* path) {
    static const char* folder = getenv("SLOW_FOLDER");
    static const char* seconds = getenv("SLOW_SECONDS");
    if (folder && seconds && path && strstr(path, folder)) usleep(static_cast<useconds_t>(atof(seconds) * 1e6));
}

static void wait_if_slow(int handle) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return;
    path[length] = 0;
    wait_if_slow(path);
}

extern "C" {

int clock_gettime(clockid_t clock, struct timespec* now) {
    static auto next = real<int (*)(clockid_t, struct timespec*)>("clock_gettime");
    int code = next(clock, now);
    if (code == 0 && clock == CLOCK_REALTIME) now->tv_sec -= stepped();
    return code;
}

int gettimeofday(struct timeval* now, void* zone) {
    static auto next = real<int (*)(struct timeval*, void*)>("gettimeofday");
    int code = next(now, zone);
    if (code == 0) now->tv_sec -= stepped();
    return code;
}

time_t time(time_t* now) {
    struct timespec said;
    clock_gettime(CLOCK_REALTIME, &said);
    if (now) *now = said.tv_sec;
    return said.tv_sec;
}

ssize_t write(int handle, const void* data, size_t size) {
    static auto next = real<ssize_t (*)(int, const void*, size_t)>("write");
    wait_if_slow(handle);
    return next(handle, data, size);
}

ssize_t pwrite64(int handle, const void* data, size_t size, off64_t place) {
    static auto next = real<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64");
    wait_if_slow(handle);
    return next(handle, data, size, place);
}

int fsync(int handle) {
    static auto next = real<int (*)(int)>("fsync");
    wait_if_slow(handle);
    return next(handle);
}

int rename(const char* from, const char* to) {
    static auto next = real<int (*)(const char*, const char*)>("rename");
    wait_if_slow(to);
    return next(from, to);
}

}

// Random delays wherever the library takes memory: in calls, in readers, and in its worker thread.
// To be linked into a suite of threads.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace {

bool may_allocate() {
    thread_local uint32_t state = 0;
    static std::atomic<uint32_t> threads{0};
    if (state == 0) state = 2654435769u * ++threads;
    state = state * 1664525u + 1013904223u;
    if (state >> 26 == 0) std::this_thread::sleep_for(std::chrono::microseconds(state >> 16 & 127));
    return true;
}

}  // namespace

#include <replace_new.h>

// A mutex whose holders are quick: whoever finds it taken looks again a few times before going to
// sleep.
#pragma once

#include <mutex>

namespace routecap {

class QuickMutex {
public:
    void lock() {
        for (int i = 0; i < 200; i++) {
            if (mutex_.try_lock()) return;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        mutex_.lock();
    }
    void unlock() { mutex_.unlock(); }

private:
    std::mutex mutex_;
};

}  // namespace routecap

// Mutexes, and what each of them guards, in words that Clang checks (-Wthread-safety).
//
// A member that a mutex guards is declared GUARDED_BY(that mutex). A function to be called with it
// REQUIRES it. Other compilers see nothing of this.
#pragma once

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define ROUTECAP_THREADS(attribute) __attribute__((attribute))
#else
#define ROUTECAP_THREADS(attribute)
#endif
#define ROUTECAP_CAPABILITY(name) ROUTECAP_THREADS(capability(name))
#define ROUTECAP_SCOPED_CAPABILITY ROUTECAP_THREADS(scoped_lockable)
#define GUARDED_BY(mutex) ROUTECAP_THREADS(guarded_by(mutex))
#define REQUIRES(...) ROUTECAP_THREADS(requires_capability(__VA_ARGS__))
#define ACQUIRE(...) ROUTECAP_THREADS(acquire_capability(__VA_ARGS__))
#define RELEASE(...) ROUTECAP_THREADS(release_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) ROUTECAP_THREADS(try_acquire_capability(__VA_ARGS__))
// For functions that the analysis cannot follow. Each use says why the function is right.
#define UNCHECKED_THREADS ROUTECAP_THREADS(no_thread_safety_analysis)

namespace routecap {

class ROUTECAP_CAPABILITY("mutex") Mutex {
public:
    void lock() ACQUIRE() { mutex_.lock(); }
    bool try_lock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }
    void unlock() RELEASE() { mutex_.unlock(); }

private:
    friend class ConditionVariable;
    std::mutex mutex_;
};

// A mutex that is held for a few instructions only. A thread that finds it taken tries again for a
// moment, because that is shorter than a sleep and a wake-up.
class ROUTECAP_CAPABILITY("mutex") QuickMutex {
public:
    void lock() ACQUIRE() {
        for (int i = 0; i < 200; i++) {
            if (mutex_.try_lock()) return;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        mutex_.lock();
    }
    void unlock() RELEASE() { mutex_.unlock(); }

private:
    std::mutex mutex_;
};

// Holds a mutex for as long as it lives, except between unlock() and lock().
template <class M>
class ROUTECAP_SCOPED_CAPABILITY Lock {
public:
    explicit Lock(M &mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex.lock(); }
    ~Lock() RELEASE() {
        if (held_) mutex_.unlock();
    }
    Lock(const Lock &) = delete;
    void lock() ACQUIRE() {
        mutex_.lock();
        held_ = true;
    }
    void unlock() RELEASE() {
        held_ = false;
        mutex_.unlock();
    }

private:
    M &mutex_;
    bool held_ = true;
};

class ConditionVariable {
public:
    void wait(Mutex &mutex) REQUIRES(mutex) {
        std::unique_lock lock(mutex.mutex_, std::adopt_lock);
        condition_.wait(lock);
        lock.release();
    }
    // Returns false if the time `limit` came first.
    template <class Time>
    bool wait_until(Mutex &mutex, Time limit) REQUIRES(mutex) {
        std::unique_lock lock(mutex.mutex_, std::adopt_lock);
        const bool in_time = condition_.wait_until(lock, limit) == std::cv_status::no_timeout;
        lock.release();
        return in_time;
    }
    void notify_one() { condition_.notify_one(); }
    void notify_all() { condition_.notify_all(); }

private:
    std::condition_variable condition_;
};

}  // namespace routecap

// What the library does about fork(). Threads, and whoever holds a lock, exist in the parent only.
// So an object notes the process it was made in, and calls refuse it in a child. A child also
// closes some descriptors.
#pragma once

#include <cstdint>

namespace routecap {

// A number that is different in a child of fork(). Reading it is cheap. The first call installs the
// handler.
uint32_t process_generation() noexcept;

// A descriptor that every child of fork() closes. So the kernel drops the locks that belong to it
// when this process ends, and not when its last child does. open() holds off a fork until the
// descriptor is registered, so no child misses it.
class ForkClosed {
public:
    ForkClosed() = default;
    ForkClosed(const ForkClosed &) = delete;
    ForkClosed &operator=(const ForkClosed &) = delete;
    ~ForkClosed() { close(); }

    // Opens a file, close-on-exec. False: errno says why.
    bool open(const char *path, int flags) noexcept;
    void close() noexcept;
    int get() const { return descriptor_; }  // -1: closed

    // The handlers that fork() runs: before it, after it in the parent, and after it in the child.
    static void before_fork() noexcept, after_fork() noexcept, after_fork_in_child() noexcept;

private:
    int descriptor_ = -1;
    ForkClosed *before_ = nullptr, *next_ = nullptr;  // the list of all that are open
};

}  // namespace routecap

// What fork() means to the library: whether this process was forked since an object was made, whose
// threads and holders of locks stayed behind in the parent, and descriptors that a child closes.
#pragma once

#include <cstdint>

namespace routecap {

// Changes in a child of fork(). Cheap. The first call starts watching.
uint32_t process_generation() noexcept;

// A descriptor that no child of fork() keeps: what the kernel does when its last copy is closed
// happens when this process ends. No fork falls between its opening and its registration.
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

    // What fork() runs: before it, and after it in parent and child.
    static void before_fork() noexcept, after_fork() noexcept, after_fork_in_child() noexcept;

private:
    int descriptor_ = -1;
    ForkClosed *before_ = nullptr, *next_ = nullptr;  // among all that are open
};

}  // namespace routecap

#include "base/process.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>

#include "base/log.h"
#include "base/mutex.h"

namespace routecap {
namespace {

std::atomic<uint32_t> generation{0};

// The list of descriptors that a child closes.
Mutex descriptors_mutex;
ForkClosed *descriptors GUARDED_BY(descriptors_mutex) = nullptr;

}  // namespace

uint32_t process_generation() noexcept {
    static const int watching =
        pthread_atfork([] { ForkClosed::before_fork(); }, [] { ForkClosed::after_fork(); },
                       [] {
                           generation.fetch_add(1, std::memory_order_relaxed);
                           forget_tellers();
                           ForkClosed::after_fork_in_child();
                       });
    static_cast<void>(watching);
    return generation.load(std::memory_order_relaxed);
}

bool ForkClosed::open(const char *path, int flags) noexcept {
    process_generation();
    const Lock lock(descriptors_mutex);
    descriptor_ = ::open(path, flags | O_CLOEXEC);
    if (descriptor_ < 0) return false;
    next_ = descriptors;
    if (next_ != nullptr) next_->before_ = this;
    descriptors = this;
    return true;
}

void ForkClosed::close() noexcept {
    const Lock lock(descriptors_mutex);
    if (descriptor_ < 0) return;
    ::close(descriptor_);
    descriptor_ = -1;
    (before_ != nullptr ? before_->next_ : descriptors) = next_;
    if (next_ != nullptr) next_->before_ = before_;
    before_ = next_ = nullptr;
}

// The mutex is held while the process forks, so it is locked and unlocked in different functions.
void ForkClosed::before_fork() noexcept ACQUIRE(descriptors_mutex) { descriptors_mutex.lock(); }
void ForkClosed::after_fork() noexcept RELEASE(descriptors_mutex) { descriptors_mutex.unlock(); }
void ForkClosed::after_fork_in_child() noexcept RELEASE(descriptors_mutex) {
    for (ForkClosed *each = descriptors; each != nullptr; each = each->next_) {
        ::close(each->descriptor_);
        each->descriptor_ = -1;
    }
    descriptors = nullptr;
    descriptors_mutex.unlock();
}

}  // namespace routecap

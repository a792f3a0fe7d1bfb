#include "base/process.h"

#include <pthread.h>

#include <atomic>

namespace routecap {
namespace {

std::atomic<uint32_t> generation{0};

}  // namespace

uint32_t process_generation() noexcept {
    static const int watching = pthread_atfork(
        nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
    static_cast<void>(watching);
    return generation.load(std::memory_order_relaxed);
}

}  // namespace routecap

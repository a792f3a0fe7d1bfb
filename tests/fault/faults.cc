#include "faults.h"

#include <dlfcn.h>
#include <rig.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr unsigned kPatience = 120;  // seconds

std::atomic<int64_t> allocations_left{0};  // until the one that fails; 0 and below: it does
std::atomic<bool> allocations_fail{false}, allocations_fail_from_then_on{false}, paused{false};
std::atomic<uint64_t> allocations_failed{0};
const fake_cuda *driver = nullptr;

thread_local bool of_test = false, in_library = false;

bool may_allocate() {
    if (!allocations_fail.load(std::memory_order_relaxed) || paused.load(std::memory_order_relaxed))
        return true;
    if (of_test && !in_library) return true;
    if (driver != nullptr && driver->inside()) return true;
    const int64_t left = allocations_left.fetch_sub(1, std::memory_order_relaxed) - 1;
    if (left > 0 || (left < 0 && !allocations_fail_from_then_on.load(std::memory_order_relaxed)))
        return true;
    allocations_failed++;
    return false;
}

}  // namespace

#include <replace_new.h>

namespace faults {
namespace {

char planned[256];  // for the message of a run that hangs
bool loses_memory = false, loses_device = false;
std::atomic<const char *> called{"nothing"};

void give_up(int) {
    for (const char *part : {"fault loop: no end after two minutes of ",
                             static_cast<const char *>(planned), ", last in ", called.load(), "\n"})
        if (write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
    std::abort();
}

}  // namespace

std::string text(const Plan &plan) {
    if (plan.what == Plan::What::nothing) return "an untouched run";
    std::string text = plan.what == Plan::What::allocation ? "allocation " : "call ";
    text += std::to_string(plan.nth);
    if (!plan.function.empty()) text += " of " + plan.function;
    if (plan.from_then_on) text += " and later ones";
    if (plan.what == Plan::What::device_lost) return text + " loses the device";
    return text + (plan.what == Plan::What::call ? " returning " + std::to_string(plan.result)
                                                 : " failing");
}

void start(const Plan &plan) {
    std::snprintf(planned, sizeof planned, "%s", text(plan).c_str());
    std::signal(SIGALRM, give_up);
    alarm(kPatience);
    allocations_failed = 0;
    loses_memory = plan.what == Plan::What::allocation;
    loses_device = plan.what == Plan::What::device_lost;
    if (plan.what == Plan::What::allocation) {
        allocations_left = static_cast<int64_t>(plan.nth);
        allocations_fail_from_then_on = plan.from_then_on;
        allocations_fail = true;
    } else if (plan.what == Plan::What::device_lost) {
        driver->lose_device_at(plan.nth);
    } else if (plan.what == Plan::What::call && plan.function.empty()) {
        (plan.from_then_on ? driver->fail_any_from : driver->fail_any)(plan.nth, plan.result);
    } else if (plan.what == Plan::What::call) {
        (plan.from_then_on ? driver->fail_from : driver->fail)(plan.function.c_str(), plan.nth,
                                                               plan.result);
    }
}

void stop() {
    alarm(0);
    allocations_fail = false;
    if (driver != nullptr) driver->forget_failures();
}

uint64_t injected() { return allocations_failed + (driver != nullptr ? driver->failures() : 0); }

bool memory_stays() { return !loses_memory; }
bool engine_stays() { return !loses_device; }
bool engine_lost() { return loses_device && injected() > 0; }

Pause::Pause() { paused = true; }
Pause::~Pause() { paused = false; }

const fake_cuda *fake() {
    static const bool found = [] {
        void *library = rig::on_cuda() ? dlopen("libcuda.so.1", RTLD_NOW) : nullptr;
        if (library != nullptr)
            driver = reinterpret_cast<decltype(&fake_cuda_control)>(
                dlsym(library, "fake_cuda_control"))();
        if (driver != nullptr) driver->exempt(1);
        of_test = true;
        return true;
    }();
    static_cast<void>(found);
    return driver;
}

fake_cuda_live live() {
    fake_cuda_live now{};
    if (driver != nullptr) driver->live(&now);
    return now;
}

void expect_same(const fake_cuda_live &before) {
    const fake_cuda_live now = live();
    EXPECT_EQ(now.device_allocations, before.device_allocations);
    EXPECT_EQ(now.host_allocations, before.host_allocations);
    EXPECT_EQ(now.streams, before.streams);
    EXPECT_EQ(now.events, before.events);
    EXPECT_EQ(now.user_objects, before.user_objects);
    EXPECT_EQ(now.primary_references, before.primary_references);
}

void enter(const char *function) {
    called = function;
    in_library = true;
    if (driver != nullptr) driver->exempt(0);
}

void leave() {
    if (driver != nullptr) driver->exempt(1);
    in_library = false;
}

}  // namespace faults

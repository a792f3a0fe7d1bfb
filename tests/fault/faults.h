// What goes wrong in the library while a test runs: its n-th allocation, or its n-th call of the
// fake driver. Only what the library does is counted and fails: what a thread of the test does
// within inside(), and whatever the library's own threads do.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "fake_cuda.h"

namespace faults {

struct Plan {
    enum class What {
        nothing,
        allocation,
        call,        // of the driver; it returns `result`
        device_lost  // at a call of the driver
    };
    What what = What::nothing;
    uint64_t nth = 1;
    bool from_then_on = false;  // and every later one
    int result = 0;             // a CUresult
    std::string function = {};  // call: counts and fails calls of this one only
};
std::string text(const Plan &plan);

// From here on things go wrong. A run that does not end within two minutes is aborted, with a line
// about the plan and the call.
void start(const Plan &plan);
// Everything works again, but for a lost device.
void stop();
// How many faults there were since the start.
uint64_t injected();
// Whether the plan leaves memory alone.
bool memory_stays();
// Whether the device works for the engine's own calls: to the end, and no more.
bool engine_stays();
bool engine_lost();

// Memory is there meanwhile, for all threads.
class Pause {
public:
    Pause();
    ~Pause();
    Pause(const Pause &) = delete;
};

// The fake driver, or null on the host backend. The first call, before anything else, makes this
// thread one of the test.
const fake_cuda *fake();
// What it holds for the library: nothing on the host backend. And that it holds as much as before.
fake_cuda_live live();
void expect_same(const fake_cuda_live &before);

void enter(const char *function);
void leave();
// Calls f, which calls one function of the library.
template <class F>
auto inside(const char *function, F f) {
    enter(function);
    struct Leave {
        ~Leave() { leave(); }
    } const on_return;
    return f();
}

}  // namespace faults

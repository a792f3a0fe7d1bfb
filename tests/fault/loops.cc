// The fault loops: the workload with its n-th allocation failing, and on the fake driver with its
// n-th call of the driver failing in every way, once and from then on, for every n until a run goes
// by untouched. After each run a new capturer works, and nothing is left of the old one.
//
// On the host backend, or on the fake driver with ROUTECAP_TEST_BACKEND=cuda. With
// ROUTECAP_FAULT_STRIDE=s every s-th n of each loop only, with ROUTECAP_FAULT_STRIDE=0 every status
// of the driver at every n; by default they take turns.
#include <rig.h>

#include <cstdlib>
#include <set>
#include <sstream>
#include <string>

#include "faults.h"
#include "workload.h"

namespace {

using namespace rig;
using faults::Plan;

// What calls of the driver may return: values of CUresult. Out of memory, illegal address, not
// ready, invalid context, launch failed, invalid value, deinitialized, launch out of resources, ECC
// error, context is destroyed, not supported, unknown.
constexpr int kResults[] = {2, 700, 600, 201, 719, 1, 4, 701, 214, 709, 801, 999};

uint64_t stride() {
    const char *text = std::getenv("ROUTECAP_FAULT_STRIDE");
    return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

// A capturer, a step, its rows. It also gives back what graphs of capturers before it held.
void expect_that_a_new_capturer_works() {
    Rig rig;
    const routecap_request request = rig.open();
    rig.land(rig.step({{request, {1, 0, 4}}}));
    rig.expect(request, 0, routed_rows(rig.shape(), 1, 0, 4));
}

// Functions that give something back: where one of them fails, that stays.
bool gives_back(const std::string &function) {
    static const std::set<std::string> all{"cuMemFree",           "cuMemFreeHost",
                                           "cuStreamDestroy",     "cuEventDestroy",
                                           "cuUserObjectRelease", "cuDevicePrimaryCtxRelease",
                                           "cuCtxPushCurrent"};
    return all.contains(function);
}

// One run of the workload. Returns how many faults there were.
uint64_t run(const Plan &plan, bool manual) {
    SCOPED_TRACE(faults::text(plan) + (manual ? ", without a worker" : ""));
    const fake_cuda *fake = faults::fake();
    const fake_cuda_live before = faults::live();
    bool all_given_back = true;
    uint64_t count = 0;
    {
        faults::Workload workload(manual, !plan.from_then_on);
        faults::start(plan);
        workload.run();
        faults::stop();
        count = faults::injected();
        if (fake != nullptr) {
            std::istringstream failed(fake->failed());
            for (std::string function; failed >> function;) all_given_back &= !gives_back(function);
            all_given_back &= !faults::engine_lost();
            EXPECT_EQ(fake->violations(), 0u) << fake->violation_text();
        }
    }
    if (fake != nullptr) fake->reset();
    expect_that_a_new_capturer_works();
    if (all_given_back) faults::expect_same(before);
    return count;
}

// Loops, and what came of them.
class Count {
public:
    // Runs plan(1), plan(2), ... until one goes by untouched; every `times` stride-th only.
    template <class Of>
    void loop(Of plan, bool manual, uint64_t times = 1) {
        for (uint64_t n = 1; !testing::Test::HasFailure();
             n += std::max<uint64_t>(stride(), 1) * times) {
            const uint64_t faults = run(plan(n), manual);
            if (faults == 0) break;
            runs_++;
            faults_ += faults;
        }
    }
    void print(const char *what) const {
        std::printf("%s: %llu faults in %llu runs\n", what,
                    static_cast<unsigned long long>(faults_),
                    static_cast<unsigned long long>(runs_));
        EXPECT_GT(runs_ * std::max<uint64_t>(stride(), 1), 200u);
    }

private:
    uint64_t runs_ = 0, faults_ = 0;
};

class Loops : public testing::Test {
protected:
    void SetUp() override {
        faults::fake();
        expect_that_a_new_capturer_works();  // what a process makes once is made
    }
};
class DriverLoops : public Loops {
protected:
    void SetUp() override {
        if (!on_cuda()) GTEST_SKIP() << "on the fake driver only";
        Loops::SetUp();
    }
};

}  // namespace

TEST_F(Loops, nothing_goes_wrong) {
    EXPECT_EQ(run({}, true), 0u);
    EXPECT_EQ(run({}, false), 0u);
}

TEST_F(Loops, every_allocation_fails) {
    Count count;
    for (const bool manual : {true, false})
        for (const bool from_then_on : {false, true})
            count.loop(
                [&](uint64_t n) {
                    return Plan{Plan::What::allocation, n, from_then_on};
                },
                manual);
    count.print("allocations that fail");
}

TEST_F(DriverLoops, every_call_fails_in_every_way) {
    Count count;
    const size_t ways = std::size(kResults);
    for (const bool manual : {true, false})
        for (const bool from_then_on : {false, true})
            for (size_t way = 0; way < (stride() == 0 ? ways : 1); way++)
                count.loop(
                    [&](uint64_t n) {
                        return Plan{Plan::What::call, n, from_then_on,
                                    kResults[(n + way + 5 * from_then_on) % ways]};
                    },
                    manual);
    count.print("calls of the driver that fail");
}

// A function that does not work, from its first, second, ... call on.
TEST_F(DriverLoops, every_function_fails_from_some_call_on) {
    std::istringstream names(faults::fake()->asked());
    Count count;
    size_t function = 0;
    for (std::string name; names >> name && !testing::Test::HasFailure(); function++)
        for (size_t way = 0; way < std::size(kResults); way++) {
            if (stride() != 0 && way != function % std::size(kResults)) continue;
            count.loop(
                [&](uint64_t n) {
                    return Plan{Plan::What::call, n, true, kResults[way], name};
                },
                true);
        }
    EXPECT_GT(function, 40u);
    count.print("calls of one function that fail");
}

TEST_F(DriverLoops, the_device_is_lost_at_every_call) {
    Count count;
    for (const bool manual : {true, false})
        count.loop(
            [&](uint64_t n) {
                return Plan{Plan::What::device_lost, n, true};
            },
            manual, manual ? 1 : 4);
    count.print("calls that find the device lost");
}

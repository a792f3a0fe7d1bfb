// The standard workload of the fault loops: an engine's life in small, which uses every function of
// routecap.h that can meet a fault. It goes on whatever fails, and checks after every call that the
// status is one that the header documents, and of every row that it is right or missing.
#pragma once

#include <rig.h>

#include <initializer_list>
#include <map>
#include <memory>
#include <vector>

namespace faults {

class Workload {
public:
    // retry: a call that failed is made again and must work then, unless the device is lost.
    // Otherwise the fault is taken to stay.
    Workload(bool manual, bool retry);
    ~Workload();

    // All of it, destroy included. Faults have been started before.
    void run();

private:
    // One sequence: what has to be there, and what was there once.
    struct Sequence {
        uint64_t seed;
        routecap_request handle = 0;
        std::vector<bool> due = std::vector<bool>(512), seen = std::vector<bool>(512);
        void expect(uint64_t first, uint64_t end) {
            std::fill(due.begin() + static_cast<long>(first), due.begin() + static_cast<long>(end),
                      true);
        }
        void forget(uint64_t first, uint64_t end);
    };

    template <class F>
    int32_t call(const char *function, F f,
                 std::initializer_list<int32_t> untouched = {ROUTECAP_OK});
    bool allowed(const char *function, int32_t status) const;
    bool intact() const;
    bool waits_to_land() const;
    void check_load(bool all) const;
    void compute(const Sequence &sequence, uint64_t first, uint64_t end, int times = 1);

    void create();
    void open(std::initializer_list<Sequence *> sequences);
    void pass(const std::vector<rig::Tokens> &tokens, bool snapshot = true);
    routecap_step issue(const std::vector<routecap_span> &spans,
                        const routecap_issue_options *options = nullptr);
    void land(routecap_step step);
    void check(routecap_routing *routing, Sequence &sequence);
    void observe(Sequence &sequence);

    void first_steps();
    void settle(const routecap_store *store);
    void prefixes();
    void several_in_flight();
    void graphs();
    void probing();
    void reading();
    void other_memory();
    void ending();

    const bool manual_, retry_;
    std::unique_ptr<rig::Device> device_;
    std::unique_ptr<rig::Device::Graph> graph_;
    routecap_capturer *capturer_ = nullptr;
    void *bound_ = nullptr;  // memory of the last layer's sink
    routecap_step last_ = 0;
    bool lost_ = false, said_lost_ = false, refused_ = false, missing_ = false;
    uint64_t failures_ = 0;  // calls that returned an error
    Sequence a_{1}, b_{2}, c_{3}, forked_{1}, ended_{4}, attached_{4}, adopted_{1};
    rig::RoutingPtr pending_;         // of ended_
    std::vector<uint64_t> computed_;  // [layers, experts] how often the load may count each
};

}  // namespace faults

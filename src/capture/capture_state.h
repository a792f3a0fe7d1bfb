// What the forward path, the requests and the reader of a capturer share: rows within the budget,
// the log, the steps in flight, and the worker that files them. A mirror has none of it.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "base/completion.h"
#include "base/counters.h"
#include "capture/config.h"
#include "capture/registry.h"
#include "capture/step_worker.h"
#include "capture/steps.h"
#include "load/load_counter.h"
#include "rows/pages.h"

namespace routecap {

struct CaptureState {
    CaptureState(const Config &config, uint64_t number, Backend &backend);

    const StoragePtr storage;
    PagePool &pool;
    Completion &completion;
    Counters counters;
    Steps steps;
    Registry registry;
    const std::unique_ptr<LoadCounter> load;  // null unless it is counted
    StepWorker worker;                        // last: it uses the others
};

}  // namespace routecap

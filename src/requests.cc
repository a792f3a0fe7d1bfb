#include "requests.h"

namespace routecap {

bool Requests::reserve(size_t count) {
    if (count > free_.size() + max_requests_ - std::min<size_t>(max_requests_, chunks_.size() * kChunk)) return false;
    while (free_.size() < count) {
        const auto first = static_cast<uint32_t>(chunks_.size() * kChunk);
        const uint32_t end = std::min(first + kChunk, max_requests_);
        free_.reserve(end);
        chunks_.reserve(chunks_.size() + 1);
        chunks_.emplace_back(new Request[kChunk]);
        for (uint32_t i = end; i-- > first;) {
            at(i).generation = nonce_;
            free_.push_back(i);
        }
    }
    return true;
}

routecap_request Requests::open(OpenPtr captured) {
    const uint32_t index = free_.back();
    free_.pop_back();
    Request &r = at(index);
    r.open = true;
    count_.store(count() + 1, std::memory_order_relaxed);
    r.captured = std::move(captured);
    return static_cast<uint64_t>(r.generation) << 32 | (index + 1);
}

void Requests::close(Request &r, routecap_request handle) {
    r.generation++;
    count_.store(count() - 1, std::memory_order_relaxed);
    r.open = r.device_positions = false;
    r.captured.reset();
    r.length = 0;
    r.newest = {};
    r.pages.clear_first();
    free_.push_back(index_of(handle));
    if (!r.changed) return;
    r.changed = false;
    r.pages.clear();
    r.drafts.clear();  // keeps its memory
    r.flagged_end = r.inherited_after = 0;
    r.operations = r.changing_first = r.changing_end = r.changing_until = 0;
    r.cuts.clear();
    r.lending_end = r.lending_step = r.lending_until = 0;
}

}  // namespace routecap

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

routecap_request Requests::open(std::shared_ptr<Captured> captured, RowStore::Policy policy) {
    const uint32_t index = free_.back();
    free_.pop_back();
    Request &r = at(index);
    r.open = true;
    r.policy = policy;
    r.rows = &captured->rows;
    r.captured = std::move(captured);
    return static_cast<uint64_t>(r.generation) << 32 | (index + 1);
}

void Requests::close(routecap_request handle) {
    Request &r = *find(handle);
    r.generation++;
    r.open = r.device_positions = false;
    r.rows = nullptr;
    r.captured.reset();
    r.length = r.flagged_end = 0;
    r.pages.clear();
    r.drafts.clear();  // keeps its memory
    r.newest = {};
    r.inherited_after = 0;
    r.operations = r.changing_first = r.changing_end = r.changing_until = 0;
    r.cuts.clear();
    r.lending_end = r.lending_step = r.lending_until = 0;
    free_.push_back(static_cast<uint32_t>(handle) - 1);
}

}  // namespace routecap

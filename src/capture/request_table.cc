#include "capture/request_table.h"

namespace routecap {

void RequestTable::add(Chunk chunk) {
    const uint32_t end = std::min(made_ + kChunk, max_requests_);
    if (end == made_) return;
    chunks_[made_ / kChunk] = std::move(chunk);
    const uint32_t first = std::exchange(made_, end);
    for (uint32_t i = end; i-- > first; free_count_++) at(i).check_last = std::exchange(free_, i);
}

routecap_request RequestTable::open(OpenRequestPtr data, uint64_t serial) {
    const uint32_t index = free_;
    Request &r = at(index);
    free_ = r.check_last;
    free_count_--;
    r.handle = serial << Serials::kIndexBits | index;
    r.check = 0;
    count_.store(count() + 1, std::memory_order_relaxed);
    r.data = std::move(data);
    return r.handle;
}

void RequestTable::forget_rare(Request &r, Nodes &nodes) {
    r.has_rare = false;
    nodes.give_all(r.rare_.missing);
    r.rare_.bounds.clear(nodes);
    r.rare_ = {};
}

}  // namespace routecap
